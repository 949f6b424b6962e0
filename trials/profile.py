"""One profile, from its specification to its record: a measurement of a network's layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import torch
from transformers import PreTrainedModel

from lp_sweep.storage.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.storage.specs import ProfileSpec
from lp_sweep.trials.batches import BatchSizes, whole_batch
from lp_sweep.trials.device import pick_device, reproducible
from lp_sweep.trials.inputs import Inputs, load_inputs
from lp_sweep.trials.job import Job
from lp_sweep.trials.measures.devstates import Keep
from lp_sweep.trials.measures.registry import MEASURES, Found, Subject
from lp_sweep.trials.memory import memory_errors
from lp_sweep.trials.procedures import full_layers
from lp_sweep.trials.provenance import now, where
from lp_sweep.trials.reduced import original_layers
from lp_sweep.trials.resident import resident


def run_profile(job: Job, halvings: int = 0) -> dict[str, Any]:
    """`{"record": one row of PROFILES}`: a measurement of the pre-trained network."""
    spec = job.profile
    batches = BatchSizes.halved(whole_batch(spec), halvings)
    with reproducible(job.place.threads), memory_errors(batches):
        started_at, begun = now(), time.perf_counter()
        device = pick_device(job.place.device)
        inputs = load_inputs(job, spec, full_layers(job.model.depth), seed=spec.seed or 0)
        keep = keep_pass(inputs, device, halvings)
        subject = make_subject(inputs, device, halvings, lambda: inputs.model, keep=keep)
        found = MEASURES[spec.measure](subject, spec)
        row = profile_row(job, spec, subject, found, device, started_at)
        return {"record": row | {"seconds_total": time.perf_counter() - begun}}


def make_subject(
    inputs: Inputs,
    device: torch.device,
    halvings: int,
    other: Callable[[], PreTrainedModel],
    *,
    keep: Keep | None = None,
    keep_other: Keep | None = None,
) -> Subject:
    return Subject(
        model=inputs.model.to(device),
        encoded=inputs.encoded,
        padding=inputs.padding,
        device=device,
        halvings=halvings,
        other=other,
        keep=keep,
        keep_other=keep_other,
    )


def keep_pass(inputs: Inputs, device: torch.device, halvings: int) -> Keep | None:
    """How the pre-trained network's way over the dev rows is kept in this worker, if its files are
    known not to change unseen. What decides a bit of it is in the key."""
    if inputs.origin is None:
        return None
    key = (inputs.origin, inputs.encoded, device, halvings, torch.get_num_threads())
    return lambda make: resident().dev_pass(key, make)


def profile_row(
    job: Job,
    spec: ProfileSpec,
    subject: Subject,
    found: Found,
    device: torch.device,
    started_at: datetime,
) -> dict[str, Any]:
    """A row of PROFILES, but for its identifier where that is not the job's, and its seconds."""
    return {
        "profile_id": job.id,
        "measure": spec.measure,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(spec),
        "trial_id": spec.trial or None,
        "against": spec.against or None,
        "seed": job.trial.seed if spec.trial else spec.seed,
        "kept_layers": list(original_layers(subject.model.config)),
        "model": job.model.name,
        "model_fingerprint": spec.model_fingerprint,
        "depth": job.model.depth,
        "task": job.task.name,
        "data_fingerprint": spec.data_fingerprint,
        "max_length": spec.max_length,
        "limit_dev": spec.limit_dev,
        "layers": [{"layer": layer, "value": value} for layer, value in found.layers],
        "values": [item._asdict() for item in found.values],
        "dev_examples": len(subject.dev),
        **where(device, started_at),
    }
