"""A training that is cut off at a chosen step with a checkpoint, and goes on later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lp_sweep.storage.store import Store
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.worker import checkpoint
from tests.support.plain_jobs import execute

# what a try measures of itself, and where it began
OF_THE_TRY = {
    "started_at",
    "ended_at",
    "peak_memory_bytes",
    "resumed_from_step",
    "threads",
    "train_examples_per_second",
    "dev_examples_per_second",
}
STEPS = 16  # of an epoch: 64 rows in batches of 4


class CutOff(BaseException):
    """Not an Exception: no handler of ours may take it for a failure."""


def assert_same(store: Store, job: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """The stored record and predictions are the expected ones; gives the record."""
    record = store.read("trials", job["id"])[0]
    for name, value in expected["record"].items():
        if name not in OF_THE_TRY and not name.startswith("seconds_") and name != "versions":
            assert record[name] == value, name
    predictions = store.read("predictions", job["id"])
    assert predictions == [{"tally": None} | row for row in expected["predictions"]]
    assert store.listing("checkpoints") == []
    assert not list((Path(job["cache_dir"]) / "checkpoints").glob("*"))
    return record


def left_by(store: Store, job: dict[str, Any]) -> dict[str, Any]:
    """The stored results of an uninterrupted training, for `assert_same`."""
    [record] = store.read("trials", job["id"])
    return {"record": record, "predictions": store.read("predictions", job["id"])}


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


def other_network(path: Path) -> None:
    text = checkpoint.read_state(path)
    checkpoint.save_state(
        path, text, {"model.a": torch.zeros(3), "step_losses": torch.zeros(STEPS)}
    )
