"""Measures the driver's CPU time per trial, with trials that cost nothing. It should not grow with
the number of trials.

    python -m benchmarks.driver_overhead [--trials 100 1000 10000] --out driver-overhead.json

A real `lp-sweep run` on a local Ray, whose trials are replaced by ones that make a record at once
(as in tests/orchestrator/engine/test_driver.py). The CPU seconds are those of the driver's process
alone, from a tenth of the trials to the end: the start of Ray is not included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.support.toyworld import save_world

ROOT = Path(__file__).parent.parent


def measure(trials: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_world(folder, seeds=f"0-{trials - 1}", strategies=[{"name": "top", "k": [0]}])
        store = folder / "store"
        noop = {"LP_SWEEP_TEST_NOOP": "1", "PYTHONPATH": str(ROOT / "tests" / "support" / "noop")}
        command = ["run", str(folder / "sweep.yaml"), "--store", str(store)]
        command += ["--cache-dir", str(folder / "cache")]
        process = subprocess.Popen(
            [sys.executable, "-m", "lp_sweep.orchestrator.cli", *command],
            env={**os.environ, **noop},
            cwd=folder,
            stderr=subprocess.DEVNULL,
        )
        samples = list(watch(process, store))
        if process.wait():
            raise SystemExit(f"the run of {trials} trials ended with {process.returncode}")
    first = next(sample for sample in samples if sample.records >= trials / 10)
    last = samples[-1]
    done = last.records - first.records
    return {
        "trials": trials,
        "cpu_ms_a_trial": 1000 * (last.cpu - first.cpu) / done,
        "wall_ms_a_trial": 1000 * (last.wall - first.wall) / done,
        "cpu_seconds_in_all": last.cpu,
        "memory_mb": max(sample.megabytes for sample in samples),
    }


class Sample(NamedTuple):
    """One measurement of the driver's process: CPU seconds so far, and resident memory."""

    records: int
    cpu: float
    wall: float
    megabytes: float


def watch(process: subprocess.Popen[bytes], store: Path) -> Iterator[Sample]:
    driver = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            used, size = driver.cpu_times(), driver.memory_info().rss / 2**20
        except psutil.Error:
            return
        records = len(list(store.glob("trials/t*.parquet")))
        if size:  # else it has ended, and waits to be reaped
            yield Sample(records, used.user + used.system, time.perf_counter(), size)
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    for trials in options.trials:
        found.append(measure(trials))
        print(json.dumps(found[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"driver": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
