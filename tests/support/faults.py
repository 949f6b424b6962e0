"""Shared by the tests that really kill processes, fill disks and cut connections. Not a test."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from lp_sweep.storage.store import Store
from tests.support.program import command

MARK = "LP_SWEEP_TEST_MARK"  # in the environment of all that a test starts, and may kill
# what two runs of one trial may differ in
OF_THE_MOMENT = {
    "command",
    "dev_examples_per_second",
    "ended_at",
    "peak_memory_bytes",
    "resumed_from_step",
    "started_at",
    "train_examples_per_second",
    "versions",
}


class Sweep:
    """`lp-sweep run` as a process of its own, whose workers can be found, and killed."""

    def __init__(
        self,
        folder: Path,
        *arguments: str | Path,
        within: Sequence[str] = (),
        **environment: str,
    ) -> None:
        """`within`: a command that runs another one, such as `unshare`."""
        self.mark = uuid.uuid4().hex
        self.log = folder / f"log-{self.mark[:8]}.txt"
        self._stream = self.log.open("w")
        self.process = subprocess.Popen(
            [*within, *command("run", *arguments)],
            cwd=folder,
            env=os.environ
            | {"LP_SWEEP_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
            | {"RAY_worker_niceness": "0"}
            | environment
            | {MARK: self.mark},
            stderr=self._stream,
            stdout=self._stream,
            start_new_session=True,
            # a shell's background job inherits an ignored SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = 300) -> int:
        code = self.process.wait(seconds)
        self._stream.close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait(30)

    def relatives(self) -> list[psutil.Process]:
        """Every process that this run has started, and that lives."""
        return [process for process in marked(self.mark) if process.pid != self.process.pid]

    def workers(self) -> list[psutil.Process]:
        """The processes that trials run in."""
        found = []
        for process in self.relatives():
            try:
                title = " ".join(process.cmdline()[:1])
            except psutil.Error:
                continue
            if title.startswith("ray::") and "IDLE" not in title:
                found.append(process)
        return found


@contextmanager
def sweep(folder: Path, *arguments: str | Path, **environment: str) -> Iterator[Sweep]:
    """Ends with nothing of it alive."""
    run = Sweep(folder, *arguments, **environment)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGTERM)
            try:
                run.wait(30)
            except subprocess.TimeoutExpired:
                run.kill()
        kill_marked(run.mark)


def marked(mark: str) -> list[psutil.Process]:
    """The processes that live and have this mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_marked(mark: str) -> None:
    for process in marked(mark):
        with suppress(psutil.Error):
            process.kill()


def with_changes(**switches: str) -> dict[str, str]:
    """An environment in which trials are as `noop/sitecustomize.py` has it."""
    path = [str(Path(__file__).parent / "noop"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), **switches}


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


def kill_one(processes: list[psutil.Process], draw: random.Random) -> bool:
    if not processes:
        return False
    try:
        draw.choice(processes).kill()
    except psutil.Error:
        return False
    return True


def records(store: Store) -> dict[str, dict[str, Any]]:
    """Trial -> what two runs of it must agree in. Fails on a file that can't be read."""
    listing = store.read_all("trials")
    assert listing.unreadable == []
    rows = listing.rows.to_pylist()
    assert len({row["trial_id"] for row in rows}) == len(rows)
    return {
        row["trial_id"]: {
            name: value
            for name, value in row.items()
            if name not in OF_THE_MOMENT and not name.startswith("seconds_")
        }
        for row in rows
    }


def predictions(store: Store) -> dict[tuple[str, str, int], tuple[Any, ...]]:
    rows = store.read_all("predictions").rows.to_pylist()
    found = {
        (row["trial_id"], row["split"], row["example"]): (
            row["label"],
            row["prediction"],
            tuple(row["scores"]),
        )
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def assert_equal(store: Store, undisturbed: Store) -> None:
    """Value by value: every score, loss and logit."""
    expected, found = records(undisturbed), records(store)
    assert expected
    assert found.keys() == expected.keys()
    for trial, row in found.items():
        assert {n: v for n, v in row.items() if v != expected[trial][n]} == {}, trial
    assert predictions(store) == predictions(undisturbed)
