"""A real shortage of memory: a process whose address space is limited, and what a trial does."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from lp_sweep.storage.errors import DeviceOutOfMemoryError
from lp_sweep.storage.store import Store
from lp_sweep.trials import device as devices
from lp_sweep.trials.data.batches import to_device
from lp_sweep.trials.device import forget_frames, is_out_of_memory, memory_errors
from lp_sweep.trials.fast.forward import forward
from lp_sweep.trials.measures import subject
from lp_sweep.trials.train import steps as passes
from lp_sweep.trials.worker.resident import resident
from tests.support.plain_jobs import done, run_profile
from tests.support.toyworld import PLAIN, jobs, save_model, save_world

SMALL = ("recipe.batch_size=2", "recipe.limit_dev=2", "recipe.epochs=1")
LARGE = ("recipe.batch_size=64", "recipe.max_length=256", "recipe.epochs=1")

ROOM_OF_HALF = 0.6  # of what a step of 64 rows takes


class Result(NamedTuple):
    """A large trial, and what became of a small one after it in the same process."""

    large: dict[str, Any]
    after: dict[str, Any]
    taken: int  # KiB by the large one, at its most
    records: list[dict[str, Any]]  # of the large one
    attempts: list[dict[str, Any]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network whose steps of 64 long rows take some 300 MiB, and without dropout."""
    folder = tmp_path_factory.mktemp("large world")
    sweep = save_world(folder)
    save_model(
        folder / "model",
        depth=2,
        intermediate_size=2048,
        max_position_embeddings=256,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    draw = random.Random(1)
    lines = [
        f"{' '.join(draw.choices(PLAIN, k=200))} {word}" for word in ["good,pos", "bad,neg"] * 64
    ]
    (folder / "train.csv").write_text("text,label\n" + "\n".join(lines), encoding="utf-8")
    return sweep


def with_room(world: Path, folder: Path, room: int) -> Result:
    """The trials in a process of their own that can take `room` KiB more; 0: no limit."""
    before, large, after = (
        jobs(world, *overrides)[0]
        for overrides in (
            ("k=0", *SMALL, "recipe.limit_train=4"),
            ("k=0", *LARGE),
            ("k=1", *SMALL, "recipe.limit_train=8"),
        )
    )
    (folder / "jobs.json").write_text(json.dumps([before, large, after]), encoding="utf-8")
    store = Store(folder / "store", create=True)
    program = Path(__file__).parents[2] / "support" / "shortage.py"
    arguments = [program, folder / "jobs.json", store.location, room, folder / "out.json"]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    if not told.pop("enforced") and room:
        pytest.skip("this platform does not hold a process to RLIMIT_AS")
    attempts = store.read_all("attempts").rows.to_pylist()
    attempts.sort(key=lambda row: row["started_at"])
    return Result(**told, records=store.find("trials", large["id"]) or [], attempts=attempts)


@pytest.fixture(scope="module")
def whole(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Without a limit: what a step takes differs between machines."""
    return with_room(world, tmp_path_factory.mktemp("whole"), 0)


@pytest.mark.slow
def test_the_micro_batch_is_halved_until_it_fits(
    world: Path, whole: Result, tmp_path: Path
) -> None:
    short = with_room(world, tmp_path, int(whole.taken * ROOM_OF_HALF))
    [expected], [record] = whole.records, short.records
    assert (expected["micro_batch"], expected["out_of_memory_retries"]) == (64, 0)
    retries = record["out_of_memory_retries"]
    assert retries in (1, 2)
    assert (record["micro_batch"], record["batch_size"]) == (64 // 2**retries, 64)
    assert record["steps"] == expected["steps"] == 2
    assert record["train_losses"] == pytest.approx(expected["train_losses"], abs=1e-5)
    assert record["last"] == pytest.approx(expected["last"], abs=0.05)

    assert [row["micro_batch"] for row in short.attempts] == [64, 32][:retries]
    assert {(row["final"], row["error_type"]) for row in short.attempts} == {
        (False, "out_of_memory")
    }
    assert "a batch of 64 does not fit" in short.attempts[0]["message"]
    assert short.after["status"] == "done"


@pytest.mark.parametrize(
    ("error", "short"),
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory."), True, id="cuda"),
        pytest.param(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), True, id="cublas"),
        pytest.param(OSError(errno.ENOMEM, "Cannot allocate memory"), True, id="system"),
        pytest.param(OSError(errno.ENOSPC, "No space left on device"), False, id="disk"),
        pytest.param(RuntimeError("shape mismatch"), False, id="another"),
        pytest.param(torch.AcceleratorError("CUDA error: out of memory"), True, id="driver"),
        pytest.param(torch.AcceleratorError("CUDA error: illegal access"), False, id="broken"),
    ],
)
def test_what_counts_as_a_shortage(
    error: Exception, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_can_allocate", lambda: True)
    with pytest.raises(DeviceOutOfMemoryError if short else type(error)), memory_errors(4):
        raise error


def test_a_device_that_allocates_nothing_any_more_is_broken() -> None:
    assert not is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))  # none here


def test_a_real_allocation_counts() -> None:
    too_large = "a batch of 4 does not fit"
    with pytest.raises(DeviceOutOfMemoryError, match=too_large), memory_errors(4):
        torch.empty(2**55)


def test_an_error_holds_no_network() -> None:
    """Else the memory of the first try would still be taken in the second."""

    def fails() -> None:
        network = torch.nn.Linear(3, 3)
        held.append(weakref.ref(network))
        try:
            raise RuntimeError("first")
        except RuntimeError as error:
            raise MemoryError from error

    held: list[weakref.ref[Any]] = []
    with pytest.raises(MemoryError) as caught:
        fails()
    forget_frames(caught.value)
    gc.collect()
    assert held[0]() is None


@pytest.mark.slow
def test_a_halving_of_before_is_counted(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was killed had used two of the three: 64 and 32 are not tried again."""

    def full(model: Any, split: Any, rows: Any, *rest: Any, **how: Any) -> Any:
        if len(rows) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return forward(model, split, rows, *rest, **how)

    monkeypatch.setattr(passes, "forward", full)
    job = {**jobs(world, "k=0", *LARGE)[0], "halvings": 2}
    record = done(store, job)
    assert (record["micro_batch"], record["out_of_memory_retries"]) == (8, 3)
    assert len(store.names("attempts")) == 1


@pytest.mark.slow
def test_a_profile_halves_too(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(split: Any, rows: Any, *rest: Any) -> Any:
        if len(rows) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return to_device(split, rows, *rest)

    sweep = save_world(tmp_path, strategies=[{"name": "contribution", "threshold": [0.9]}])
    [job] = jobs(sweep)
    whole = run_profile(job)
    resident().forget()  # else the pass is not made again
    monkeypatch.setattr(subject, "to_device", full)
    halved = done(store, job)
    assert [item["value"] for item in halved["layers"]] == pytest.approx(
        [item["value"] for item in whole["layers"]], abs=1e-6
    )
    rows = store.read_all("attempts").rows.to_pylist()
    assert sorted(row["micro_batch"] for row in rows) == [32, 64]
    assert not any(row["final"] for row in rows)


@pytest.mark.slow
def test_a_process_that_asked_duckdb_too_ends_without_a_word() -> None:
    """An export that trains again does: what stays frozen, DuckDB would report as leaked."""
    program = "import duckdb\nfrom lp_sweep.trials.device import free_memory\nfree_memory()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
