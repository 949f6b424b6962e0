"""Finds the model and the dev rows of a stored record, to export it or to train it again.

A record names both by content or commit, not by place. The search goes through the sweep file, a
folder of GLUE data, the hub, and what a run on a cluster left in the store. The fingerprints must
equal the record's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub import constants, hf_hub_download

from lp_sweep.orchestrator.inputs.resolve import SweepInputs
from lp_sweep.orchestrator.options import ExportOptions, MeasureOptions
from lp_sweep.storage import shipped
from lp_sweep.storage.errors import ExportError, LpSweepError, PreflightError, StoreError
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.places import node_folder
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import (
    data_fingerprint,
    load_task,
    prompted,
    rules_of,
    unlabelled_fingerprint,
    unlabelled_rows,
)
from lp_sweep.trials.data.tasks import TaskSource, canonical_name, glue_source
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.specs import TaskDefinition, TrialSpec, trial_spec_from_canonical
from lp_sweep.trials.worker.job import Job, ModelPlace, Place, TaskPlace

HUB = "hub:"


class Where(NamedTuple):
    """Where inputs may be, apart from the hub. `sweep`: that of the sweep file, if there is one."""

    options: ExportOptions | MeasureOptions
    store: Store
    sweep: SweepInputs | None = None

    @property
    def cache_dir(self) -> Path:
        return node_folder(self.options.cache_dir)


def spec_of(record: Mapping[str, Any]) -> TrialSpec:
    """Reads a record's specification. Raises StoreError if it has none that matches."""
    try:
        spec = trial_spec_from_canonical(record["spec"])
    except (KeyError, TypeError, ValueError):
        spec = None
    if spec is None or trial_id(spec) != record["trial_id"]:
        raise StoreError(
            f"the record of {record['trial_id']} does not say what the trial was: it was written "
            "by another version of lp-sweep. Run the sweep again, and export the new trial."
        )
    return spec


def model_place(record: Mapping[str, Any], where: Where) -> ModelPlace | None:
    """None if no place is known."""
    print_ = record["model_fingerprint"]
    place = ModelPlace(record["model"], "", None, record["depth"])
    for model in where.sweep.models if where.sweep else ():
        if model.fingerprint == print_:
            return place._replace(path=model.path, revision=model.revision)
    if print_.startswith(HUB):
        path, _, revision = print_.removeprefix(HUB).rpartition("@")
        return place._replace(path=path, revision=revision)
    folder = _shipped(where, print_)
    return place._replace(path=str(folder)) if folder else None


def task_source(spec: TrialSpec, record: Mapping[str, Any], where: Where) -> TaskSource | None:
    """None if no place is known."""
    print_ = spec.data_fingerprint
    tasks = where.sweep.tasks.values() if where.sweep else ()
    alike = [task for task in tasks if (task.fingerprint, task.definition) == (print_, spec.task)]
    if alike:
        return max(alike, key=lambda task: task.unlabelled == spec.unlabelled).source
    if found := hub_source(print_):
        return found
    if (glue := canonical_name(record["task"])) and where.options.data_dir:
        found = glue_source(glue, where.options.data_dir)
    elif folder := _shipped(where, print_):  # train first, then the dev splits, the main one first
        paths = sorted(folder.iterdir(), key=lambda path: (path.stem != "train", path.stem))
        files = {path.stem: str(path) for path in paths}
        found = TaskSource(files=files, **rules_of(print_))
    return found if found and data_fingerprint(found, spec.task) == print_ else None


class RecordInputs(NamedTuple):
    """The places of a record's model and rows. `model` None: unknown, but its network was kept."""

    model: ModelPlace | None
    source: TaskSource

    @property
    def model_folder(self) -> str | None:
        return self.model.path if self.model else None

    def job(self, spec: TrialSpec, record: Mapping[str, Any], where: Where) -> Job:
        """The trial as a job for a worker. Raises PreflightError if its model is not found."""
        if self.model is None:
            raise _nowhere("model", record["model"], record)
        return Job(
            id=record["trial_id"],
            spec=spec,
            model=self.model,
            task=TaskPlace(record["task"], self.source),
            unlabelled={spec.unlabelled: self.source.unlabelled} if spec.unlabelled else {},
            place=Place(cache_dir=where.cache_dir, offline=where.options.offline),
        )


def find_inputs(spec: TrialSpec, record: Mapping[str, Any], where: Where) -> RecordInputs:
    """Finds both before a network is loaded or trained. Raises PreflightError if the dev rows are
    not found, or the model of a network that has to be trained again."""
    model, source = model_place(record, where), task_source(spec, record, where)
    if source is None:
        raise _nowhere("data of task", record["task"], record)
    lacks = None if model else ("model", record["model"])
    if spec.unlabelled and unlabelled_fingerprint(source, spec.task) != spec.unlabelled:
        lacks = lacks or ("unlabelled texts of task", record["task"])
    if lacks and not has_network(where.store, record["trial_id"]):
        raise _nowhere(*lacks, record)
    return RecordInputs(model, source)


def _nowhere(what: str, name: str, record: Mapping[str, Any]) -> LpSweepError:
    return PreflightError(
        f"the {what} {name!r} of {record['trial_id']} is known by its content alone, and nothing "
        "here has that content. Name the sweep file that it was run with, as it was then: --file "
        "sweep.yaml (or --file quickstart; for GLUE files --data-dir FOLDER)."
    )


def hub_source(print_: str) -> TaskSource | None:
    """The inverse of `data_fingerprint` for a data set of the hub; None for files."""
    if not print_.startswith(HUB):
        return None
    dataset, _, rest = print_.removeprefix(HUB).partition("#{")[0].rpartition("@")
    revision, config, splits = rest.split(":", 2)
    named = dict(pair.split("=", 1) for pair in splits.split(","))
    place: dict[str, Any] = {"dataset": dataset, "config": config or None, "revision": revision}
    return TaskSource(**place, splits=named, **rules_of(print_))


def _shipped(where: Where, print_: str) -> Path | None:
    """Fetches files that a run left in the store. Raises PreflightError if they can't be copied."""
    try:
        return shipped.fetch(where.store, print_, where.cache_dir)
    except OSError as error:
        raise PreflightError(
            f"can't copy the sweep's files to {where.cache_dir}: {error}. Free space there or name "
            "another --cache-dir."
        ) from error


def model_file(print_: str, folder: str | None, name: str, *, offline: bool) -> Path | None:
    """A small file next to a model's weights, in its `folder` or on the hub; None if not found."""
    if not print_.startswith(HUB):
        path = Path(folder, name) if folder else None
        return path if path and path.is_file() else None
    repo_id, _, revision = print_.removeprefix(HUB).rpartition("@")
    local = offline or constants.HF_HUB_OFFLINE
    try:
        return Path(hf_hub_download(repo_id, name, revision=revision, local_files_only=local))
    except Exception:  # errors of three libraries; an export without it is better than none
        return None


class RetrievedNetwork(NamedTuple):
    """The record and the predictions of a network in a folder: the stored ones, or others if it was
    trained again. `another`: a sentence if it then is not quite the record's network."""

    record: Mapping[str, Any]
    predictions: list[dict[str, Any]]
    retrained: bool = False
    another: str | None = None


class DevRows(NamedTuple):
    """The main dev split, n examples in its order."""

    split: str
    texts: tuple[list[str], ...]  # one or two columns
    labels: np.ndarray  # (n,); for a search its judgements
    label_names: tuple[str, ...]  # () for regression
    predicted: np.ndarray  # (n,)
    logits: np.ndarray  # (n, classes) float32; of rows of unequal length one after the other
    tallies: list[list[float] | None]


def dev_rows(
    spec: TrialSpec,
    record: Mapping[str, Any],
    predictions: Sequence[Mapping[str, Any]],
    source: TaskSource,
    *,
    offline: bool,
) -> DevRows:
    """Reads the rows and joins the stored `predictions`. Raises MissingInputError if the data can't
    be read, ExportError if the two don't belong together."""
    recipe = spec.recipe
    task = load_task(
        spec.task,
        source,
        limit_train=recipe.limit_train,
        limit_dev=recipe.limit_dev,
        offline=offline,
    )
    split = task.dev[task.main_split]
    said = sorted(
        (row for row in predictions if row["split"] == task.main_split),
        key=lambda row: row["example"],
    )
    labels = np.array([row["label"] for row in said], np.float64)
    read = np.asarray(kind_of(spec.task).stored_labels(split.labels), np.float64)
    if not np.array_equal(labels, read):
        raise ExportError(
            f"the stored predictions of {record['trial_id']} are not of the dev rows of "
            f"{record['task']!r} as they are read here: other labels. Nothing was published."
        )
    return DevRows(
        task.main_split,
        prompted(spec.task, split, scored=True),
        split.labels,
        task.label_names,
        np.array([row["prediction"] for row in said]),
        kind_of(spec.task).restored(split.labels, [row["scores"] for row in said]),
        [row["tally"] for row in said],
    )


def vocabulary_texts(spec: TrialSpec, source: TaskSource, where: Where) -> list[Any]:
    """The texts that a vocabulary is cut on: all train rows of the task, whatever `limit_train` is,
    the files of --texts, and its prompts. Never the dev rows. Raises MissingInputError."""
    task = load_task(spec.task, source, offline=where.options.offline)
    more = (unlabelled_rows(path, spec.task) for path in where.options.texts)
    texts = [text for text in (spec.task.query_prompt, spec.task.document_prompt) if text]
    for split in (task.train, *more):
        for column in prompted(spec.task, split, scored=False):
            texts += column
    return texts


def extra_texts(definition: TaskDefinition, paths: Sequence[str]) -> str:
    """The fingerprints of files of texts. Raises MissingInputError, as for a column that is not
    there."""
    sources = (TaskSource(unlabelled=path) for path in paths)
    return " ".join(sorted({unlabelled_fingerprint(source, definition) for source in sources}))
