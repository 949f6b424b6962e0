"""In the manner of Jepsen: several drivers on one store, stopped for longer than a claim lasts,
with clocks that jump and listings that come late. From the log of what they did: never two trainers
at a time for a trial whose claim was not lost, and no record is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import wait_for
from tests.support.historyworkers import plan_of
from tests.support.sweepfiles import make_inputs

DRIVERS = ("one", "two", "three")


class Span(NamedTuple):
    """A driver trained a trial, or was stopped."""

    start: float
    end: float
    driver: str
    trial: str = ""


def spans(log: Path) -> list[Span]:
    begun: dict[tuple[str, str], float] = {}
    found = []
    for line in log.read_text().splitlines():
        moment, what, driver, *trial = line.split()
        if what == "start":
            begun[driver, trial[0]] = float(moment)
        if what == "end":
            found.append(Span(begun.pop((driver, trial[0])), float(moment), driver, trial[0]))
    assert not begun
    return found


def twice(trained: list[Span], stopped: list[Span], lease: float) -> list[tuple[Span, Span]]:
    """Two trainers at a time, though the first one's claim was not lost: it was not silent for so
    long before the second began."""
    found = []
    for first, second in combinations(sorted(trained), 2):
        if first.trial == second.trial and second.start < first.end:
            silent = [
                min(stop.end, second.start) - stop.start
                for stop in stopped
                if stop.driver == first.driver
            ]
            if max(silent, default=0) < 0.8 * lease:
                found.append((first, second))
    return found


def history(
    folder: Path, *, jumps: float, late: float, lease: float = 60, stops: int = 0
) -> list[Span]:
    """Plays three drivers with random faults, and checks the rules that must always hold."""
    make_inputs(folder)
    plan, draw = plan_of(folder), random.Random(7)
    Store(folder / "store", create=True)
    arguments = [str(jumps), str(late), str(lease)]
    drivers = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.support.historyworkers", folder, name, *arguments]
        )
        for name in DRIVERS
    }
    stopped = []
    try:
        wait_for(lambda: len(list(folder.glob("*.ready"))) == len(DRIVERS), "three drivers", 60)
        (folder / "go").touch()
        for _ in range(stops):
            name = draw.choice(DRIVERS)
            began = time.monotonic()
            drivers[name].send_signal(signal.SIGSTOP)
            time.sleep(draw.choice([0.3, 1.6]) * lease)
            drivers[name].send_signal(signal.SIGCONT)
            stopped.append(Span(began, time.monotonic(), name))
            time.sleep(draw.uniform(0, 0.5))
        for name, driver in drivers.items():
            assert driver.wait(120) == 0, name
    finally:
        for driver in drivers.values():
            driver.kill()
    trained = spans(folder / "log.txt")
    assert twice(trained, stopped, lease) == []
    assert Store(folder / "store").names("trials") == set(plan.trials)
    assert {span.trial for span in trained} == set(plan.trials)
    return trained


CLOCKS_JUMP_AND_LISTINGS_COME_LATE = {"jumps": 7200.0, "late": 0.5}


def test_no_trial_has_two_trainers(tmp_path: Path) -> None:
    trained = history(tmp_path, **CLOCKS_JUMP_AND_LISTINGS_COME_LATE)
    assert len(trained) == len(plan_of(tmp_path).trials)
    assert {span.driver for span in trained} == set(DRIVERS)


@pytest.mark.slow
def test_drivers_that_are_stopped_for_longer_than_a_claim_lasts(tmp_path: Path) -> None:
    history(tmp_path, lease=6, stops=6, **CLOCKS_JUMP_AND_LISTINGS_COME_LATE)
