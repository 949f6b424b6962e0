"""A driver that is told to stop, on a real local Ray: in order, and the next run goes on."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.store import Store
from tests.support.program import command, environment, record_path, run
from tests.support.toyworld import save_world

pytestmark = pytest.mark.ray


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 3, id="terminated", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_sweep_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    save_world(tmp_path, seeds=list(range(4)), name="broken-off")
    log = tmp_path / "log.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            command("run", "sweep.yaml"),
            cwd=tmp_path,
            env=environment(tmp_path),
            stderr=stream,
            start_new_session=True,
            # a shell's background job inherits an ignored SIGINT; a terminal's job does not
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        wait_for(lambda: log.read_text().count("] done ") >= 2, process)
        process.send_signal(number)
        assert process.wait(60) == code, log.read_text()
    by = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"stopped by {by}" in log.read_text()
    assert "Traceback (most" not in log.read_text()
    store = Store(tmp_path / "lp-sweep-store")
    kept = {name: record_path(store, name).stat().st_mtime for name in store.names("trials")}
    assert 2 <= len(kept) < 8
    done = run("run", "sweep.yaml", cwd=tmp_path)
    told = re.search(r"(\d+) done in this run", done.stderr)
    assert told
    assert int(told[1]) <= 8 - len(kept)  # a worker may record its trial after the driver has ended
    assert len(store.names("trials")) == 8
    assert (
        kept.items()
        <= {
            name: record_path(store, name).stat().st_mtime for name in store.names("trials")
        }.items()
    )


@pytest.mark.parametrize("seconds", [0.0, 1.5], ids=["at once", "while Ray starts"])
@pytest.mark.slow
def test_a_signal_while_ray_starts(tmp_path: Path, seconds: float) -> None:
    """Ray's own handler would end the process at once, with the number of the signal."""
    save_world(tmp_path)
    with (tmp_path / "log.txt").open("w") as stream:
        process = subprocess.Popen(
            command("run", "sweep.yaml"), cwd=tmp_path, env=environment(tmp_path), stderr=stream
        )
        announced = tmp_path / "lp-sweep-store" / "runs"
        wait_for(lambda: list(announced.glob("*.json")), process)
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 3, (tmp_path / "log.txt").read_text()
    assert "stopped by SIGTERM" in (tmp_path / "log.txt").read_text()


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        assert process.poll() is None, "ended too early"
        time.sleep(0.1)
    raise AssertionError("waited in vain")
