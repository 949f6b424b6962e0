"""Measures the driver's CPU time and the slots' idle time, with hundreds of simulated slots.

    python -m benchmarks.scale --out benchmarks/results/scale.json [--seeds 83] [--driver-ms 14.1]
    python -m benchmarks.scale --s3 --seeds 16

Real: the plan of 20,010 trials, the queue, the searcher, the callback with its lines of text, the
claims in `runs/`, the attempts of lost workers, and a store in a folder. The CPU time and the
requests to the store are those of these parts in this process.

Simulated (simulation.py): the clock, the machines with one GPU each, Ray and Tune. A trial takes
some seconds of that clock. In 5% of the starts, the machine is lost at a random moment: the trial
loses at most 20 s of its work, and another machine arrives 3 minutes later. A worker takes 12 s to
start. Each start of a trial costs the driver `--driver-ms`, which driver_overhead.py measured with
Tune on two slots. Each request to the store takes the time in its row, which is an assumption. Not
included: the cost of Tune itself with more slots, and disk syncs.

During the first run, records go into the store as workers would write them.

`--s3`: no machine is lost, trials take a minute, and the claims go to a real S3 server behind a
proxy that answers after 50 ms. `busy` is the share of busy slots, without the first trials of all
slots and the last ones.
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
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.at_scale import DEPTH, planned, record, write_sweep
from benchmarks.simulation import Driver, Setting, Simulation
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.files import Folder
from lp_sweep.storage.store import Store
from tests.support.s3proxy import answering, pass_on
from tests.support.s3server import fresh_prefix, running_server

CASES = (  # slots, seconds of a trial, ms of a request
    (256, 600.0, 0.0),
    (256, 60.0, 25.0),
    (1000, 60.0, 25.0),
)


AFAR_MS = 50.0  # until the S3 server's answer


@contextlib.contextmanager
def far_bucket(folder: Path) -> Iterator[str]:
    """A store's location on a real S3 server that answers late."""
    os.environ |= {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark"}

    def late(request: BaseHTTPRequestHandler) -> None:
        time.sleep(AFAR_MS / 1000)
        pass_on(request, server.endpoint.removeprefix("http://"))

    with (
        running_server(folder / "s3.log") as server,
        answering(late) as host,
        fresh_prefix(f"http://{host}") as location,
    ):
        yield location


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
        simulation = Simulation(driver, publish, None if setting.bucket else (DEPTH + 1) / 2)
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
        "busy": simulation.busy(),
        "driver_busy": simulation.handling / simulation.now,
        "cpu_ms_a_trial": 1000 * driver.cpu / done,
        "requests_a_trial": driver.files.requests / done,
        "tuners": driver.tuners,
    }


def measured(folder: Path, seeds: int, driver_ms: float) -> list[dict[str, Any]]:
    plan = planned(write_sweep(folder, 0, seeds))
    runs = []
    for number, case in enumerate(CASES):
        setting = Setting(*case, driver_ms)
        runs.append(simulated(plan, folder / f"run-{number}", setting, records=number == 0))
        print(json.dumps(runs[-1]), flush=True)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=83, help="of each of 230 networks")
    parser.add_argument("--driver-ms", type=float, default=14.1, help="of the driver for a trial")
    parser.add_argument("--s3", action="store_true", help="claims on a real S3 server")
    parser.add_argument("--slots", type=int, default=1000, help="with --s3")
    parser.add_argument("--out", type=Path, help="write JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.s3:
            plan = planned(write_sweep(folder, 1, options.seeds))
            with far_bucket(folder) as bucket:
                setting = Setting(options.slots, 60.0, AFAR_MS, options.driver_ms, 0.0, bucket)
                print(json.dumps(simulated(plan, folder / "run", setting, records=False)))
            return
        told = {"runs": measured(folder, options.seeds, options.driver_ms)}
    if options.out:
        options.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
