"""Measures the networks of a task as they are shipped, and stores a record of each artefact.

A network is the one that an export would publish. The full model as torch takes part in every
session, since times compare only within one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnxruntime
import torch

from lp_sweep.orchestrator.export.forms import form_of
from lp_sweep.orchestrator.export.graphs import shipped_network
from lp_sweep.orchestrator.export.places import DevRows, Where, dev_rows, find_inputs, spec_of
from lp_sweep.orchestrator.export.trialfolder import network_folder
from lp_sweep.orchestrator.inputs.checks import cores
from lp_sweep.storage.errors import (
    DivergedError,
    ExportError,
    LpSweepError,
    PreflightError,
    SpecError,
    lines_of,
)
from lp_sweep.storage.printable import layers, say
from lp_sweep.storage.store import Store
from lp_sweep.trials.deploy.artefacts import ShippedNetwork
from lp_sweep.trials.deploy.measure import Artefact, ArtefactMeasurement, Workload, measure
from lp_sweep.trials.deploy.runner import ArtefactAnswers
from lp_sweep.trials.device import device_name, pick_device
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import SILENT
from lp_sweep.trials.model.plainload import apart
from lp_sweep.trials.model.sentencefolder import read_sentence_folder
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json, deployment_id
from lp_sweep.trials.spec.specs import DeploymentSpec, HeldOutSpec, TaskDefinition, TrialSpec
from lp_sweep.trials.train.metrics import score
from lp_sweep.trials.worker.provenance import now
from lp_sweep.trials.worker.provenance import where as made_where

TABLE = "deployments"
_AT_ONCE = 4  # processes, each with a network in memory
_Made = TypeVar("_Made")


class Machine(NamedTuple):
    """Where networks are measured."""

    device: torch.device
    threads: int
    beside_gpu: bool = False  # a CPU, since the GPU can't run all forms

    @classmethod
    def of(cls, named: str, threads: int, formats: Sequence[str]) -> Machine:
        """`auto` is a GPU only if it runs all forms: those of one task are compared on one device.
        ONNX Runtime multiplies 8-bit numbers on CPUs alone, and its usual package has no CUDA.
        Raises SpecError or PreflightError for a device that is not here."""
        try:
            found = pick_device(named)
        except (LpSweepError, RuntimeError):  # torch can't read it
            raise SpecError(f"--device {named}: auto, cpu, cuda, or a GPU: cuda:1.") from None
        number = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found.type == "cuda" and (found.index or 0) >= number:
            seen = f"{number} GPUs" if number else "no GPU"
            raise PreflightError(f"--device {named}: torch sees {seen} here. Use --device cpu.")
        on_gpu = {"torch", "onnx", "onnx-int4"}
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            on_gpu = {"torch"}
        if named == "auto" and found.type == "cuda" and not {*formats} <= on_gpu:
            return cls(torch.device("cpu"), threads, beside_gpu=True)
        return cls(found, threads)

    @property
    def name(self) -> str:
        return device_name(self.device)


class Deployment(NamedTuple):
    """A network in one format on one machine. `record`: of its trial."""

    record: Mapping[str, Any]
    spec: DeploymentSpec

    @classmethod
    def of(cls, record: Mapping[str, Any], on: Machine, **artefact: Any) -> Deployment:
        """`artefact`: fields of the specification; without any it is torch."""
        kind = on.device.type
        machine: Any = {"device_type": kind, "device_name": on.name, "threads": on.threads}
        return cls(record, DeploymentSpec(trial=record["trial_id"], **machine, **artefact))

    @property
    def id(self) -> str:
        return deployment_id(self.spec)

    @property
    def called(self) -> str:
        pieces = "" if self.spec.vocabulary == "full" else ", a cut vocabulary"
        return f"{layers(self.record['kept_layers'])} as {self.spec.format}{pieces}"


def measure_all(
    wanted: Sequence[Deployment],
    baseline: Deployment,
    on: Machine,
    seconds: float,
    where: Where,
    scratch: Path,
) -> list[dict[str, Any]]:
    """Measures these artefacts and the baseline in one session, with about `seconds` of turns for
    each. Stores and returns a record of each of `wanted`; one that fails now does not replace a
    record with a score. Raises LpSweepError if the baseline can't be measured."""
    started = now()
    full = scored_network(baseline.record, where, scratch)
    networks: dict[str, ScoredNetwork | str] = {baseline.spec.trial: full}  # or why there is none
    made: dict[str, Artefact | str] = {}
    ids = {each.id for each in wanted}
    for each in {each.id: each for each in (baseline, *wanted)}.values():
        say(f"making {each.called}")
        if (trial := each.spec.trial) not in networks:
            networks[trial] = _or_why(_network, each, where, scratch, full)
        made[each.id] = _or_why(_artefact, each, networks[trial], each.id in ids)
    whole = [artefact for artefact in made.values() if isinstance(artefact, Artefact)]
    work = workload(full.spec, full.rows, full.network.folder, on, seconds)
    found = {**made, **measure(whole, work)}
    base = found[baseline.id]
    if not isinstance(base, ArtefactMeasurement):
        raise ExportError(f"the full model can't be run as torch: {base}")
    session = {
        **{"session": uuid.uuid4().hex[:12], "baseline": baseline.id, "baseline_ms": base.ms},
        "dev_examples": len(full.rows.predicted),
        **_provenance(on, started),
    }
    rows = []
    # the baseline's own record first: the others name it
    for each in sorted(wanted, key=lambda each: each.id != baseline.id):
        columns = _stored_answers(each, networks[each.spec.trial], found[each.id], where.store)
        row = {"deployment_id": each.id} | identity(each.record, each.spec) | session | columns
        _store(each, row, where.store)
        rows.append(row)
    return rows


def _or_why(make: Callable[..., _Made], *given: Any) -> _Made | str:
    """What `make` returns, or why it fails: torch's exporter and onnxruntime raise many types."""
    try:
        return make(*given)
    except Exception as error:
        return lines_of(error)[0]


def _store(each: Deployment, row: Mapping[str, Any], store: Store) -> None:
    before = store.find(TABLE, each.id)
    if "error" in row and before is not None and before[0]["error"] is None:
        say(f"{each.called} can't be measured now, and its record stays: {row['error']}")
    else:
        store.put(TABLE, each.id, [row])


class ScoredNetwork(NamedTuple):
    """A network in a folder, and the rows that it is scored on."""

    network: ShippedNetwork
    spec: TrialSpec
    rows: DevRows


def scored_network(
    record: Mapping[str, Any], where: Where, scratch: Path, rows: DevRows | None = None
) -> ScoredNetwork:
    """Puts a trial's network into a folder as an export would. `rows`: to score it on, if not on
    its dev rows. Raises LpSweepError."""
    spec, folder = spec_of(record), scratch / record["trial_id"]
    folder.mkdir(parents=True)
    source = (inputs := find_inputs(spec, record, where)).source
    found = network_folder(spec, record, inputs, where, folder)
    if rows is None:
        stored = (found.record, found.predictions, source)
        rows = dev_rows(spec, *stored, offline=where.options.offline)
    cut = scratch / f"{folder.name}-task"
    return ScoredNetwork(shipped_network(folder, cut, found, rows, source, where), spec, rows)


def _network(each: Deployment, where: Where, scratch: Path, full: ScoredNetwork) -> ScoredNetwork:
    """With the dev rows of the full model. Raises LpSweepError, also if it was scored on others."""
    if _answered_texts(spec_of(each.record)) != _answered_texts(full.spec):
        raise ExportError(
            "it was trained with another recipe or other data than the full model: `lp-sweep table "
            "setups` lists them, and --setup chooses one"
        )
    return scored_network(each.record, where, scratch, full.rows)


def _answered_texts(spec: TrialSpec) -> tuple[object, ...]:
    """Equal for networks that answer the same texts, cut off at the same length."""
    recipe = spec.recipe
    return spec.task, spec.data_fingerprint, recipe.max_length, recipe.limit_dev


def _artefact(each: Deployment, own: ScoredNetwork | str, scored: bool) -> Artefact:
    """Raises why there is no network, and what `ShippedNetwork.make` raises."""
    if isinstance(own, str):
        raise ExportError(own)
    begun = time.perf_counter()
    graph = own.network.make(each.spec.format, each.spec.vocabulary)
    return Artefact(
        id=each.id,
        name=each.called,
        folder=own.network.home(each.spec.vocabulary),
        graph=graph,
        scored=scored,
        seconds=time.perf_counter() - begun,
    )


def workload(spec: TrialSpec, rows: DevRows, folder: Path, on: Machine, seconds: float) -> Workload:
    """These rows for the network in `folder`, and for all that answer the same texts."""
    kind = kind_of(spec.task)
    texts = [apart(rows.texts)] if kind.embeds else rows.texts
    return Workload(
        texts=texts,
        singles=len(kind.stored_labels(rows.labels)) if kind.searches else len(texts[0]),  # queries
        loads=form_of(spec.task).loads,
        max_length=spec.recipe.max_length,
        pooling=[spec.task.pooling] if kind.embeds else [],
        after=read_sentence_folder(folder).after,
        words=kind.words,
        device=str(on.device),
        threads=on.threads,
        seconds=seconds,
        at_once=min(_AT_ONCE, max(1, cores() // on.threads)),
    )


# -- the record


def _stored_answers(each: Deployment, own: Any, measured: Any, store: Store) -> dict[str, Any]:
    """Stores the answers to the dev set, and returns the columns of what was measured, or of why
    nothing was: then `measured` says so."""
    if isinstance(measured, str):
        return {"error": measured}
    columns: dict[str, Any] = measured._asdict()
    try:
        found = stored_score(each.id, own.spec.task, own.rows, columns.pop("answers"), store)
    except DivergedError:
        return {"error": "some of its answers are NaN or infinite"}
    cut = own.network.words_cut if each.spec.vocabulary == "task" else 0.0
    return columns | {"score": found, "words_cut": cut}


def stored_score(
    id: str, task: TaskDefinition, rows: DevRows, found: ArtefactAnswers, store: Store
) -> float:
    """Stores an artefact's answers to these rows under its id, and returns their score. Raises
    DivergedError if some are not finite."""
    kind, logits = kind_of(task), found.values
    if kind.words:  # as `kinds` take them: (n, W, C)
        logits = np.full((*rows.labels.shape, found.values.shape[-1]), SILENT, np.float32)
        logits[found.places[:, 0], found.places[:, 1]] = found.values
    # one for each answer: an embedding has two texts in a row
    labels = np.repeat(rows.labels, kind.rows_each, axis=0)
    scores = score(task, labels, logits, rows.label_names)
    place = {"trial_id": id, "split": rows.split}
    stored = kind.stored(labels, logits, task.metric, rows.label_names)
    answers = [place | {"example": index, **answer} for index, answer in enumerate(stored)]
    store.put("predictions", id, answers)
    return scores[task.metric]


_OF_TRIAL = (
    *("trial_id", "model", "model_fingerprint", "depth", "kept_layers", "removed_feed_forwards"),
    *("task", "data_fingerprint", "seed", "metric"),
)


def identity(record: Mapping[str, Any], spec: DeploymentSpec | HeldOutSpec) -> dict[str, Any]:
    """The columns that say which artefact a row is about. `record`: of its trial."""
    return {
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(spec),
        **{name: record[name] for name in _OF_TRIAL},
        "format": spec.format,
        "vocabulary": spec.vocabulary,
    }


def _provenance(on: Machine, started: datetime) -> dict[str, Any]:
    found = made_where(on.device, started)
    versions = {**dict(found["versions"]), "onnxruntime": onnxruntime.__version__}
    return found | {"device_name": on.name, "threads": on.threads, "versions": versions}
