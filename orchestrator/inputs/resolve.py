"""Finds the inputs of a checked sweep file: models with their depth, tasks with their data.

Reads the file system and the hub's small config files; imports no torch and no Ray.
"""

from __future__ import annotations

import contextlib
import filecmp
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from lp_sweep.orchestrator.inputs.hub import DEFAULT_REVISION
from lp_sweep.orchestrator.inputs.models import ModelInput, find_model, find_teacher, vectors_of
from lp_sweep.orchestrator.inputs.pins import Manifest, Pins, manifest_path, read_manifest
from lp_sweep.orchestrator.sweepfile.entries import TaskEntry
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.orchestrator.sweepfile.yamlfile import Document
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError, TrialError
from lp_sweep.storage.places import expanded
from lp_sweep.storage.printable import listed, short
from lp_sweep.trials.data.datasource import data_fingerprint, unlabelled_fingerprint
from lp_sweep.trials.data.formats import file_format, open_binary, parts_of
from lp_sweep.trials.data.readers import CONLL, column_names, read_file
from lp_sweep.trials.data.tasks import (
    CORPUS,
    QRELS,
    QUERIES,
    TASKS,
    TEST,
    TaskSource,
    canonical_name,
    glue_source,
    is_commit,
    user_definition,
)
from lp_sweep.trials.kinds import IMITATE, KINDS
from lp_sweep.trials.model.familytable import FAMILIES, family_of
from lp_sweep.trials.spec.autorecipe import enough_epochs
from lp_sweep.trials.spec.feedforward import NONE
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition

# rows of the official GLUE splits: train, dev (MNLI: matched and mismatched)
_GLUE_ROWS = {
    "sst2": (67349, 872),
    "mnli": (392702, 19647),
    "qnli": (104743, 5463),
    "qqp": (363846, 40430),
    "stsb": (5749, 1500),
    "rte": (2490, 277),
    "mrpc": (3668, 408),
    "cola": (8551, 1043),
    "wnli": (635, 71),
}


class TaskInput(NamedTuple):
    """A task as the plan and the workers need it."""

    name: str
    definition: TaskDefinition
    source: TaskSource
    fingerprint: str
    train_rows: int
    dev_rows: int
    asked: str | None = None  # of a hub data set: the revision that the user wrote
    why_not_pinned: str | None = None
    unlabelled: str = ""  # the fingerprint of the rows for students; empty: none
    unlabelled_rows: int = 0
    loss: str = ""  # of an embedding, as in TrialSpec
    # the rows that are set aside, in place of the dev set: no part of `source`, which trials read
    test: TaskSource | None = None
    test_fingerprint: str = ""

    @property
    def pinned(self) -> bool:
        """Whether its rows can't change."""
        return self.source.dataset is None or is_commit(self.source.revision)


class NeededInputs(NamedTuple):
    """The inputs of the missing work."""

    models: list[ModelInput]
    tasks: list[TaskInput]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepInputs:
    """A sweep file with its inputs found."""

    spec: SweepSpec
    document: Document
    models: tuple[ModelInput, ...]  # in the file's order, as spec.models
    tasks: dict[str, TaskInput]  # in the file's order
    recipe: Recipe
    teachers: Mapping[str, ModelInput] = field(default_factory=dict)  # not among the models
    notes: list[str] = field(default_factory=list)
    manifest: Manifest | None = None
    manifest_file: Path | None = None  # which may not exist

    @property
    def name(self) -> str:
        return self.spec.name

    def finds_recipe(self, task: str) -> bool:
        """Whether a measurement finds the recipe of a task. Not of an embedding, for which the full
        model needs no training."""
        return bool(self.spec.recipe.automatic) and not self.tasks[task].definition.embeds

    def expected_recipe(self, rows: int) -> Recipe:
        """The recipe for so many train rows, before a measurement has found its learning rate."""
        if "epochs" not in self.spec.recipe.automatic:
            return self.recipe
        return replace(self.recipe, epochs=enough_epochs(rows, self.recipe.batch_size))

    @property
    def all_models(self) -> tuple[ModelInput, ...]:
        """The models and the teachers."""
        return (*self.models, *self.teachers.values())


def resolve(
    file: SweepFile,
    *,
    data_dir: Path | None = None,
    offline: bool = False,
    manifest: Path | None = None,
    pins: Pins | None = None,
) -> SweepInputs:
    """Finds every model and data set. Raises SpecError or PreflightError with `file:line`.

    data_dir (GLUE in the layout <task>/train.parquet) overrides the file's own `data_dir`.
    manifest: the pinned revisions, default is next to the sweep file. pins: another way to find
    revisions. A revision that can't be pinned now is noted; `run` refuses it.
    """
    spec, document = file.spec, file.document
    if data_dir is None and spec.data_dir is not None:
        with _at(document, "data_dir"):
            data_dir = file.folder / expanded(spec.data_dir)
    manifest = manifest or manifest_path(file)
    held = read_manifest(manifest) if pins is None else None
    pins = pins or Pins(held, offline=offline)
    models = []
    for index, entry in enumerate(spec.models):
        with _at(document, "models", index):
            models.append(
                find_model(
                    entry.id,
                    revision=entry.revision,
                    layers=entry.layers,
                    folder=file.folder,
                    pins=pins,
                    known=file.models,
                )
            )
    _check_models(spec, document, models)
    tasks = {}
    for index, task in enumerate(spec.tasks):
        with _at(document, "tasks", index):
            found = _find_task(task, data_dir, file.folder.absolute(), pins, models)
            if task.unlabelled and spec.has_students:
                path = file.folder.absolute() / expanded(task.unlabelled)
                source = replace(found.source, unlabelled=str(path))
                fingerprint = unlabelled_fingerprint(source, found.definition)
                found = found._replace(
                    source=source, unlabelled=fingerprint, unlabelled_rows=_count(path)
                )
            tasks[found.name] = found
    with _at(document, "distill"):
        teachers = {name: find_teacher(name, file.folder, pins) for name in spec.teachers}
    unpinned = [
        f"{what} {item.name!r} is not pinned to a commit yet ({item.why_not_pinned}). `run` asks "
        "the hub for the commit, which also determines the final identifiers of the trials"
        for what, items in (("model", models), ("task", tasks.values()))
        for item in items
        if not item.pinned
    ]
    kept = [task.name for task in tasks.values() if task.definition.embeds]
    if kept and spec.recipe.automatic:
        unpinned.append(
            f"recipe: auto finds nothing for {listed(kept)}, whose full model needs no training. "
            f"Pruned networks learn with the defaults: {_usual(spec.recipe.automatic)}"
        )
    return SweepInputs(
        spec=spec,
        teachers=teachers,
        document=document,
        models=tuple(models),
        tasks=tasks,
        recipe=spec.recipe.to_recipe(),
        notes=[*file.notes, *unpinned],
        manifest=held,
        manifest_file=manifest,
    )


def _usual(keys: Iterable[str]) -> str:
    return ", ".join(f"{key} {getattr(Recipe(), key):g}" for key in keys)


@contextlib.contextmanager
def _at(document: Document, *location: str | int) -> Iterator[None]:
    """Puts `file:line` before errors inside. A missing input becomes a PreflightError."""
    try:
        yield
    except LpSweepError as error:
        kind = PreflightError if isinstance(error, TrialError) else type(error)
        raise kind(f"{document.where(location)}: {short(str(error), 1000)}") from None


def _check_models(spec: SweepSpec, document: Document, models: Sequence[ModelInput]) -> None:
    """Raises SpecError for what these models can't do."""
    with _at(document, "recipe", "freeze"):
        deepest = max(model.depth for model in models)
        if absent := sorted(layer for layer in spec.recipe.freeze.layers if layer > deepest):
            raise SpecError(
                f"freeze: no model has a layer {absent[0]}; the deepest has {deepest}. Layers are "
                "counted from 1, next to the embeddings."
            )
    speed_length = spec.measure.speed_length if spec.measure.speed else None
    for section, key, length in (
        ("recipe", "max_length", spec.recipe.max_length),
        ("measure", "speed_length", speed_length),
    ):
        with _at(document, section, key):
            _check_length(f"{section}.{key}", length or 0, models)
    with _at(document, "bridge"):
        if spec.bridge != [NONE]:
            _check_bridges(models)


def _check_length(key: str, length: int, models: Iterable[ModelInput]) -> None:
    """Raises SpecError for rows longer than a model's table of positions."""
    for model in models:
        if model.longest_row is not None and length > model.longest_row:
            raise SpecError(
                f"{key} is {length}, but model {model.name!r} takes rows of at most "
                f"{model.longest_row} tokens. Set it to {model.longest_row} or less."
            )


def _check_bridges(models: Iterable[ModelInput]) -> None:
    """Raises SpecError for a family whose feed-forwards are unknown: a bridge merges into one."""
    for model in models:
        if model.family is not None and family_of(model.family).feed_forward is None:
            known = [name for name, family in FAMILIES.items() if family.feed_forward]
            raise SpecError(
                f"bridge: layers of {model.name} (model type {model.family!r}) can't be bridged. "
                f"Model types with bridges: {', '.join(known)}. Put it into its own sweep: sweeps "
                "over one store share their trials."
            )


def _find_task(
    entry: TaskEntry,
    data_dir: Path | None,
    folder: Path,
    pins: Pins,
    models: Sequence[ModelInput],
) -> TaskInput:
    """Relative paths start at `folder`."""
    asked = why_not = None
    embeds = KINDS[entry.kind].embeds
    if entry.is_glue:
        name = canonical_name(entry.name) or entry.name
        definition, source = TASKS[name].definition, glue_source(name, data_dir)
        asked = source.revision
    else:
        name = entry.name
        definition = user_definition(
            name,
            text=entry.text or (["text"] if entry.corpus and entry.train else []),
            label=entry.label,
            kind=entry.kind,
            metric=entry.metric,
            labels=entry.labels,
            positive=entry.positive,
            tune_thresholds=entry.tune_thresholds,
            group=entry.group,
            loss=None if embeds else entry.loss,
            **vectors_of(entry, models),
        )
        if entry.dataset is None:
            source = _with_rules(_files(entry, folder), entry)
        else:
            asked = entry.revision or DEFAULT_REVISION
            revision, why_not = pins.find("dataset", entry.dataset, entry.revision)
            source = _with_rules(_hub_source(entry, revision), entry)
    fingerprint = data_fingerprint(source, definition)
    test, test_fingerprint = None, ""
    if entry.test is not None:
        test = _set_aside(entry.test, source, folder)
        test_fingerprint = data_fingerprint(_rows_aside(test), definition)
    _refuse_one_for_both(name, source, test)
    return TaskInput(
        name,
        definition,
        source,
        fingerprint,
        *_rows(name, source),
        asked,
        why_not_pinned=why_not,
        loss="" if entry.loss in (None, IMITATE) or not embeds else entry.loss,
        test=test,
        test_fingerprint=test_fingerprint,
    )


def _set_aside(test: str, source: TaskSource, folder: Path) -> TaskSource:
    """The task's source with the rows of `test:` in place of the dev set."""
    if source.dataset is not None:
        return replace(source, splits={"train": source.splits["train"], TEST: test})
    path = str(folder / expanded(test))
    file_format(path)  # raises for an unknown one
    if QRELS in source.files:  # the other queries of the file are those of the dev set
        return replace(source, files=source.files | {QRELS: path}, skip_unjudged=True)
    return replace(source, files={"train": source.files["train"], TEST: path})


def _rows_aside(test: TaskSource) -> TaskSource:
    """The rows that are set aside alone."""
    files, splits = (
        {part: place for part, place in held.items() if part in (TEST, QRELS)}
        for held in (test.files, test.splits)
    )
    return replace(test, files=files, splits=splits)


def _with_rules(source: TaskSource, entry: TaskEntry) -> TaskSource:
    separator = entry.label_separator or ""
    return replace(source, drop_missing=entry.drop_missing, label_separator=separator)


def _hub_source(entry: TaskEntry, revision: str) -> TaskSource:
    """A `revision` that is no commit can be planned but not read."""
    if entry.train is not None or entry.dev is not None:
        raise SpecError(
            f"task {entry.name!r}: has both files and a hub data set. Keep one of them."
        )
    splits = {"train": entry.train_split, "validation": entry.dev_split}
    return TaskSource(dataset=entry.dataset, config=entry.config, revision=revision, splits=splits)


def _files(entry: TaskEntry, folder: Path) -> TaskSource:
    named = {"train": entry.train, "validation": entry.dev}
    named |= {CORPUS: entry.corpus, QRELS: entry.qrels, QUERIES: entry.queries}
    files = {part: str(folder / expanded(path)) for part, path in named.items() if path is not None}
    for path in files.values():
        file_format(path)  # raises for an unknown one
    return TaskSource(files=files, skip_unjudged=entry.unjudged == "skip")


def local_fingerprints(
    models: Iterable[ModelInput], tasks: Iterable[TaskInput]
) -> Iterator[tuple[str, str]]:
    """Names and fingerprints of local folders and files, as in a manifest."""
    yield from ((model.name, model.fingerprint) for model in models if not model.of_hub)
    for task in tasks:
        if not task.source.dataset:
            yield f"task {task.name}", task.fingerprint
            if task.test:
                yield f"test rows of task {task.name}", task.test_fingerprint
        if task.unlabelled:
            yield f"unlabelled texts of task {task.name}", task.unlabelled


def _refuse_one_for_both(name: str, source: TaskSource, test: TaskSource | None) -> None:
    """Raises SpecError if two sets of rows are one: the same place, or the same bytes."""
    splits = dict(source.files or source.splits)
    train = splits.pop("train", None)  # a search may have none
    dev = [splits[QUERIES]] if QUERIES in splits else [*splits.values()]
    pairs = [("train", "dev", train, place) for place in dev]
    if test is not None:
        [held] = (aside := _rows_aside(test)).files.values() or aside.splits.values()
        pairs += [("train", "test", train, held), ("dev", "test", splits.get(QRELS, dev[0]), held)]
    for one, other, first, second in pairs:
        if first and (how := _one_place(first, second, files=bool(source.files))):
            seen = "trained on" if one == "train" else "chosen on"
            raise SpecError(
                f"task {name!r}: its {one} and {other} sets {how}. The score would cover rows that "
                f"the network was {seen}. Give other rows for {other}."
            )


def _one_place(first: str, second: str, *, files: bool) -> str:
    """How two sets are one; empty: they are not."""
    if not files:
        return f"are one split, {second!r}" if first == second else ""
    if Path(first).resolve() == Path(second).resolve():
        return f"are one file, {second}"
    alike = _are_alike(parts_of(first), parts_of(second))
    return f"have the same content: {first}, {second}" if alike else ""


def _are_alike(parts: Sequence[Path], others: Sequence[Path]) -> bool:
    pairs = zip(parts, others, strict=False)
    return len(parts) == len(others) and all(filecmp.cmp(*pair, shallow=False) for pair in pairs)


def _rows(name: str, source: TaskSource) -> tuple[int, int]:
    """Rows to train on and to score, for the estimate of hours; 0 if unknown."""
    if not source.files:
        return _GLUE_ROWS.get(name, (0, 0))
    counts = {split: _count(Path(path)) for split, path in source.files.items()}
    if CORPUS in counts:
        texts = counts[CORPUS] + counts[QUERIES]
        return counts.get("train", counts[CORPUS]), texts
    return counts.pop("train", 0), sum(counts.values())


def _count(path: Path) -> int:
    """The rows of a file, by its lines or sentences: a cell of several lines counts as several."""
    kind = file_format(path)
    if kind == "parquet":
        return sum(int(pq.read_metadata(part).num_rows) for part in parts_of(path))
    if kind == "arrow":
        return int(read_file(str(path), column_names(str(path))[:1]).num_rows)
    with open_binary(path) as file:
        if kind in CONLL:
            return sum(not line.strip() for line in file)
        return max(0, sum(1 for _ in file) - (kind in ("csv", "tsv")))
