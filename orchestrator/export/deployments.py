"""Measures the networks of a task as they are shipped, and stores a record of each artefact.

A network is the one that an export would publish. The full model as torch takes part in every
session, since times compare only within one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lp_sweep.orchestrator.export.forms import form_of
from lp_sweep.orchestrator.export.graphs import shipped_network
from lp_sweep.orchestrator.export.places import DevRows, Where, dev_rows, find_inputs, spec_of
from lp_sweep.orchestrator.export.trialfolder import network_folder
from lp_sweep.storage.errors import DivergedError, ExportError, lines_of
from lp_sweep.storage.printable import ranges, say
from lp_sweep.storage.store import Store
from lp_sweep.trials.deploy.artefacts import ShippedNetwork
from lp_sweep.trials.deploy.measure import Artefact, ArtefactMeasurement, Workload, measure
from lp_sweep.trials.device import device_name
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import SILENT
from lp_sweep.trials.model.sentencefolder import read_sentence_folder
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json, deployment_id
from lp_sweep.trials.spec.specs import DeploymentSpec, TrialSpec
from lp_sweep.trials.train.metrics import score
from lp_sweep.trials.worker.provenance import now
from lp_sweep.trials.worker.provenance import where as made_where

TABLE = "deployments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where networks are measured, and for how many seconds each takes turns."""

    device: torch.device
    threads: int
    seconds: float

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
        spec = DeploymentSpec(
            trial=record["trial_id"],
            device_type=on.device.type,
            device_name=on.name,
            threads=on.threads,
            **artefact,
        )
        return cls(record, spec)

    @property
    def id(self) -> str:
        return deployment_id(self.spec)

    @property
    def called(self) -> str:
        pieces = "" if self.spec.vocabulary == "full" else ", a cut vocabulary"
        return f"layers {ranges(self.record['kept_layers'])} as {self.spec.format}{pieces}"


class _Prepared(NamedTuple):
    """A network, with the dev rows that it is scored on."""

    network: ShippedNetwork
    spec: TrialSpec
    rows: DevRows

    @property
    def labels(self) -> np.ndarray:
        """One for each answer: an embedding has two texts in a row."""
        return np.repeat(self.rows.labels, kind_of(self.spec.task).rows_each, axis=0)


def measure_all(
    wanted: Sequence[Deployment], baseline: Deployment, on: Machine, where: Where, scratch: Path
) -> list[dict[str, Any]]:
    """Measures these artefacts and the baseline in one session, and stores a record of each of
    `wanted`, which is returned; what fails now does not replace a record with a score. Raises
    LpSweepError if the baseline can't be measured."""
    started, session = now(), uuid.uuid4().hex[:12]
    first = _prepared(baseline, where, scratch, None)
    prepared: dict[str, _Prepared | Exception] = {baseline.spec.trial: first}
    made: dict[str, Artefact] = {}
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    scored = {each.id for each in wanted}
    for each in [baseline, *(each for each in wanted if each.id != baseline.id)]:
        say(f"making {each.called}")
        begun = time.perf_counter()
        try:
            if each.spec.trial not in prepared:
                prepared[each.spec.trial] = _tried(each, where, scratch, first)
            made[each.id] = _artefact(each, prepared[each.spec.trial], scored=each.id in scored)
        except Exception as error:  # of torch's exporter and of onnxruntime there are many types
            failed[each.id] = lines_of(error)[0]
        seconds[each.id] = time.perf_counter() - begun
    if baseline.id in failed:
        raise ExportError(f"the full model can't be run: {failed[baseline.id]}")
    asked = _request(first, on)
    say(f"measuring on {on.name}: about {_minutes(len(made), asked)} of turns, after all answers")
    found = measure([*made.values()], asked)
    base = found[baseline.id]
    if isinstance(base, str):
        raise ExportError(f"the full model can't be run as torch: {base}")
    rows = []
    # the baseline's own record first: the others name it
    for each in sorted(wanted, key=lambda each: each.id != baseline.id):
        row = {
            **_identity(each),
            "session": session,
            "baseline": baseline.id,
            "baseline_ms": base.ms,
            "dev_examples": len(first.rows.predicted),
            **_place(on, started),
        }
        measured = failed.get(each.id) or found[each.id]
        own = prepared.get(each.spec.trial, first)
        whole = first if isinstance(own, Exception) else own
        row |= _outcome(each, measured, whole, where, seconds[each.id])
        if _stored(where.store, each, row):
            rows.append(row)
    return rows


def _stored(store: Store, each: Deployment, row: Mapping[str, Any]) -> bool:
    """Stores the record, unless it failed now and has a score from before."""
    before = store.find(TABLE, each.id)
    if "error" in row and before is not None and before[0]["error"] is None:
        say(f"{each.called} can't be measured now, and its record stays: {row['error']}")
        return False
    store.put(TABLE, each.id, [row])
    return True


def _minutes(artefacts: int, asked: Workload) -> str:
    seconds = artefacts * asked.seconds
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _tried(each: Deployment, where: Where, scratch: Path, full: _Prepared) -> _Prepared | Exception:
    """As `_prepared`; an error is that of every format of the network."""
    try:
        return _prepared(each, where, scratch, full)
    except Exception as error:
        return error


def _prepared(each: Deployment, where: Where, scratch: Path, full: _Prepared | None) -> _Prepared:
    """Puts the network into a folder as an export would, with the dev rows of the full model.
    Raises LpSweepError, also if it was scored on others."""
    spec = spec_of(each.record)
    if full is not None and _setup(spec) != _setup(full.spec):
        raise ExportError(
            "it was trained with another recipe or other data than the full model: `lp-sweep table "
            "setups` lists them, and --setup chooses one"
        )
    folder = scratch / each.spec.trial
    folder.mkdir()
    inputs = find_inputs(spec, each.record, where)
    found = network_folder(spec, each.record, inputs, where, folder).network
    if full is not None:
        rows = full.rows
    else:
        stored = (found.record, found.predictions, inputs.source)
        rows = dev_rows(spec, *stored, offline=where.options.offline)
    cut = scratch / f"{each.spec.trial}-task"
    network = shipped_network(folder, cut, found, rows, inputs.source, where)
    return _Prepared(network, spec, rows)


def _artefact(each: Deployment, own: _Prepared | Exception, *, scored: bool) -> Artefact:
    """Raises why there is no network, and what `ShippedNetwork.make` raises."""
    if isinstance(own, Exception):
        raise own
    format, vocabulary = each.spec.format, each.spec.vocabulary
    graph = own.network.make(format, vocabulary)
    return Artefact(id=each.id, folder=own.network.home(vocabulary), graph=graph, scored=scored)


def _setup(spec: TrialSpec) -> tuple[object, ...]:
    """Equal for networks that answer the same texts."""
    recipe = spec.recipe
    return spec.task, spec.data_fingerprint, recipe.max_length, recipe.limit_dev


def _request(first: _Prepared, on: Machine) -> Workload:
    network, spec, rows = first
    kind, texts = kind_of(spec.task), network.texts
    return Workload(
        texts=texts,
        singles=len(rows.predicted) if kind.searches else len(texts[0]),  # queries
        loads=form_of(spec.task).loads,
        max_length=spec.recipe.max_length,
        pooling=[spec.task.pooling] if kind.embeds else [],
        after=read_sentence_folder(network.folder).after,
        words=kind.words,
        device=str(on.device),
        threads=on.threads,
        seconds=on.seconds,
    )


# -- the record


def _outcome(
    each: Deployment,
    measured: ArtefactMeasurement | str,
    own: _Prepared,
    where: Where,
    making: float,
) -> dict[str, Any]:
    """The columns of what was found, or why there is nothing. Stores the answers first. `making`:
    seconds that it took to make the artefact."""
    definition = own.spec.task
    if not isinstance(measured, str):
        try:
            logits = _logits(own, measured)
            scored = score(definition, own.labels, logits, own.rows.label_names)
            where.store.put("predictions", each.id, [*_predictions(each.id, own, logits)])
        except DivergedError:
            measured = "some of its answers are NaN or infinite"
    if isinstance(measured, str):
        return {"error": measured, "seconds_total": making}
    return {
        **{name: getattr(measured, name) for name in _MEASURED},
        "score": scored[definition.metric],
        "words_cut": own.network.words_cut if each.spec.vocabulary == "task" else 0.0,
        "seconds_total": making + measured.seconds,
    }


_MEASURED = (
    *("pieces", "sha256", "bytes", "ms", "ms_p95", "tokenizer_ms", "texts_per_second"),
    *("rounds", "peak_memory_bytes", "others_busy_cores"),
)


def _logits(own: _Prepared, measured: ArtefactMeasurement) -> np.ndarray:
    """As `kinds` take them: for tags (n, W, C)."""
    assert measured.answers is not None
    values, places = measured.answers
    if not kind_of(own.spec.task).words:
        return values
    logits = np.full((*own.rows.labels.shape, values.shape[-1]), SILENT, np.float32)
    logits[places[:, 0], places[:, 1]] = values
    return logits


def _predictions(id_: str, own: _Prepared, logits: np.ndarray) -> Iterator[dict[str, Any]]:
    definition, rows = own.spec.task, own.rows
    stored = kind_of(definition).stored(own.labels, logits, definition.metric, rows.label_names)
    for index, found in enumerate(stored):
        yield {"trial_id": id_, "split": rows.split, "example": index, **found}


_OF_TRIAL = (
    *("trial_id", "model", "model_fingerprint", "depth", "kept_layers", "removed_feed_forwards"),
    *("task", "data_fingerprint", "seed", "metric"),
)


def _identity(each: Deployment) -> dict[str, Any]:
    return {
        "deployment_id": each.id,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(each.spec),
        **{name: each.record[name] for name in _OF_TRIAL},
        "format": each.spec.format,
        "vocabulary": each.spec.vocabulary,
    }


def _place(on: Machine, started: Any) -> dict[str, Any]:
    place = made_where(on.device, started)
    versions = dict(place["versions"])
    if (runtime := _runtime()) is not None:
        versions["onnxruntime"] = runtime
    return place | {"device_name": on.name, "threads": on.threads, "versions": versions}


def _runtime() -> str | None:
    """The version of onnxruntime, which has several packages."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
