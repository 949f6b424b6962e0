"""One measurement of speed, from its specification to its record.

Both networks have the pre-trained weights, which are at hand: time does not depend on them. Two
networks of all layers, which have one speed, are compared like any other pair: what their ratio is
beside 1 is the error of the measurement.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import torch
from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.storage.specs import SpeedSpec
from lp_sweep.trials.batches import BatchSizes
from lp_sweep.trials.bystanders import Bystanders
from lp_sweep.trials.device import pick_device, precision_used, reproducible
from lp_sweep.trials.feedforward import remove_feed_forwards
from lp_sweep.trials.job import Job
from lp_sweep.trials.longest import longest_row
from lp_sweep.trials.measures.pairs import RULE, Rule
from lp_sweep.trials.measures.speed import Load, Timing, compare_networks
from lp_sweep.trials.memory import memory_errors
from lp_sweep.trials.offline import go_offline
from lp_sweep.trials.procedures import full_layers
from lp_sweep.trials.provenance import now, where
from lp_sweep.trials.prune import load_pruned, parameter_counts

SPEED = "speed"  # the measure's name in a record


def run_speed(job: Job, rule: Rule = RULE) -> dict[str, Any]:
    """`{"record": one row of PROFILES}`. Raises TrialError for what is not a bug."""
    spec = job.speed
    batches = BatchSizes.halved(min(spec.batches), 0)
    with reproducible(job.place.threads), memory_errors(batches):
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
            **_row(job, spec, device, started_at),
            "precision_used": precision,
            "params_total": parameter_counts(pruned).total,
            "params_full": parameter_counts(full).total,
            "timings": [_timing(timing) for timing in timings],
            "others_busy_cores": bystanders.busy_cores(),
        }
        return {"record": row | {"seconds_total": time.perf_counter() - begun}}


def _device(spec: SpeedSpec, job: Job) -> torch.device:
    """Raises MissingInputError for a slot without a GPU where the speed of one is asked for."""
    here = pick_device(job.place.device)
    if spec.device_type == "cuda" and here.type != "cuda":
        raise MissingInputError(
            "a speed on cuda is asked for, and this slot has no GPU. Run it where trials have one, "
            "or take cuda out of `measure: {speed: ...}`."
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
            f"speeds are of rows of {spec.length} tokens and model {job.model.name!r} takes "
            f"{positions}. Set measure.speed_length to {positions} or less."
        )


def _row(job: Job, spec: SpeedSpec, device: torch.device, started_at: datetime) -> dict[str, Any]:
    """What is known without timing anything."""
    return {
        "profile_id": job.id,
        "measure": SPEED,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(spec),
        "kept_layers": list(spec.kept_layers),
        "removed_feed_forwards": list(spec.removed_feed_forwards),
        "second_norm": spec.second_norm,
        "model": job.model.name,
        "model_fingerprint": spec.model_fingerprint,
        "depth": job.model.depth,
        "max_length": spec.length,
        **where(device, started_at),
    }


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "quantity": timing.quantity,
        "batch": timing.batch,
        **asdict(timing.comparison),
    }
