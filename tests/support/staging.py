"""Jobs of trials that come about in stages, made by hand from a planned one. Not a test."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.identity import profile_id, trial_id
from lp_sweep.trials.spec.procedures import stage_one
from lp_sweep.trials.spec.specs import ProfileSpec, TrialSpec, trial_spec_from_plain
from tests.support.toyworld import jobs

DEPTH = 4  # of the toy world's model
Job = dict[str, Any]


def spec_of(job: Job) -> TrialSpec:
    return trial_spec_from_plain(job["spec"])


def with_spec(job: Job, spec: TrialSpec, **settings: Any) -> Job:
    return {**job, "id": trial_id(spec), "spec": asdict(spec), **settings}


def made(world: Path, *, recipe: dict[str, Any] | None = None, **changes: Any) -> Job:
    """Layers 1 and 2 of the toy world's four, for one epoch, but for what is told."""
    job = jobs(world, "k=2", "recipe.epochs=1")[0]
    spec = spec_of(job)
    return with_spec(job, replace(spec, recipe=replace(spec.recipe, **recipe or {}), **changes))


def staged(world: Path, **changes: Any) -> tuple[Job, Job]:
    """The trial of the full network, and the one that goes on from it."""
    job = made(world, **{"procedure": "finetune_then_drop"} | changes)
    first = stage_one(spec_of(job), DEPTH)
    assert first is not None
    return with_spec(job, first, network=True), {**job, "start": trial_id(first)}


def profile_spec(job: Job, **settings: Any) -> ProfileSpec:
    """A measurement of the job's pre-trained model on its task, but for what is told."""
    trial = spec_of(job)
    of_trial: dict[str, Any] = {
        "model_fingerprint": trial.model_fingerprint,
        "task": trial.task,
        "data_fingerprint": trial.data_fingerprint,
        "max_length": trial.recipe.max_length,
    }
    return ProfileSpec(**of_trial | settings)


def measurement(job: Job, measure: str, **settings: Any) -> dict[str, Any]:
    """One of the job's trained network, as a job names it."""
    spec = profile_spec(job, measure=measure, trial=job["id"], **settings)
    return {"id": profile_id(spec), "spec": asdict(spec)}


def stored_files(store: Store, job: Job) -> dict[str, tuple[bytes, int]]:
    """Content and time of writing of a trial's record and predictions."""
    root = Path(store.location)
    files = {table: root / table / f"{job['id']}.parquet" for table in ("trials", "predictions")}
    return {table: (path.read_bytes(), path.stat().st_mtime_ns) for table, path in files.items()}


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.named_parameters()}
