"""Measures the driver's CPU time and the slots' idle time, with hundreds of simulated slots.

    python -m benchmarks.scale --out benchmarks/results/scale.json [--seeds 87] [--driver-ms 14.1]

Real: the plan of 20,010 trials, the queue, the searcher, the callback with its lines of text, the
claims in `runs/`, the attempts of lost workers, and a store in a folder. The CPU time and the
requests to the store are those of these parts in this process.

Simulated (simulation.py): the clock, the machines with one GPU each, Ray and Tune. A trial takes
some seconds of that clock. In 5% of the starts, the machine is lost at a random moment: the trial
loses at most 20 s of its work, and another machine arrives 3 minutes later. A worker takes 12 s to
start. Each start of a trial costs the driver `--driver-ms`, which driver_overhead.py measured with
Tune on two slots. Each request to the store takes the time in its row, which is an assumption. Not
included: the cost of Tune itself with more slots, and disk syncs.

During the first run, records go into the store as workers would write them; then they are listed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.at_scale import DEPTH, planned, record, write_sweep
from benchmarks.simulation import Driver, Setting, Simulation
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.folder import Folder
from lp_sweep.storage.packs import compact
from lp_sweep.storage.store import Store

LARGE_SEEDS = 435  # 100,050 trials
CASES = (  # slots, seconds of a trial, ms of a request
    (256, 600.0, 0.0),
    (256, 60.0, 25.0),
    (1000, 60.0, 25.0),
)


def planning(folder: Path, seeds: int) -> dict[str, Any]:
    """Measures a plan and its queue, in a separate process."""
    folder.mkdir()
    file, process = write_sweep(folder, 0, seeds), psutil.Process()
    before, begun = process.memory_info().rss, time.process_time()
    plan, store = planned(file), Store(folder / "store", create=True)
    queue = WorkQueue(plan, store, Rates([], gpu=True), lambda plan: None)
    seconds = time.process_time() - begun
    megabytes = (process.memory_info().rss - before) / 2**20
    return {"trials": queue.waiting, "memory_mb": megabytes, "cpu_seconds": seconds}


def simulated(plan: Plan, folder: Path, setting: Setting, *, records: bool) -> dict[str, Any]:
    """Simulates one run to its end."""
    workers = Store(folder / "store", create=True)
    workers.files = Folder(folder / "store", durable=False)
    draw, numbers = np.random.default_rng(1), itertools.count()

    def publish(work: Work) -> None:
        if records:
            workers.put("trials", work.id, [record(work, next(numbers), draw)])

    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        driver = Driver(plan, folder, setting)
        simulation = Simulation(driver, publish, (DEPTH + 1) / 2)
        with driver.presence.announced():
            simulation.run()
    done = len(driver.queue.done)
    if done != len(plan.trials):
        raise SystemExit(f"{done} of {len(plan.trials)} trials are done")
    return {
        **setting._asdict(),
        "trials": done,
        "preempted": simulation.taken,
        "hours": simulation.now / 3600,
        "utilisation": simulation.work_seconds / (setting.slots * simulation.now),
        "driver_busy": simulation.handling / simulation.now,
        "cpu_ms_a_trial": 1000 * driver.cpu / done,
        "requests_a_trial": driver.files.requests / done,
        "tuners": driver.tuners,
    }


def listed(folder: Path) -> dict[str, Any]:
    """Times the first listing of the store's records."""
    store, begun = Store(folder / "store"), time.process_time()
    names = store.names("trials")
    seconds = time.process_time() - begun
    sizes = [path.stat().st_size for path in (folder / "store/trials").rglob("*.parquet")]
    return {
        "records": len(names),
        "files": len(sizes),
        "megabytes": sum(sizes) / 2**20,
        "cpu_seconds": seconds,
    }


def measured(folder: Path, seeds: int, driver_ms: float) -> Iterator[tuple[str, Any]]:
    spawned = get_context("spawn")
    with ProcessPoolExecutor(1, spawned, max_tasks_per_child=1) as alone:
        places = {folder / f"seeds-{count}": count for count in (seeds, LARGE_SEEDS)}
        yield "plans", [alone.submit(planning, *place).result() for place in places.items()]
    plan = planned(folder / f"seeds-{seeds}" / "sweep.yaml")
    runs = []
    for number, case in enumerate(CASES):
        setting = Setting(*case, driver_ms)
        runs.append(simulated(plan, folder / f"run-{number}", setting, records=number == 0))
        print(json.dumps(runs[-1]), flush=True)
    yield "runs", runs
    single = listed(folder / "run-0")
    compact(Store(folder / "run-0" / "store"), settle=0)
    yield "store", {"as written": single, "compacted": listed(folder / "run-0")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=87, help="of each of 230 networks")
    parser.add_argument("--driver-ms", type=float, default=14.1, help="of the driver for a trial")
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        for what, found in measured(Path(name), options.seeds, options.driver_ms):
            told[what] = found
            print(what, json.dumps(found), flush=True)
    if options.out:
        options.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
