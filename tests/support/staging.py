"""Jobs of trials that come about in stages, made by hand from a planned one. Not a test."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.identity import profile_id, trial_id
from lp_sweep.trials.spec.procedures import stage_one
from lp_sweep.trials.spec.specs import ProfileSpec, TrialSpec, spec_from_plain
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.worker import checkpoint
from tests.support.faults import OF_THE_MOMENT
from tests.support.plain_jobs import execute
from tests.support.toyworld import jobs

DEPTH = 4  # of the toy world's model
Job = dict[str, Any]


def spec_of(job: Job) -> TrialSpec:
    return spec_from_plain(TrialSpec, job["spec"])


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


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.named_parameters()}


# -- a training that is cut off at a chosen step with a checkpoint, and goes on later

STEPS = 8  # of an epoch: 32 rows in batches of 4


class CutOff(BaseException):
    """Not an Exception: no handler of ours may take it for a failure."""


def assert_same(store: Store, job: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """The stored record and predictions are the expected ones; gives the record."""
    record = store.read("trials", job["id"])[0]
    for name, value in expected["record"].items():
        if name not in {*OF_THE_MOMENT, "threads"} and not name.startswith("seconds_"):
            assert record[name] == value, name
    predictions = store.read("predictions", job["id"])
    assert predictions == [{"tally": None} | row for row in expected["predictions"]]
    assert store.listing("checkpoints") == []
    assert not list((Path(job["cache_dir"]) / "checkpoints").glob("*"))
    return record


def cut_off(job: dict[str, Any], store: Store, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Train, and stop right before `step` with a checkpoint of it written."""
    real, last = finetuning.train_step, [0]

    def train_step(*args: Any) -> Any:
        last[0] = args[4]
        if last[0] == step:
            raise CutOff
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "train_step", train_step)
        patch.setattr(checkpoint.Checkpoints, "due", lambda self: last[0] == step - 1)
        with pytest.raises(CutOff):
            execute({**job, "checkpoint_every": 1.0}, store.location)
    assert [item.name for item in store.listing("checkpoints")] == [f"{job['id']}.safetensors"]
    assert not store.names("trials")
