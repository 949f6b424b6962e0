"""Eight real runs share a store as eight containers would that are all called the same: each has a
namespace of processes, in which it is process 1. They are killed at random and started again; the
clocks of two are wrong. In the end the records are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import Sweep, assert_equal, kill_marked, sweep, wait_for, with_changes
from tests.support.toyworld import RECIPE, save_world

RUNS, KILLS = 8, 4  # of each run
CONTAINER = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")
CLOCKS = {0: 600, 1: -600}  # seconds by which they are wrong
SUPPORT = Path(__file__).parents[2] / "support"
PYTHON = "/usr/bin/python3"  # has Debian's packages
WORLD = {
    "seeds": [1, 2, 3, 4],
    "strategies": [
        {"name": "top", "k": [0, 1, 2]},
        {"name": "bottom", "k": [1, 2]},
        {"name": "contribution", "threshold": [0.2, 0.999]},
    ],
    "procedures": ["direct", "finetune_then_drop", "iterative"],
    "checkpoint_every": 1,
    "recipe": RECIPE | {"epochs": 2},
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("cc") or not shutil.which("unshare"),
        reason="needs root, unshare and a C compiler",
    ),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that was run once without any disturbance."""
    folder = tmp_path_factory.mktemp("claims")
    source, library = SUPPORT / "wrongclock.c", folder / "wrongclock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    save_world(folder, **WORLD)
    with sweep(folder, "sweep.yaml", "--store", "undisturbed", "--inline") as run:
        assert run.wait() == 0, run.text()
    return folder


def started(world: Path, store: Path, cache: Path, wrong_by: int = 0, **switches: str) -> Sweep:
    """A run on a machine of its own, whose clock may be wrong."""
    settings = with_changes(**switches) | {"LP_SWEEP_CACHE_DIR": str(cache)}
    if wrong_by:
        settings["WRONG_BY"] = str(wrong_by)
        settings["LD_PRELOAD"] = str(world / "wrongclock.so")
    words = ["sweep.yaml", "--store", store, "--inline"]
    return Sweep(world, *words, within=CONTAINER, **settings)


class Machine:
    """Runs the sweep until it is complete, and is killed now and then."""

    def __init__(self, number: int, world: Path, store: Path, caches: Path) -> None:
        self.draw, self.kills, self.ended = random.Random(number), 0, False
        self.runs: list[Sweep] = []
        self.where = world, store, caches / str(number), CLOCKS.get(number, 0)
        self.start()

    def start(self) -> None:
        self.runs.append(started(*self.where, LP_SWEEP_TEST_STEP_SECONDS="0.05"))
        self.dies = time.monotonic() + self.draw.uniform(4, 24)

    def step(self) -> None:
        """Kills the run if its time has come, and starts it again."""
        run = self.runs[-1]
        if not self.ended and run.process.poll() is not None:
            assert run.wait() == 0, run.text()[-3000:]
            self.ended = True
        elif not self.ended and self.kills < KILLS and time.monotonic() > self.dies:
            run.kill()
            self.kills += 1
            self.start()

    def text(self) -> str:
        return "".join(run.text() for run in self.runs)


def play(world: Path, stores: list[Path], caches: Path) -> str:
    """Returns what all runs printed."""
    machines: list[Machine] = []
    end = time.monotonic() + 600
    try:
        for number, store in enumerate(stores):
            machines.append(Machine(number, world, store, caches))
        while not all(machine.ended for machine in machines):
            assert time.monotonic() < end, "\n".join(machine.text()[-500:] for machine in machines)
            time.sleep(0.1)
            for machine in machines:
                machine.step()
    finally:
        for machine in machines:
            kill_marked(machine.runs[-1].mark)
    text = "".join(machine.text() for machine in machines)
    assert "Traceback" not in text
    print(sum(machine.kills for machine in machines), "kills")
    return text


def trainings(text: str) -> Counter[str]:
    """Trial -> how often it was trained to its end."""
    found = Counter(re.findall(r"] done +(.*): accuracy", text))
    print(f"{found.total()} trainings of {len(found)} trials")
    return found


def assert_undisturbed(world: Path, store: Path) -> None:
    """Every record once, the same cells and measurements, and no announcement is left."""
    own, other = Store(store), Store(world / "undisturbed")
    assert_equal(own, other)
    assert own.names("profiles") == other.names("profiles")
    assert own.read_all("sweeps").rows == other.read_all("sweeps").rows
    assert not own.listing("runs")


def test_eight_runs_that_are_killed_at_random_train_each_trial_once(
    world: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    text = play(world, [store] * RUNS, tmp_path)
    assert_undisturbed(world, store)
    assert "warning:" not in text
    assert max(trainings(text).values()) == 1


def test_claims_of_dead_runs_are_free_after_75_seconds(world: Path, tmp_path: Path) -> None:
    """Whatever the clocks of their machines say."""
    folder, store, runs = tmp_path / "world", tmp_path / "store", list[Sweep]()
    save_world(folder, seeds=[1, 2], strategies=[{"name": "top", "k": [0]}], checkpoint_every=1)
    shutil.copy(world / "wrongclock.so", folder)
    try:
        for number, wrong_by in CLOCKS.items():
            slow = {"LP_SWEEP_TEST_STEP_SECONDS": "60"}
            runs.append(started(folder, store, tmp_path / str(number), wrong_by, **slow))
        wait_for(lambda: all(" start " in run.text() for run in runs), "two trials", 60)
        observer = started(folder, store, tmp_path / "observer")
        runs.append(observer)
        wait_for(lambda: observer.text().count("shares the work") == 2, "the other runs", 60)
        time.sleep(5)
        for run in runs[:2]:
            run.kill()
        killed = time.monotonic()
        assert " start " not in observer.text()
        for number in (1, 2):
            wait_for(
                lambda number=number: observer.text().count(" start ") >= number,
                "a free trial",
                100,
            )
            print(f"claim {number} free after {time.monotonic() - killed:.0f} s")
            assert time.monotonic() - killed <= 75
        assert observer.wait(60) == 0
    finally:
        for run in runs:
            kill_marked(run.mark)


@contextmanager
def mounted(
    folder: Path, number: int, least: float, most: float, skew: float
) -> Iterator[list[Path]]:
    """The mounts of so many machines of one file system: see `latefs.py`."""
    mounts = [folder / f"mount-{index}" for index in range(number)]
    for mount in mounts:
        mount.mkdir()
    words = [PYTHON, SUPPORT / "latefs.py", str(least), str(most), str(skew), *mounts]
    with subprocess.Popen(words) as server:
        try:
            wait_for(lambda: all(map(os.path.ismount, mounts)), "mounts", 20)
            yield mounts
        finally:
            for mount in mounts:
                subprocess.run(["umount", "--lazy", mount], check=False)
            server.terminate()


def has_fuse() -> bool:
    found = subprocess.run([PYTHON, "-c", "import fusepy"], capture_output=True, check=False)
    return found.returncode == 0 and Path("/dev/fuse").exists()


@pytest.mark.skipif(not has_fuse(), reason="needs /dev/fuse and Debian's python3-fusepy")
def test_what_others_do_is_seen_late_and_in_another_order(world: Path, tmp_path: Path) -> None:
    """Then claims are lost, and trials trained twice: nothing else happens."""
    with mounted(tmp_path, RUNS, 0.5, 5, skew=-1500) as mounts:
        trainings(play(world, [mount / "store" for mount in mounts], tmp_path))
        time.sleep(6)
        assert_undisturbed(world, mounts[0] / "store")
