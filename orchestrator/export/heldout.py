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
from typing import Any

import numpy as np
import torch

from lp_sweep.analysis.statistics.candidates import paired_interval
from lp_sweep.analysis.statistics.networks import Answers, Network
from lp_sweep.orchestrator.export.card import full_spec
from lp_sweep.orchestrator.export.choice import answers_in
from lp_sweep.orchestrator.export.deployments import (
    Machine,
    identity,
    scored_network,
    stored_score,
    workload,
)
from lp_sweep.orchestrator.export.places import DevRows, Where, spec_of
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
from lp_sweep.trials.deploy.measure import Artefact, ArtefactRun, run_each
from lp_sweep.trials.device import pick_device
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.spec.identity import held_out_id, trial_id
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.spec.specs import ArtefactFormat, HeldOutSpec, TrialSpec, Vocabulary
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
        say(f"{task.name}: scoring its test {kind_of(spec.task).scored_by}")
        made = replace(ready, id=held_out_id(own)) if ready else None
        _score_all(missing, full, held, made, where)
    (row,) = store.read(TABLE, held_out_id(own))
    asked = where.options
    within = asked.within if isinstance(asked, ExportOptions) and asked.best else None
    return _told(row, spec, store, within)


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


def _told(row: Record, spec: TrialSpec, store: Store, within: float | None) -> HeldOutScore:
    base = row["baseline"]
    full = store.find(TABLE, base) if base and base != row["test_id"] else None
    return HeldOutScore(
        examples=row["test_examples"],
        unit=kind_of(spec.task).scored_by,
        metric=metric_name(facts_of(spec.task.metric).label, spec.task.positive),
        score=100 * row["score"],
        full=100 * full[0]["score"] if full else None,
        **{name: row[name] for name in ("change", "low", "high", "look")},
        within=within,
    )


# -- the scores that the store lacks


def _score_all(
    missing: Sequence[HeldOutSpec],
    full: HeldOutSpec | None,
    rows: DevRows,
    ready: Artefact | None,
    where: Where,
) -> None:
    """Answers all rows with each of `missing`, and stores a record of each."""
    started, store, base = now(), where.store, held_out_id(full) if full else None
    records = {each.trial: store.read("trials", each.trial)[0] for each in missing}
    with TemporaryDirectory(prefix="lp-sweep-") as scratch:
        made = [
            ready
            if ready and ready.id == held_out_id(each)
            else _artefact(each, records[each.trial], rows, where, Path(scratch))
            for each in missing
        ]
        # onnxruntime has its CPU kernels everywhere
        device = pick_device("cpu" if any(each.graph for each in made) else "auto")
        on, spec = Machine(device, torch.get_num_threads()), spec_of(records[missing[0].trial])
        found = run_each(made, workload(spec, rows, made[0].folder, on, 0.0))
    for each, artefact in zip(missing, made, strict=True):
        row = _scored(each, records[each.trial], rows, found[artefact.id], base, store)
        store.put(TABLE, artefact.id, [row | made_where(device, started)])


def _test_rows(spec: TrialSpec, task: TaskInput, *, offline: bool) -> DevRows:
    """All rows that the task set aside, without answers. Raises MissingInputError."""
    assert task.test is not None
    loaded = load_task(spec.task, task.test, offline=offline)
    split = loaded.dev[loaded.main_split]
    texts, none = prompted(spec.task, split, scored=True), np.empty(0)
    return DevRows(TEST, texts, split.labels, loaded.label_names, none, none, [])


def _artefact(
    each: HeldOutSpec, record: Record, rows: DevRows, where: Where, scratch: Path
) -> Artefact:
    """Made as it is measured and exported. Raises LpSweepError."""
    id = held_out_id(each)
    network = scored_network(record, where, scratch / id, rows).network
    graph = network.make(each.format, each.vocabulary)
    return Artefact(id=id, folder=network.home(each.vocabulary), graph=graph)


def _scored(
    each: HeldOutSpec,
    record: Record,
    rows: DevRows,
    ran: ArtefactRun | str,
    base: str | None,
    store: Store,
) -> dict[str, Any]:
    """Stores the answers, and returns the columns of the record but for its place and time.
    `base`: the full model's identifier."""
    id, task = held_out_id(each), spec_of(record).task
    if isinstance(ran, str) or ran.answers is None:
        raise ExportError(f"{each.trial} can't answer the test rows: {ran}")
    try:
        found = stored_score(id, task, rows, ran.answers, store)
    except DivergedError as error:
        raise ExportError(f"answers of {each.trial} are NaN or infinite") from error
    row = {
        "test_id": id,
        **identity(record, each),
        "test_fingerprint": each.test_fingerprint,
        "score": found,
        "test_examples": len(kind_of(task).stored_labels(rows.labels)),
        "baseline": base,
    }
    if base == id:
        return row
    known = store.read_all(TABLE, columns=("test_id", "test_fingerprint", "baseline")).rows
    looks = [
        other["test_id"] != other["baseline"]
        for other in known.to_pylist()
        if other["test_fingerprint"] == each.test_fingerprint
    ]
    return row | _change(row, record, store) | {"look": sum(looks) + 1}


def _change(row: Record, record: Record, store: Store) -> dict[str, Any]:
    """Points against the full model, and their interval, paired by row."""
    whole = store.find(TABLE, row["baseline"]) if row["baseline"] else None
    if whole is None:
        return {}
    tested = {**record, "epoch_metrics": [{"split": TEST}]}

    def read(network: Network) -> Answers:
        return answers_in(tested, network.metric, store.read("predictions", network.trial_id))

    full, own = (
        Network(of["test_id"], row["metric"], TEST, 100 * of["score"]) for of in (whole[0], row)
    )
    limits = paired_interval(full, own, read)
    change = 100 * (row["score"] - whole[0]["score"])
    return {"change": change, "low": limits["low"], "high": limits["high"]}
