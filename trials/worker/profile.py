"""Takes measurements and makes their rows of PROFILES: the layers of a pre-trained network, the
layers of a network that a trial has just trained, and the speed of a network.

A measurement that fails is recorded as its own attempt; the trial's record is stored all the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.storage.specs import MAX_HALVINGS, TEACHER, ProfileSpec, SpeedSpec
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
from lp_sweep.trials.measures.registry import MEASURES, Found, Subject
from lp_sweep.trials.measures.speed import Load, compare_networks
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.modelfiles import go_offline, longest_row
from lp_sweep.trials.model.prune import load_pruned, parameter_counts
from lp_sweep.trials.model.reduced import original_layers
from lp_sweep.trials.train.procedures import full_layers
from lp_sweep.trials.worker.inputs import Inputs, load_inputs, load_other, with_rows_of
from lp_sweep.trials.worker.job import Failure, Job, Measure, attempt_row
from lp_sweep.trials.worker.keep import Keeper, needed_network
from lp_sweep.trials.worker.provenance import now, where
from lp_sweep.trials.worker.resident import resident


def run_profile(job: Job, halvings: int = 0) -> dict[str, Any]:
    """`{"record": one row of PROFILES}`: a measurement of the pre-trained network."""
    spec = job.profile
    batches = BatchSizes.halved(whole_batch(spec), halvings)
    with reproducible(job.place.threads), memory_errors(batches.training):
        started_at, begun = now(), time.perf_counter()
        device = pick_device(job.place.device)
        inputs = load_inputs(job, spec, full_layers(job.model.depth), seed=spec.seed or 0)
        if spec.measure == TEACHER and not kind_of(spec.task).embeds:
            inputs = inputs._replace(model=_trained(job, inputs))
        subject = make_subject(inputs, device, halvings, lambda: inputs.model)
        found = MEASURES[spec.measure].run(subject, spec)
        row = profile_row(job, spec, subject, found, device, started_at)
        records = []
        if found.logits is not None:
            places = slice(None) if kind_of(spec.task).embeds else _places(job, inputs)
            records.append(_logits_record(job.id, found.logits[..., places]))
        return {
            "record": row | {"seconds_total": time.perf_counter() - begun},
            "records": records,
        }


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


def profile_row(
    job: Job,
    spec: ProfileSpec,
    subject: Subject,
    found: Found,
    device: torch.device,
    started_at: datetime,
) -> dict[str, Any]:
    """A row of PROFILES without its seconds. Its identifier is the job's."""
    return {
        **_facts(job, spec.measure, spec, device, started_at),
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
    }


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


_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle and waiting for a disk, of the columns of /proc/stat
_COLUMNS = 8  # up to steal; the next ones are included in these


class Bystanders:
    """Measures from its construction on how busy other processes keep this machine."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._begun, self._own = time.perf_counter(), time.process_time()
        self._busy = _busy_seconds(stat)

    def busy_cores(self) -> float | None:
        """The mean number of cores that others kept busy; None if the system does not report it.

        The load average would count trials that ended minutes ago.
        """
        busy = _busy_seconds(self._stat)
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (time.process_time() - self._own)
        return max(0.0, others / (time.perf_counter() - self._begun))


def _busy_seconds(stat: Path) -> float | None:
    """Busy seconds of all cores since the machine started."""
    try:
        words = stat.read_text(encoding="ascii").split(maxsplit=_COLUMNS + 1)[1 : _COLUMNS + 1]
        ticks = [int(word) for word in words]
    except (OSError, ValueError):
        return None
    if not any(ticks):  # a sandbox that hides its host
        return None
    return sum(t for i, t in enumerate(ticks) if i not in _IDLE) / os.sysconf("SC_CLK_TCK")


class Afterwards:
    """Keeps and measures a trained network. `records`: the measurements, to be stored before the
    trial's record; `attempts`: rows of those that failed."""

    def __init__(self, job: Job, outbox: Outbox, keeper: Keeper, halvings: int) -> None:
        self.job, self.outbox, self.keeper = job, outbox, keeper
        self.halvings = halvings
        self.batches = BatchSizes.halved(EVALUATION_BATCH, halvings)
        self.records: list[Record] = []
        self.attempts: list[dict[str, Any]] = []

    def __call__(self, inputs: Inputs, record: dict[str, Any], device: torch.device) -> None:
        self.keeper.keep(inputs, record)
        self.measure(inputs, device)

    def measure(self, inputs: Inputs, device: torch.device) -> None:
        for item in self.job.measures:
            while not self._tried(item, inputs, device):
                self.halvings += 1
                self.batches = BatchSizes.halved(EVALUATION_BATCH, self.halvings)
                resident().forget()
                free_memory()

    def _tried(self, item: Measure, inputs: Inputs, device: torch.device) -> bool:
        """Whether this was the last try. After a lack of memory a smaller batch is tried."""
        started_at = now()
        try:
            with reproducible(None), memory_errors(self.batches.training):  # and not strict
                self.records += self._measured(item, inputs, device)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            forget_frames(error)
            failure = Failure.of(error)
        else:
            return True
        final = failure.error_type != "out_of_memory" or self.halvings >= MAX_HALVINGS
        self.attempts.append(
            attempt_row(
                item.id,
                self.job,
                failure,
                final=final,
                micro_batch=self.batches.evaluation,
                log="",
                **where(device, started_at),
            )
        )
        return final

    def _measured(self, item: Measure, inputs: Inputs, device: torch.device) -> list[Record]:
        spec = item.spec
        started_at, begun = now(), time.perf_counter()
        inputs = with_rows_of(self.job, inputs, spec.unlabelled)
        with self._other(spec, inputs, device) as other:
            subject = make_subject(inputs, device, self.halvings, lambda: other)
            found = MEASURES[spec.measure].run(subject, spec)
        row = profile_row(self.job, spec, subject, found, device, started_at)
        seconds = time.perf_counter() - begun
        logits = [] if found.logits is None else [_logits_record(item.id, found.logits)]
        row |= {"profile_id": item.id, "seconds_total": seconds}
        return [*logits, Record("profiles", item.id, [row])]

    @contextmanager
    def _other(
        self, spec: ProfileSpec, inputs: Inputs, device: torch.device
    ) -> Iterator[PreTrainedModel]:
        """The network to compare with: another trial's, else the pre-trained one."""
        if not MEASURES[spec.measure].compares:
            yield inputs.model
            return
        with needed_network(self.outbox, spec.against or None) as folder:
            yield load_other(self.job, inputs, folder).to(device)


def _logits_record(id_: str, logits: np.ndarray) -> Record:
    """Is sent before the measurement's own row, whose presence means done."""
    rows = [
        {"profile_id": id_, "example": index, "scores": scores}
        for index, scores in enumerate(flat(logits) if logits.ndim == 3 else logits.tolist())
    ]
    return Record("teacher_logits", id_, rows)
