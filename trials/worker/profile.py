"""Takes measurements and makes their rows of PROFILES: the layers of a pre-trained network, the
layers of a network that a trial has just trained, and the speed of a network.

A measurement that fails is recorded as its own attempt; the trial's record is stored all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.spool import Outbox, Record
from lp_sweep.trials.data.batches import EVALUATION_BATCH, BatchSizes, whole_batch
from lp_sweep.trials.device import (
    forget_frames,
    free_memory,
    memory_errors,
    pick_device,
    precision_used,
    reproducible,
)
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import flat
from lp_sweep.trials.measures.pairs import RULE, Rule
from lp_sweep.trials.measures.registry import MEASURES
from lp_sweep.trials.measures.speed import Bystanders, Load, compare_networks
from lp_sweep.trials.measures.subject import Subject
from lp_sweep.trials.model.families import original_layers
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.modelfiles import go_offline, longest_row
from lp_sweep.trials.model.prune import load_pruned, parameter_counts
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.trials.spec.procedures import full_layers
from lp_sweep.trials.spec.specs import MAX_HALVINGS, TEACHER, ProfileSpec, SpeedSpec
from lp_sweep.trials.worker.fetch import needed_network
from lp_sweep.trials.worker.inputs import Inputs, load_inputs, load_other, with_rows_of
from lp_sweep.trials.worker.job import Failure, Job, Measure, attempt_row
from lp_sweep.trials.worker.provenance import now, where
from lp_sweep.trials.worker.resident import resident


def run_profile(job: Job, halvings: int = 0) -> dict[str, Any]:
    """`{"record": one row of PROFILES}`: a measurement of the pre-trained network."""
    spec = job.profile
    batches = BatchSizes.halved(whole_batch(spec), halvings)
    with reproducible(job.place.threads), memory_errors(batches.training):
        begun = _Begun(now(), time.perf_counter())
        inputs = load_inputs(job, spec, full_layers(job.model.depth), seed=spec.seed or 0)
        if spec.measure == TEACHER and not kind_of(spec.task).embeds:
            inputs = inputs._replace(model=_trained(job, inputs))
        row, logits = _taken(job, job.id, spec, inputs, halvings, lambda: inputs.model, begun)
        records = []
        if logits is not None:
            places = slice(None) if kind_of(spec.task).embeds else _places(job, inputs)
            records.append(_logits_record(job.id, logits[..., places]))
        return {"record": row, "records": records}


def _trained(job: Job, inputs: Inputs) -> PreTrainedModel:
    """The model with its own trained head. Raises MissingInputError."""
    config = inputs.model.config
    return load_pruned(
        job.model.path,
        kept_layers=None,
        num_labels=config.num_labels,
        problem_type=kind_of(job.profile.task).problem_type,
        seed=0,
        local_files_only=True,
        trained=True,
    )


def _places(job: Job, inputs: Inputs) -> list[int]:
    """The index of each of the task's classes in a teacher's logits. Raises MissingInputError."""
    wanted, named = inputs.encoded.label_names, inputs.model.config.id2label
    have = [str(named[index]) for index in range(len(wanted))] if wanted else []
    if not wanted or have == [f"LABEL_{index}" for index in range(len(wanted))]:
        return [*range(inputs.encoded.num_labels)]
    if sorted(have) != sorted(wanted):
        raise MissingInputError(
            f"teacher {job.model.name!r} has the classes {', '.join(have)}, and task "
            f"{job.task.name!r} has {', '.join(wanted)}. Correct id2label in its config.json, or "
            "`labels:` of the task."
        )
    return [have.index(name) for name in wanted]


def make_subject(
    inputs: Inputs,
    device: torch.device,
    halvings: int,
    other: Callable[[], PreTrainedModel],
) -> Subject:
    return Subject(
        model=inputs.model.to(device),
        encoded=inputs.encoded,
        padding=inputs.padding,
        device=device,
        halvings=halvings,
        other=other,
    )


class _Begun(NamedTuple):
    started_at: datetime
    seconds: float  # by `time.perf_counter`


def _taken(
    job: Job,
    id_: str,
    spec: ProfileSpec,
    inputs: Inputs,
    halvings: int,
    other: Callable[[], PreTrainedModel],
    begun: _Begun,
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Takes one measurement: its row of PROFILES, and the logits of a teacher."""
    device = pick_device(job.place.device)
    subject = make_subject(inputs, device, halvings, other)
    found = MEASURES[spec.measure].run(subject, spec)
    row = {
        **_facts(job, spec.measure, spec, device, begun.started_at),
        "profile_id": id_,
        "trial_id": spec.trial or None,
        "against": spec.against or None,
        "seed": job.trial.seed if spec.trial else spec.seed,
        "kept_layers": list(original_layers(subject.model.config)),
        "task": job.task.name,
        "data_fingerprint": spec.data_fingerprint,
        "max_length": spec.max_length,
        "limit_dev": spec.limit_dev,
        "layers": [{"layer": layer, "value": value} for layer, value in found.layers],
        "values": [item._asdict() for item in found.values],
        "dev_examples": len(subject.dev),
        "seconds_total": time.perf_counter() - begun.seconds,
    }
    return row, found.logits


def _facts(
    job: Job,
    measure: str,
    spec: ProfileSpec | SpeedSpec,
    device: torch.device,
    started_at: datetime,
) -> dict[str, Any]:
    """Columns of every measurement."""
    return {
        "profile_id": job.id,
        "measure": measure,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(spec),
        "model": job.model.name,
        "model_fingerprint": spec.model_fingerprint,
        "depth": job.model.depth,
        **where(device, started_at),
    }


SPEED = "speed"  # the measure's name in a record


def run_speed(job: Job, rule: Rule = RULE) -> dict[str, Any]:
    """`{"record": one row of PROFILES}`. Raises TrialError for what is not a bug."""
    spec = job.speed
    batches = BatchSizes.halved(min(spec.batches), 0)
    with reproducible(job.place.threads), memory_errors(batches.training):
        started_at, begun = now(), time.perf_counter()
        device = _device(spec, job)
        full = _load(job, full_layers(job.model.depth)).to(device)
        pruned = _load(job, spec.kept_layers)
        remove_feed_forwards(pruned, spec.removed_feed_forwards, second_norm=spec.second_norm)
        _check_length(job, spec, full)
        precision = precision_used(spec.precision, device)
        load = Load(length=spec.length, batches=spec.batches, precision=precision)
        bystanders = Bystanders()
        timings = compare_networks(full, pruned.to(device), load, rule)
        row = {
            **_facts(job, SPEED, spec, device, started_at),
            "kept_layers": list(spec.kept_layers),
            "removed_feed_forwards": list(spec.removed_feed_forwards),
            "second_norm": spec.second_norm,
            "max_length": spec.length,
            "precision_used": precision,
            "params_total": parameter_counts(pruned).total,
            "params_full": parameter_counts(full).total,
            "timings": [
                {"quantity": t.quantity, "batch": t.batch, **asdict(t.comparison)} for t in timings
            ],
            "others_busy_cores": bystanders.busy_cores(),
        }
        return {"record": row | {"seconds_total": time.perf_counter() - begun}}


def _device(spec: SpeedSpec, job: Job) -> torch.device:
    """Raises MissingInputError if the speed of a GPU is wanted and this slot has none."""
    here = pick_device(job.place.device)
    if spec.device_type == "cuda" and here.type != "cuda":
        raise MissingInputError(
            "the sweep measures speed on cuda, but this slot has no GPU. Run it where trials have "
            "one, or remove cuda from `measure: {speed: ...}`."
        )
    return here if spec.device_type == here.type else torch.device(spec.device_type)


def _load(job: Job, kept_layers: Sequence[int]) -> PreTrainedModel:
    offline = job.place.offline
    if offline:
        go_offline()
    return load_pruned(
        job.model.path,
        revision=job.model.revision,
        kept_layers=kept_layers,
        num_labels=2,
        problem_type="single_label_classification",
        seed=0,
        local_files_only=offline,
        from_here=True,
    )


def _check_length(job: Job, spec: SpeedSpec, model: PreTrainedModel) -> None:
    positions = longest_row(model.config.to_dict())
    if positions is not None and positions < spec.length:
        raise MissingInputError(
            f"speeds use rows of {spec.length} tokens, but model {job.model.name!r} takes at most "
            f"{positions}. Set measure.speed_length to {positions} or less."
        )


def measure_trained(
    job: Job, inputs: Inputs, outbox: Outbox, halvings: int
) -> tuple[list[Record], list[dict[str, Any]]]:
    """Takes the job's measurements of its trained network. Returns them, and rows of ATTEMPTS of
    those that failed. After a lack of memory a measurement tries a smaller batch."""
    records: list[Record] = []
    attempts: list[dict[str, Any]] = []
    device = pick_device(job.place.device)
    for item in job.measures:
        again = True
        while again:
            started_at, batches = now(), BatchSizes.halved(EVALUATION_BATCH, halvings)
            try:
                with reproducible(job.place.threads), memory_errors(batches.training):
                    records += _measured(job, item, inputs, outbox, halvings)
                break
            except torch.AcceleratorError:
                raise
            except Exception as error:
                forget_frames(error)
                failure = Failure.of(error)
            again = failure.error_type == "out_of_memory" and halvings < MAX_HALVINGS
            told = {"micro_batch": batches.evaluation, "log": "", **where(device, started_at)}
            attempts.append(attempt_row(item.id, job, failure, final=not again, **told))
            if again:
                halvings += 1
                resident().forget()
                free_memory()
    return records, attempts


def _measured(
    job: Job, item: Measure, inputs: Inputs, outbox: Outbox, halvings: int
) -> list[Record]:
    spec, begun = item.spec, _Begun(now(), time.perf_counter())
    inputs = with_rows_of(job, inputs, spec.unlabelled)
    with _compared(job, spec, inputs, outbox) as other:
        row, logits = _taken(job, item.id, spec, inputs, halvings, lambda: other, begun)
    found = [] if logits is None else [_logits_record(item.id, logits)]
    return [*found, Record("profiles", item.id, [row])]


@contextmanager
def _compared(
    job: Job, spec: ProfileSpec, inputs: Inputs, outbox: Outbox
) -> Iterator[PreTrainedModel]:
    """The network to compare with: another trial's, else the pre-trained one."""
    if not MEASURES[spec.measure].compares:
        yield inputs.model
        return
    with needed_network(outbox, spec.against or None) as folder:
        yield load_other(job, inputs, folder).to(pick_device(job.place.device))


def _logits_record(id_: str, logits: np.ndarray) -> Record:
    """Is sent before the measurement's own row, whose presence means done."""
    rows = [
        {"profile_id": id_, "example": index, "scores": scores}
        for index, scores in enumerate(flat(logits) if logits.ndim == 3 else logits.tolist())
    ]
    return Record("teacher_logits", id_, rows)
