"""One trial, from its specification to its record: load, select, delete, seed, fine-tune, evaluate.

Plain data in, plain data out; runs in a terminal as well as in a worker, and imports no Ray.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from lp_sweep.storage.specs import TrialSpec
from lp_sweep.trials.batches import BatchSizes
from lp_sweep.trials.device import (
    peak_memory_bytes,
    pick_device,
    precision_used,
    reproducible,
    reset_peak_memory,
)
from lp_sweep.trials.feedforward import remove_feed_forwards
from lp_sweep.trials.finetune import NoSaver, Saver, Trained, finetune
from lp_sweep.trials.forward import compute_used
from lp_sweep.trials.inputs import Inputs, load_inputs
from lp_sweep.trials.job import Job
from lp_sweep.trials.memory import memory_errors
from lp_sweep.trials.metrics import positive_label
from lp_sweep.trials.procedures import FINETUNE_THEN_DROP, phases
from lp_sweep.trials.provenance import now, where
from lp_sweep.trials.prune import parameter_counts
from lp_sweep.trials.record import identity_columns, prediction_rows, score_columns
from lp_sweep.trials.setting import Setting


class AfterTraining(Protocol):
    """What is done with a trained network before it is let go: see `trials.afterwards`."""

    def __call__(self, inputs: Inputs, record: dict[str, Any], device: torch.device) -> None: ...

    def measure(self, inputs: Inputs, device: torch.device) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """What differs between the tries at one trial."""

    halvings: int = 0  # of the micro-batch, since the whole batch found no memory
    saver: Saver = field(default_factory=NoSaver)
    afterwards: AfterTraining | None = None
    start: Path | None = None  # the folder of the network that stage one trained


def run_trial(job: Job, attempt: Try = Try()) -> dict[str, Any]:
    """`{"record": one row of TRIALS, "predictions": rows of PREDICTIONS}`.

    `attempt.start` is the folder of the network that `job.start` names. Raises TrialError for what
    is not a bug.
    """
    spec = job.trial
    batches = BatchSizes.halved(spec.recipe.batch_size, attempt.halvings)
    with reproducible(job.place.threads), memory_errors(batches):
        return _run_trial(job, spec, batches, attempt)


def _run_trial(job: Job, spec: TrialSpec, batches: BatchSizes, attempt: Try) -> dict[str, Any]:
    started_at, begun = now(), time.perf_counter()
    device = pick_device(job.place.device)
    reset_peak_memory(device)
    if (spec.procedure == FINETUNE_THEN_DROP) != (attempt.start is not None):
        raise ValueError(f"{job.id}: {spec.procedure}, started from {attempt.start}")
    course = phases(spec, job.model.depth)
    inputs = load_inputs(job, spec, course[0].kept_layers, spec.seed, attempt.start)
    remove_feed_forwards(inputs.model, spec.removed_feed_forwards, second_norm=spec.second_norm)
    setting = Setting(
        definition=spec.task,
        recipe=spec.recipe,
        seed=spec.seed,
        device=device,
        padding=inputs.padding,
        precision=precision_used(spec.recipe.precision, device),
        batches=batches,
        course=course,
        positive=positive_label(spec.task, inputs.encoded.label_names),
    )
    trained = finetune(inputs.model, inputs.encoded, setting, attempt.saver)
    record = {
        **identity_columns(job),
        **score_columns(spec, inputs.encoded, trained, course),
        **_run_columns(job, inputs, setting, trained),
        "out_of_memory_retries": attempt.halvings,
        "seconds_total": time.perf_counter() - begun + trained.progress.seconds_before,
        **where(device, started_at),
    }
    if attempt.afterwards:
        attempt.afterwards(inputs, record, device)
    return {
        "record": record,
        "predictions": prediction_rows(job.id, spec, inputs.encoded, trained),
    }


def measure_trained(job: Job, attempt: Try, folder: Path) -> None:
    """What is wanted beside a trial's record, of its trained network in `folder`."""
    spec = job.trial
    batches = BatchSizes.halved(spec.recipe.batch_size, attempt.halvings)
    with reproducible(job.place.threads), memory_errors(batches):
        device = pick_device(job.place.device)
        inputs = load_inputs(job, spec, None, spec.seed, folder)
        if attempt.afterwards:
            attempt.afterwards.measure(inputs, device)


def _run_columns(job: Job, inputs: Inputs, setting: Setting, trained: Trained) -> dict[str, Any]:
    """How it was trained: what is not identity and not a score."""
    counts = parameter_counts(inputs.model)
    return {
        "model_revision": job.model.revision,  # a commit: a run refuses less
        "precision_used": setting.precision,
        "compute_used": compute_used(inputs.model, setting.recipe.compute, setting.device),
        "params_total": counts.total,
        "params_encoder": counts.encoder,
        "params_embedding": counts.embedding,
        "micro_batch": setting.batches.training,
        "started_from": job.start,
        "resumed_from_step": trained.progress.resumed_from_step,
        "seconds_load": inputs.seconds_load,
        "seconds_tokenise": inputs.seconds_tokenise,
        "peak_memory_bytes": peak_memory_bytes(setting.device),
        "command": job.place.command,
    }
