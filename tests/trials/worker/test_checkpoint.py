"""Checkpoints: a training that was cut off goes on, and ends as if nothing had been."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lp_sweep.storage import underway
from lp_sweep.storage.store import Store
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.worker import checkpoint
from lp_sweep.trials.worker import job as worker
from lp_sweep.trials.worker.fetch import announce, announced
from tests.support.plain_jobs import assert_fails, execute, run_trial
from tests.support.staging import STEPS, CutOff, assert_same, cut_off
from tests.support.toyworld import jobs

EPOCHS = 3


def job_of(world: Path, rows: int = 4 * STEPS, **settings: Any) -> Job:
    """24 steps, with dropout."""
    recipe = (f"recipe.limit_train={rows}", "recipe.batch_size=4", f"recipe.epochs={EPOCHS}")
    return {**jobs(world, "k=2", *recipe)[0], **settings}


Job = dict[str, Any]
Trained = dict[int, Job]
Cut = Callable[..., Job]


@pytest.fixture(scope="module")
def undisturbed(world: Path) -> Trained:
    """Halvings -> what a training gives that nothing interrupts."""
    return {times: run_trial(job_of(world), halvings=times) for times in (0, 1)}


@pytest.fixture
def cut(world: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Cut:
    """Cuts a training off right before a step; gives the job that goes on from there."""

    def before(step: int, **settings: Any) -> Job:
        cut_off(job_of(world, **settings), store, monkeypatch, step)
        return job_of(world, checkpoint_every=3600.0, **settings)

    return before


# -- cut off at a given step


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(STEPS + 3, id="mid-epoch"),
        pytest.param(EPOCHS * STEPS - 1, id="before the very last step"),
    ],
)
def test_it_goes_on_from_the_step_it_was_at(
    store: Store, undisturbed: Trained, cut: Cut, step: int
) -> None:
    job = cut(step)
    state = checkpoint.read_state(stored(store, job))
    before, total = state["progress"], state["seconds_total"]
    assert total > before["seconds_train"] > 0
    began = time.perf_counter()
    execute(job, store.location)
    elapsed = time.perf_counter() - began
    record = assert_same(store, job, undisturbed[0])
    assert record["resumed_from_step"] == step
    assert record["seconds_train"] > before["seconds_train"]  # of all tries
    assert record["seconds_evaluate"] > before["seconds_evaluate"]
    assert total < record["seconds_total"] < total + elapsed


def saver_of(job: Job, store: Store) -> Any:
    return checkpoint.saver_of(worker.Job.from_plain({**job, "store": store.location}))


def stored(store: Store, job: Job) -> Path:
    return Path(store.location) / "checkpoints" / f"{job['id']}.safetensors"


def test_lost_in_an_evaluation_it_goes_on_at_the_evaluation(
    world: Path, store: Store, undisturbed: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an evaluation that takes longer than from one checkpoint to the next breaks nothing."""
    job, real, calls = job_of(world, checkpoint_every=0.01), finetuning.evaluate, []

    def slow(*args: Any, **settings: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise CutOff
        time.sleep(0.05)
        return real(*args, **settings)

    monkeypatch.setattr(finetuning, "evaluate", slow)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoints, "due", lambda self: True)
        with pytest.raises(CutOff):
            execute(job, store.location)
    execute(job, store.location)
    assert assert_same(store, job, undisturbed[0])["resumed_from_step"] == 3 * STEPS


# -- when to write


def test_off_is_off(world: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.Checkpoints, "__init__", None)
    assert execute(job_of(world, 4, checkpoint_every=0), store.location)["status"] == "done"


@pytest.mark.parametrize(
    ("every", "leaving", "expected"),
    [
        pytest.param(15.0, False, [15], id="the interval, from the start on"),
        pytest.param(3600.0, True, [20], id="in a run that ends soon"),
    ],
)
def test_the_steps_after_which_it_is_written(
    world: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    every: float,
    leaving: bool,
    expected: list[int],
) -> None:
    """By a clock that goes on by a second for each look."""
    clock = iter(range(10_000))
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(underway.Teller, "__call__", lambda *_: None)  # it looks there, too
    steps: list[int] = []

    def write_state(path: Path, state: Any, *rest: Any) -> None:
        steps.append(state["progress"]["step"])
        path.write_text("state", encoding="utf-8")

    monkeypatch.setattr(checkpoint, "write_state", write_state)
    if leaving:
        announce(tmp_path / "cache", 600.0)
    job = job_of(world, checkpoint_every=every, cache_dir=str(tmp_path / "cache"))
    execute(job, store.location)
    assert steps == expected


def test_a_notice_is_of_its_time(tmp_path: Path) -> None:
    """Another run may follow."""
    cache = tmp_path / "cache"
    assert not announced(cache)
    for seconds in (600.0, -1.0, 600.0):
        announce(cache, seconds)
        assert announced(cache) == (seconds > 0)


def test_a_checkpoint_that_cannot_be_written_is_a_warning(
    world: Path, store: Store, undisturbed: Trained
) -> None:
    (Path(store.location) / "checkpoints").write_text("in the way", encoding="utf-8")
    job = job_of(world, checkpoint_every=1e-6)
    with pytest.warns(UserWarning, match=f"checkpoint of {job['id']}: not written: can't write"):
        assert execute(job, store.location)["status"] == "done"
    (Path(store.location) / "checkpoints").unlink()
    assert_same(store, job, undisturbed[0])


# -- what is not gone on from


def _flip(path: Path) -> None:
    """One bit of one weight."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _with(**subject: Any) -> Callable[[Path], None]:
    """Another subject, with checksums that are right."""

    def harm(path: Path) -> None:
        state = checkpoint.read_state(path)
        checkpoint.save_state(path, state | {"subject": state["subject"] | subject})

    return harm


HARMS: dict[str, Callable[[Path], None]] = {  # by what is said
    "its checksum is wrong": _flip,
    "lp-sweep did not write it": lambda path: save_file({"a": torch.zeros(3)}, path),
    "its format is 1": _with(format=1),
    # the record names one precision: all of its steps are of that one
    "its precision is 'bf16'": _with(precision="bf16"),
}


def other_network(path: Path) -> None:
    state = checkpoint.read_state(path)
    checkpoint.save_state(path, state | {"model": {"a": torch.zeros(3)}})


def test_what_is_torn_or_foreign_is_ignored_with_a_warning(
    store: Store, undisturbed: Trained, cut: Cut
) -> None:
    job = cut(STEPS + 3)
    path = stored(store, job)
    whole = path.read_bytes()
    for reason, harm in HARMS.items():
        harm(path)
        with pytest.warns(UserWarning, match=f"{job['id']}: ignored, .*{reason}"):
            saver = saver_of(job, store)
        assert saver.epoch == 0
        path.write_bytes(whole)
    other_network(path)
    with pytest.warns(UserWarning, match=f"{job['id']}: ignored, .*not those of this network"):
        execute(job, store.location)
    assert assert_same(store, job, undisturbed[0])["resumed_from_step"] == 0


# -- with micro-batches


@pytest.mark.parametrize(
    ("before", "now", "resumed"),
    [
        # the worker that ran out of memory was killed later: only the checkpoint knows
        pytest.param(1, 0, 20, id="the checkpoint's are taken over"),
        # the record's micro-batch is that of all its steps
        pytest.param(0, 1, 0, id="one of larger micro-batches is ignored"),
    ],
)
def test_one_record_is_of_one_micro_batch(
    store: Store, undisturbed: Trained, cut: Cut, before: int, now: int, resumed: int
) -> None:
    job = cut(20, halvings=before) | {"halvings": now}
    execute(job, store.location)
    record = assert_same(store, job, undisturbed[1])
    assert (record["resumed_from_step"], record["out_of_memory_retries"]) == (resumed, 1)


def test_one_of_a_training_that_diverged_is_deleted(world: Path, store: Store) -> None:
    job = jobs(world, "k=0", "recipe.lr=1e30", "recipe.limit_train=32")[0] | {
        "checkpoint_every": 1e-9
    }
    assert_fails(store, job, "diverged", "loss of epoch 1 is")
    assert store.listing("checkpoints") == []


# -- the node's copies, in a folder that machines may share


def test_copies_that_a_killed_process_left_go_after_a_day(
    world: Path, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "checkpoints"
    folder.mkdir(parents=True)
    for name, days in {"one.pt": 0.9, "other.pt": 1.1, ".a.tmp": 1.1}.items():
        (folder / name).write_bytes(b"state")
        os.utime(folder / name, (time.time() - 86_400 * days,) * 2)
    saver_of(job_of(world, checkpoint_every=1.0, cache_dir=str(tmp_path / "cache")), store)
    assert {path.name for path in folder.iterdir()} == {"one.pt"}
