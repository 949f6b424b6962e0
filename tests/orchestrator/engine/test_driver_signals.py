"""A driver that is told to stop, on a real local Ray: it ends cleanly, and the next run goes on."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import sweep, wait_for
from tests.support.program import run
from tests.support.toyworld import save_world

pytestmark = pytest.mark.ray


def written(store: Path) -> dict[Path, int]:
    """Record -> when it was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in store.glob("trials/t*.parquet")}


@pytest.mark.parametrize(
    ("number", "code", "by"),
    [
        pytest.param(signal.SIGINT, 130, "Ctrl-C", id="ctrl-c"),
        pytest.param(signal.SIGTERM, 3, "SIGTERM", id="terminated", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_sweep_goes_on(
    tmp_path: Path, number: signal.Signals, code: int, by: str
) -> None:
    save_world(tmp_path, seeds=list(range(4)), name="broken-off")
    store = tmp_path / "lp-sweep-store"
    with sweep(tmp_path, "sweep.yaml") as process:
        wait_for(lambda: process.text().count("] done ") >= 2, f"two trials: {process.text()}")
        process.process.send_signal(number)
        assert process.wait(60) == code, process.text()
    assert f"stopped by {by}" in process.text()
    assert "Traceback (most" not in process.text()
    before = written(store)
    assert 2 <= len(before) < 8
    done = run("run", "sweep.yaml", cwd=tmp_path)
    told = re.search(r"(\d+) done in this run", done.stderr)
    assert told
    # a worker may record its trial after the driver has ended
    assert int(told[1]) <= 8 - len(before)
    assert len(Store(store).names("trials")) == 8
    assert before.items() <= written(store).items()


@pytest.mark.parametrize("seconds", [0.0, 1.5], ids=["at once", "while Ray starts"])
@pytest.mark.slow
def test_a_signal_while_ray_starts(tmp_path: Path, seconds: float) -> None:
    """Ray's own handler would end the process at once, with the number of the signal."""
    save_world(tmp_path)
    announced = tmp_path / "lp-sweep-store" / "runs"
    with sweep(tmp_path, "sweep.yaml") as process:
        wait_for(lambda: list(announced.glob("*.json")), "the announcement")
        time.sleep(seconds)
        process.process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 3, process.text()
    assert "stopped by SIGTERM" in process.text()
