"""What counts as a shortage of memory, and what a worker does about it."""

from __future__ import annotations

import errno
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

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
from tests.support.toyworld import jobs, save_world


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
    job = {**jobs(world, "k=0", "recipe.batch_size=64", "recipe.epochs=1")[0], "halvings": 2}
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
