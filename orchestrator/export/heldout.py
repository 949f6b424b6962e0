"""Scores a network as it is shipped on the rows that its task set aside (`test:`), and the full
model beside it.

No trial reads these rows and nothing is chosen by them, so the score is not the best of several. It
is stored: the same artefact is not scored again, and another one is a further look at the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from lp_sweep.analysis.statistics.candidates import paired_interval
from lp_sweep.analysis.statistics.networks import Answers, Network
from lp_sweep.orchestrator.export.card import full_spec
from lp_sweep.orchestrator.export.choice import answers_in
from lp_sweep.orchestrator.export.forms import form_of
from lp_sweep.orchestrator.export.graphs import shipped_network
from lp_sweep.orchestrator.export.places import DevRows, Where, find_inputs, spec_of
from lp_sweep.orchestrator.export.trialfolder import network_folder
from lp_sweep.orchestrator.export.verify import HeldOutScore
from lp_sweep.orchestrator.inputs.resolve import TaskInput
from lp_sweep.orchestrator.options import ExportOptions
from lp_sweep.storage.errors import DivergedError, ExportError, LpSweepError
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.printable import metric_name, say
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import load_task, prompted
from lp_sweep.trials.data.tasks import TEST
from lp_sweep.trials.deploy.artefacts import GRAPHS, ShippedNetwork
from lp_sweep.trials.deploy.measure import Artefact, ArtefactMeasurement, Workload, measure
from lp_sweep.trials.device import pick_device
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import SILENT
from lp_sweep.trials.model.plainload import apart
from lp_sweep.trials.model.sentencefolder import read_sentence_folder
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json, held_out_id, trial_id
from lp_sweep.trials.spec.specs import ArtefactFormat, HeldOutSpec, TrialSpec, Vocabulary
from lp_sweep.trials.train.metrics import score
from lp_sweep.trials.worker.provenance import now
from lp_sweep.trials.worker.provenance import where as made_where

TABLE = "test_scores"
Record = Mapping[str, Any]


def held_out_score(
    record: Record,
    where: Where,
    form: tuple[ArtefactFormat, Vocabulary],
    extra_texts: str = "",
    ready: Artefact | None = None,
) -> HeldOutScore | None:
    """The stored score of the record's network in this form, or a new one; None for a task without
    `test:`. `extra_texts`: the fingerprint of those that the vocabulary was cut on. `ready`: the
    artefact, if it is made, whatever its id. Raises LpSweepError."""
    spec, store = spec_of(record), where.store
    task = _task(spec, where)
    if task is None:
        return None
    rows = task.test_fingerprint
    format, vocabulary = form
    own = HeldOutSpec(
        trial=record["trial_id"],
        test_fingerprint=rows,
        format=format,
        vocabulary=vocabulary,
        extra_texts=extra_texts,
    )
    full = _full(own, spec, record, store)
    both = dict.fromkeys(filter(None, (full, own)))  # its record first: the other names it
    if missing := [each for each in both if not store.find(TABLE, held_out_id(each))]:
        held = _test_rows(spec, task, offline=where.options.offline)
        say(f"scoring the test {kind_of(spec.task).scored_by} of {task.name}")
        made = replace(ready, id=held_out_id(own)) if ready else None
        _score_all(missing, full, held, made, where)
    (row,) = store.read(TABLE, held_out_id(own))
    return _told(row, spec, store)


def exported_score(
    record: Record,
    network: ShippedNetwork,
    extra_texts: str,
    options: ExportOptions,
    where: Where,
) -> HeldOutScore | None:
    """That of the smallest artefact of a folder that is being exported, the one that its program
    answers with. A failure costs no export."""
    format: ArtefactFormat = max(options.graphs, key=[*GRAPHS].index, default="torch")
    folder, file = network.home(options.vocabulary), GRAPHS.get(format)
    made = Artefact(id="", folder=folder, graph=folder / file if file else None)
    try:
        return held_out_score(record, where, (format, options.vocabulary), extra_texts, made)
    except LpSweepError as error:
        say(f"warning: the test rows were not scored: {error}")
        return None


def _task(spec: TrialSpec, where: Where) -> TaskInput | None:
    tasks = where.sweep.tasks.values() if where.sweep else ()
    for task in tasks:
        if task.test and (task.fingerprint, task.definition) == (spec.data_fingerprint, spec.task):
            return task
    return None


def _full(own: HeldOutSpec, spec: TrialSpec, record: Record, store: Store) -> HeldOutSpec | None:
    """The full model as torch, of the same seed if that was kept; None if none was."""
    known = store.read_all("trials", columns=("task", "seed")).rows.to_pylist()
    seeds = sorted({row["seed"] for row in known if row["task"] == record["task"]})
    whole = full_spec(spec, record["depth"])
    for seed in dict.fromkeys([spec.seed, *seeds]):
        trial = trial_id(replace(whole, seed=seed))
        full = HeldOutSpec(trial=trial, test_fingerprint=own.test_fingerprint)
        if full == own or has_network(store, trial):
            return full
    return None


def _told(row: Record, spec: TrialSpec, store: Store) -> HeldOutScore:
    base = row["baseline"]
    full = store.find(TABLE, base) if base and base != row["test_id"] else None
    return HeldOutScore(
        examples=row["test_examples"],
        unit=kind_of(spec.task).scored_by,
        metric=metric_name(spec.task.metric, spec.task.positive),
        score=100 * row["score"],
        full=100 * full[0]["score"] if full else None,
        **{name: row[name] for name in ("change", "low", "high", "look")},
    )


# -- the scores that the store lacks


class _Asked(NamedTuple):
    """A network to score, and the rows that score it. `full`: the full model's identifier."""

    spec: HeldOutSpec
    record: Record
    rows: DevRows
    full: str | None

    @property
    def id(self) -> str:
        return held_out_id(self.spec)

    @property
    def trial(self) -> TrialSpec:
        return spec_of(self.record)

    def artefact(self, scratch: Path, where: Where) -> Artefact:
        """Made as it is measured and exported. Raises LpSweepError."""
        folder, cut = scratch / self.id, scratch / f"{self.id}-cut"
        folder.mkdir()
        inputs = find_inputs(self.trial, self.record, where)
        found = network_folder(self.trial, self.record, inputs, where, folder)
        network = shipped_network(folder, cut, found, self.rows, inputs.source, where)
        graph = network.make(self.spec.format, self.spec.vocabulary)
        return Artefact(id=self.id, folder=network.home(self.spec.vocabulary), graph=graph)


def _score_all(
    missing: Sequence[HeldOutSpec],
    full: HeldOutSpec | None,
    rows: DevRows,
    ready: Artefact | None,
    where: Where,
) -> None:
    """Answers all rows with each of `missing`, and stores a record of each."""
    started, store, base = now(), where.store, held_out_id(full) if full else None
    asked = [_Asked(each, store.read("trials", each.trial)[0], rows, base) for each in missing]
    with TemporaryDirectory(prefix="lp-sweep-") as scratch:
        made = [
            ready if ready and each.id == ready.id else each.artefact(Path(scratch), where)
            for each in asked
        ]
        # onnxruntime has its CPU kernels everywhere
        device = pick_device("cpu" if any(each.graph for each in made) else "auto")
        found = measure(made, _workload(asked[0], made[0].folder, device))
    for each in asked:
        row = _scored(each, found[each.id], store) | made_where(device, started)
        store.put(TABLE, each.id, [row])


def _test_rows(spec: TrialSpec, task: TaskInput, *, offline: bool) -> DevRows:
    """All rows that the task set aside, without answers. Raises MissingInputError."""
    assert task.test is not None
    loaded = load_task(spec.task, task.test, offline=offline)
    split = loaded.dev[loaded.main_split]
    texts, none = prompted(spec.task, split, scored=True), np.empty(0)
    return DevRows(TEST, texts, split.labels, loaded.label_names, none, none, [])


def _workload(each: _Asked, folder: Path, device: torch.device) -> Workload:
    """Every row once, and no time for turns."""
    task = each.trial.task
    kind, texts = kind_of(task), each.rows.texts
    return Workload(
        texts=[apart(texts)] if kind.embeds else texts,
        singles=len(texts[0]),
        loads=form_of(task).loads,
        max_length=each.trial.recipe.max_length,
        pooling=[task.pooling] if kind.embeds else [],
        after=read_sentence_folder(folder).after,
        words=kind.words,
        device=str(device),
        threads=torch.get_num_threads(),
        seconds=0.0,
    )


_OF_TRIAL = (
    *("trial_id", "model", "model_fingerprint", "depth", "kept_layers", "removed_feed_forwards"),
    *("task", "data_fingerprint", "seed", "metric"),
)


def _scored(each: _Asked, measured: ArtefactMeasurement | str, store: Store) -> dict[str, Any]:
    """Stores the answers, and returns the columns of the record but for its place and time."""
    task, rows = each.trial.task, each.rows
    if isinstance(measured, str) or measured.answers is None:
        raise ExportError(f"{each.record['trial_id']} can't answer the test rows: {measured}")
    kind, (logits, places) = kind_of(task), measured.answers
    if kind.words:  # as `kinds` take them: (n, W, C)
        values, logits = logits, np.full((*rows.labels.shape, logits.shape[-1]), SILENT, np.float32)
        logits[places[:, 0], places[:, 1]] = values
    labels = np.repeat(rows.labels, kind.rows_each, axis=0)
    try:
        found = score(task, labels, logits, rows.label_names)[task.metric]
    except DivergedError as error:
        raise ExportError(f"answers of {each.record['trial_id']} are NaN or infinite") from error
    place = {"trial_id": each.id, "split": rows.split}
    stored = kind.stored(labels, logits, task.metric, rows.label_names)
    answers = [place | {"example": at, **answer} for at, answer in enumerate(stored)]
    store.put("predictions", each.id, answers)
    row = {
        "test_id": each.id,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(each.spec),
        **{name: each.record[name] for name in _OF_TRIAL},
        **{name: getattr(each.spec, name) for name in ("format", "vocabulary", "test_fingerprint")},
        "score": found,
        "test_examples": len(answers),
        "baseline": each.full,
    }
    if each.full == each.id:
        return row
    known = store.read_all(TABLE, columns=("test_id", "test_fingerprint", "baseline")).rows
    looks = [
        other["test_id"] != other["baseline"]
        for other in known.to_pylist()
        if other["test_fingerprint"] == each.spec.test_fingerprint
    ]
    return row | _change(each, found, store) | {"look": sum(looks) + 1}


def _change(each: _Asked, found: float, store: Store) -> dict[str, Any]:
    """Points against the full model, and their interval, paired by row."""
    whole = store.find(TABLE, each.full) if each.full else None
    if whole is None:
        return {}

    def read(network: Network) -> Answers:
        record = {**each.record, "epoch_metrics": [{"split": each.rows.split}]}
        return answers_in(record, network.metric, store.read("predictions", network.trial_id))

    metric, split = each.record["metric"], each.rows.split
    full = Network(whole[0]["test_id"], metric, split, 100 * whole[0]["score"])
    limits = paired_interval(full, Network(each.id, metric, split, 100 * found), read)
    change = 100 * (found - whole[0]["score"])
    return {"change": change, "low": limits["low"], "high": limits["high"]}
