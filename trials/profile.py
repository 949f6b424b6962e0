"""One profile, from its specification to its record: what a strategy measures before it chooses."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from lp_sweep.storage.identity import profile_spec_from_plain
from lp_sweep.trials.batches import EVALUATION_BATCH, BatchSizes, chunks, to_device
from lp_sweep.trials.contribution import contribution_profile
from lp_sweep.trials.device import pick_device, reproducible
from lp_sweep.trials.inputs import load_inputs
from lp_sweep.trials.memory import memory_errors
from lp_sweep.trials.provenance import now, where
from lp_sweep.trials.record import Job


def run_profile(job: Job, halvings: int = 0) -> dict[str, Any]:
    """`{"record": one row of PROFILES}`: every layer's contribution in the pre-trained model."""
    batches = BatchSizes.halved(EVALUATION_BATCH, halvings)  # it only evaluates
    with reproducible(job.get("threads")), memory_errors(batches):
        return _run_profile(job, batches.evaluation)


def _run_profile(job: Job, batch_size: int) -> dict[str, Any]:
    spec = profile_spec_from_plain(job["spec"])
    started_at, begun = now(), time.perf_counter()
    device = pick_device(job.get("device", "auto"))
    inputs = load_inputs(job, spec, range(1, job["model"]["depth"] + 1), seed=0)
    model = inputs.model.to(device)
    split = next(iter(inputs.encoded.dev.values()))
    order = np.argsort(split.lengths, kind="stable")
    batches = (to_device(split, rows, inputs.padding, device) for rows in chunks(order, batch_size))
    cosines = contribution_profile(model, batches)
    record = {
        "profile_id": job["id"],
        "measure": spec.measure,
        "model": job["model"]["name"],
        "model_fingerprint": spec.model_fingerprint,
        "depth": len(cosines),
        "task": job["task"]["name"],
        "data_fingerprint": spec.data_fingerprint,
        "max_length": spec.max_length,
        "limit_dev": spec.limit_dev,
        "layers": [{"layer": i, "value": value} for i, value in enumerate(cosines, start=1)],
        "dev_examples": len(split),
        "seconds_total": time.perf_counter() - begun,
        **where(device, started_at),
    }
    return {"record": record}
