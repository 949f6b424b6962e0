"""One of several drivers on a store, with trials that only sleep, and what they do in a log.

python -m tests.support.historyworkers FOLDER NAME CLOCK_JUMPS LATE LEASE

CLOCK_JUMPS: seconds by which its clock jumps to and fro; LATE: seconds until a new file is listed;
LEASE: seconds after which a silent driver's claims are lost. Not a test.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage import runs
from lp_sweep.storage.files import FileInfo, Folder
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.store import Store
from tests.support.stores import trial
from tests.support.sweepfiles import planned

SEEDS = "seeds=[1,2,3,4,5,6,7,8]"


def plan_of(folder: Path) -> Plan:
    return planned(folder / "sweep.yaml", SEEDS)


class Log:
    """Lines of one file that several processes write; the clock is the machine's, for all."""

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder / "log.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(self, *words: object) -> None:
        line = " ".join(map(str, (f"{time.monotonic():.6f}", *words)))
        os.write(self._handle, f"{line}\n".encode())


class Late(Folder):
    """A mount, or an object store, whose listings show a new file only after a while."""

    def __init__(self, location: Path, seconds: float) -> None:
        super().__init__(location, durable=False)
        self._seconds = seconds
        self._births = location.with_name("births")
        self._births.mkdir(exist_ok=True)

    def _birth(self, path: str) -> Path:
        return self._births / path.replace("/", "%")

    def write(self, path: str, content: bytes) -> None:
        super().write(path, content)
        if not self._birth(path).exists():
            self._birth(path).write_text(repr(time.monotonic()))

    def list(self, folder: str) -> list[FileInfo]:
        return [info for info in super().list(folder) if self._is_seen(f"{folder}/{info.name}")]

    def _is_seen(self, path: str) -> bool:
        try:
            return float(self._birth(path).read_text()) + self._seconds < time.monotonic()
        except (FileNotFoundError, ValueError):
            return False


def jumping(seconds: float, draw: random.Random) -> Any:
    """datetime, by a clock that somebody sets to and fro."""

    class Jumping(dt.datetime):
        @classmethod
        def now(cls, zone: Any = None) -> dt.datetime:  # type: ignore[override]
            return dt.datetime.now(zone) + dt.timedelta(seconds=draw.choice([-1, 0, 1]) * seconds)

    class Module:
        datetime, timedelta, UTC = Jumping, dt.timedelta, dt.UTC

    return Module


def main(root: str, name: str, jumps: str, late: str, lease: str) -> None:
    folder, draw = Path(root), random.Random(name)
    runs.BEAT_SECONDS, runs._STALE_SECONDS = float(lease) / 12, float(lease)
    runs._LONGEST_GAP = float(lease) / 6
    runs._machine = lambda: name  # each is on a machine of its own
    if float(jumps):
        runs.dt = jumping(float(jumps), draw)
    store = Store(folder / "store", create=True)
    if float(late):
        store.files = Late(folder / "store", float(late))
    log = Log(folder)
    queue = WorkQueue(plan_of(folder), store, Rates([], gpu=False), lambda plan: None)
    (folder / f"{name}.ready").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    with Presence(store, "plain", queue.progress).announced() as presence:
        queue.claims = presence
        while queue.open:
            work = queue.take(3)  # what it claims for two more slots, it begins later
            if work is None:
                time.sleep(0.05)
                queue.look_elsewhere()
                continue
            log.say("start", name, work.id)
            time.sleep(draw.uniform(0.02, 0.2))
            log.say("end", name, work.id)
            store.put("trials", work.id, [trial(work.id)])
            queue.ended(work.id, None)
    log.say("over", name, len(queue.failed))


if __name__ == "__main__":
    main(*sys.argv[1:])
