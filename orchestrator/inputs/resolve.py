"""Finds the inputs of a checked sweep file: models with their depth, tasks with their data.

Reads the file system and the hub's small config files; imports no torch and no Ray.
"""

from __future__ import annotations

import contextlib
import filecmp
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from lp_sweep.orchestrator.inputs.hub import DEFAULT_REVISION, snapshot
from lp_sweep.orchestrator.inputs.models import ModelInput, Prompts, find_model, find_teacher
from lp_sweep.orchestrator.inputs.pins import Manifest, Pins, manifest_path, read_manifest
from lp_sweep.orchestrator.sweepfile.entries import TaskEntry
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.orchestrator.sweepfile.yamlfile import Document, Location
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError, TrialError
from lp_sweep.storage.places import expanded
from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.data.datasource import data_fingerprint, unlabelled_fingerprint
from lp_sweep.trials.data.formats import file_format, open_binary, parts_of
from lp_sweep.trials.data.readers import CONLL, column_names, read_file
from lp_sweep.trials.data.tasks import (
    CORPUS,
    QRELS,
    QUERIES,
    TASKS,
    TaskSource,
    canonical_name,
    glue_source,
    is_commit,
    user_definition,
)
from lp_sweep.trials.kinds import IMITATE, KINDS
from lp_sweep.trials.model.familytable import FAMILIES, family_of
from lp_sweep.trials.model.sentencefolder import MODULES, POOLING_KEYS, read_sentence_folder
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

    @property
    def pinned(self) -> bool:
        """Whether its rows can't change."""
        return self.source.dataset is None or is_commit(self.source.revision)


class NeededInputs(NamedTuple):
    """The inputs of the missing work."""

    models: list[ModelInput]
    tasks: list[TaskInput]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
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
) -> Sweep:
    """Finds every model and data set. Raises SpecError or PreflightError with `file:line`.

    data_dir (GLUE in the layout <task>/train.parquet) overrides the file's own `data_dir`.
    manifest: the pinned revisions, default is next to the sweep file. pins: another way to find
    revisions. A revision that can't be pinned now is noted; `run` refuses it.
    """
    spec, document = file.spec, file.document
    if data_dir is None and spec.data_dir is not None:
        with _at(document, ("data_dir",)):
            data_dir = file.folder / expanded(spec.data_dir)
    manifest = manifest or manifest_path(file)
    held = read_manifest(manifest) if pins is None else None
    pins = pins or Pins(held, offline=offline)
    models = []
    for index, entry in enumerate(spec.models):
        with _at(document, ("models", index)):
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
    with _at(document, ("recipe", "freeze")):
        _check_frozen(spec.recipe.freeze.layers, models)
    with _at(document, ("recipe", "max_length")):
        _check_length("recipe.max_length", spec.recipe.max_length, models)
    if spec.measure.speed and spec.measure.speed_length:
        with _at(document, ("measure", "speed_length")):
            _check_length("measure.speed_length", spec.measure.speed_length, models)
    with _at(document, ("bridge",)):
        if spec.bridge != [NONE]:
            _check_bridges(models)
    tasks = {}
    for index, task in enumerate(spec.tasks):
        with _at(document, ("tasks", index)):
            found = _find_task(task, data_dir, file.folder, pins, models)
            if task.unlabelled and spec.has_students:
                found = _with_unlabelled(found, file.folder.absolute() / expanded(task.unlabelled))
            tasks[found.name] = found
    with _at(document, ("distill",)):
        teachers = {name: find_teacher(name, file.folder, pins) for name in spec.teachers}
    return Sweep(
        spec=spec,
        teachers=teachers,
        document=document,
        models=tuple(models),
        tasks=tasks,
        recipe=spec.recipe.to_recipe(),
        notes=[*file.notes, *_unpinned(models, tasks.values())],
        manifest=held,
        manifest_file=manifest,
    )


def _check_frozen(layers: Iterable[int], models: Iterable[ModelInput]) -> None:
    """Raises SpecError for a layer that no model has."""
    deepest = max(model.depth for model in models)
    if absent := sorted(layer for layer in layers if layer > deepest):
        raise SpecError(
            f"freeze: no model has a layer {absent[0]}; the deepest has {deepest}. Layers are "
            "counted from 1, next to the embeddings."
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


def _check_length(key: str, length: int, models: Iterable[ModelInput]) -> None:
    """Raises SpecError for rows longer than a model's table of positions."""
    for model in models:
        if model.longest_row is not None and length > model.longest_row:
            raise SpecError(
                f"{key} is {length}, but model {model.name!r} takes rows of at most "
                f"{model.longest_row} tokens. Set it to {model.longest_row} or less."
            )


def _unpinned(models: Iterable[ModelInput], tasks: Iterable[TaskInput]) -> list[str]:
    return [
        f"{what} {item.name!r} is not pinned to a commit yet ({item.why_not_pinned}). `run` asks "
        "the hub for the commit, which also determines the final identifiers of the trials"
        for what, items in (("model", models), ("task", tasks))
        for item in items
        if not item.pinned
    ]


@contextlib.contextmanager
def _at(document: Document, location: Location) -> Iterator[None]:
    """Puts `file:line` before errors inside. A missing input becomes a PreflightError."""
    try:
        yield
    except TrialError as error:
        raise PreflightError(f"{document.where(location)}: {short(str(error), 1000)}") from None
    except LpSweepError as error:
        raise type(error)(f"{document.where(location)}: {short(str(error), 1000)}") from None


def _vectors(entry: TaskEntry, models: Sequence[ModelInput]) -> dict[str, Any]:
    """How texts become vectors and how these are compared: from the task, else from the models'
    folders. Raises SpecError where these differ."""
    kind, own = KINDS[entry.kind], entry.prompts
    if not kind.embeds:
        return {}

    def agreed(key: str, what: str, of: Callable[[ModelInput], str]) -> str:
        ways = {of(model): model.name for model in models}
        if len(ways) > 1:
            made = ", ".join(f"{name} {shown(way)}" for way, name in ways.items())
            raise SpecError(
                f"task {entry.name!r}: the models {what} in different ways ({made}). Write "
                f"`{key}:` in the task, or put each model into its own sweep."
            )
        return next(iter(ways))

    def prompt(of: Callable[[Prompts], str]) -> str:
        if own is not None:
            return of(Prompts(own.query, own.document))
        return agreed("prompts", "prompt", lambda model: of(model.prompts(search=kind.searches)))

    similarity = entry.similarity or agreed(
        "similarity", "are compared", lambda model: model.similarity
    )
    pooling = entry.pooling or agreed("pooling", "pool", lambda model: model.pooling)
    prompts = Prompts(prompt(lambda each: each.query), prompt(lambda each: each.document))
    for model in models:
        problem = _hub_problem(model, entry) or _vector_problem(model, pooling, prompts)
        if problem:
            raise SpecError(
                f"task {entry.name!r}: the vectors of {model.name} can't be made: {problem}"
            )
    return {
        "pooling": pooling,
        "similarity": "" if similarity == "cosine" else similarity,
        "query_prompt": prompts.query,
        "document_prompt": prompts.document,
    }


def _hub_problem(model: ModelInput, entry: TaskEntry) -> str | None:
    """Why a cached model of the hub would be scored otherwise than Sentence Transformers does: its
    modules are not read, since a machine that has not fetched them would plan other trials."""
    if not model.of_hub:
        return None
    found = read_sentence_folder(snapshot("model", model.name, model.revision or ""))
    remedy = f"Name a downloaded folder: `hf download {model.name} --local-dir model`"
    if found.changing or found.problem:
        why = found.problem or f"it has {listed([module.name for module in found.changing])}"
        return f"{why}, and modules are not looked up for models on the hub. {remedy}."
    if entry.pooling is None and found.pooling != ("mean",):
        pools, only = f"its pooling is {listed(found.pooling)}", found.pooling[0]
        stated = len(found.pooling) == 1 and only in POOLING_KEYS
        how = f", or write `pooling: {only}` in the task" if stated else ""
        return f"{pools}, which is not looked up for models on the hub. {remedy}{how}."
    return None


def _vector_problem(model: ModelInput, pooling: str, prompts: Prompts) -> str | None:
    """Why a sweep can't make the vectors that Sentence Transformers makes of the model's folder."""
    if model.vector_problem:
        return (
            f"{model.vector_problem}. To score its encoder alone, name a copy of the folder "
            f"without {MODULES} and write `pooling: mean`."
        )
    if pooling not in POOLING_KEYS or (model.modules and "+" in model.pooling):
        alone = f"name a copy of the folder without {MODULES}" if model.modules else ""
        return (
            f"its pooling is {shown(model.pooling)}, and a sweep's is one of "
            f"{', '.join(POOLING_KEYS)}. To score it by the mean of its tokens, "
            f"{alone or 'write `pooling: mean` in the task'}."
        )
    if any(prompts) and not model.includes_prompt:
        return (
            "it pools without the tokens of the prompt (include_prompt: false), and a sweep with "
            "them. Write `prompts: {query: '', document: ''}` in the task to score it without."
        )
    return None


def _find_task(
    entry: TaskEntry,
    data_dir: Path | None,
    folder: Path,
    pins: Pins,
    models: Sequence[ModelInput],
) -> TaskInput:
    revision, why_not = entry.revision, None
    if entry.is_glue:
        name = canonical_name(entry.name) or entry.name
        definition, source = TASKS[name].definition, glue_source(name, data_dir)
    else:
        name = entry.name
        if entry.dataset is not None:
            revision, why_not = pins.find("dataset", entry.dataset, entry.revision)
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
            loss=None if KINDS[entry.kind].embeds else entry.loss,
            **_vectors(entry, models),
        )
        source = _source(entry, revision, folder.absolute())
    fingerprint, embeds = data_fingerprint(source, definition), KINDS[entry.kind].embeds
    _refuse_one_for_both(name, source)
    asked = entry.revision or DEFAULT_REVISION if entry.dataset else source.revision
    return TaskInput(
        name,
        definition,
        source,
        fingerprint,
        *_rows(name, source),
        asked,
        why_not_pinned=why_not,
        loss="" if entry.loss in (None, IMITATE) or not embeds else entry.loss,
    )


def _source(entry: TaskEntry, revision: str | None, folder: Path) -> TaskSource:
    """Relative paths start at `folder`. A `revision` that is no commit can be planned but not read.
    Does not look for files. Raises SpecError for a task with files and a data set."""
    if entry.dataset is not None:
        if entry.train is not None or entry.dev is not None:
            raise SpecError(
                f"task {entry.name!r}: has both files and a hub data set. Keep one of them."
            )
        splits = {"train": entry.train_split, "validation": entry.dev_split}
        return TaskSource(
            dataset=entry.dataset, config=entry.config, revision=revision, splits=splits
        )
    named = {"train": entry.train, "validation": entry.dev}
    named |= {CORPUS: entry.corpus, QRELS: entry.qrels, QUERIES: entry.queries}
    files = {part: str(folder / expanded(path)) for part, path in named.items() if path is not None}
    for path in files.values():
        file_format(path)
    return TaskSource(files=files, skip_unjudged=entry.unjudged == "skip")


def _with_unlabelled(task: TaskInput, path: Path) -> TaskInput:
    source = replace(task.source, unlabelled=str(path))
    fingerprint = unlabelled_fingerprint(source, task.definition)
    return task._replace(source=source, unlabelled=fingerprint, unlabelled_rows=_count(path))


def local_fingerprints(
    models: Iterable[ModelInput], tasks: Iterable[TaskInput]
) -> Iterator[tuple[str, str]]:
    """Names and fingerprints of local folders and files, as in a manifest."""
    yield from ((model.name, model.fingerprint) for model in models if not model.of_hub)
    for task in tasks:
        if not task.source.dataset:
            yield f"task {task.name}", task.fingerprint
        if task.unlabelled:
            yield f"unlabelled texts of task {task.name}", task.unlabelled


def _refuse_one_for_both(name: str, source: TaskSource) -> None:
    """Raises SpecError if a dev split is the train split: the same place, or the same bytes."""
    splits = dict(source.files or source.splits)
    train = splits.pop("train", None)
    if train is None:  # the corpus
        return
    for other in [splits[QUERIES]] if QUERIES in splits else splits.values():
        if source.files and _are_equal(train, other):
            same = Path(train).resolve() == Path(other).resolve()
            how = f"are one file, {other}" if same else f"have the same content: {train}, {other}"
        elif other == train:
            how = f"are one split, {other!r}"
        else:
            continue
        raise SpecError(
            f"task {name!r}: its train and dev sets {how}. The score would cover rows that the "
            "network was trained on. Give other rows for dev."
        )


def _are_equal(one: str, other: str) -> bool:
    """Whether the same files, or files with the same bytes, are behind two paths; also a link."""
    sides = parts_of(one), parts_of(other)
    return len(sides[0]) == len(sides[1]) and all(
        filecmp.cmp(a, b, shallow=False) for a, b in zip(*sides, strict=True)
    )


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
