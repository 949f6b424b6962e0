"""Measures how long a slot waits between two trials of a real `lp-sweep run` on a local Ray.

    python -m benchmarks.between_trials --model FOLDER --data-dir GLUE --out between-trials.json
    ... --tasks rte mrpc --k 0 1 --seeds 1 --rows 1500 --out slot-busy.json

The wait lasts from the end of one trial to the first step of the next. In this time, the first
trial's record is written, Ray Tune starts the next trial, and its network is made. The wait is
computed from the records: from `ended_at` of one trial to `started_at` of the next, plus the part
of the next trial's `seconds_total` that is neither `seconds_train` nor `seconds_evaluate`. One row
is for trials that are the first of their task or depth; the others are grouped by the trial before
them. The busy share is the part of the wall time (from the start of the first trial to the end of
the last) in which the slot trains or evaluates; it is meaningful only for trials of 30 s or more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from lp_sweep.storage.store import Store

COLD = "first of its kind"
ROW = "{:<22} {:>6} {:>9} {:>9} {:>9}"


def run(options: argparse.Namespace, folder: Path) -> Store:
    """Run short trials of small networks of several depths. Returns their store."""
    sweep = {
        "schema_version": 1,
        "name": "between-trials",
        "models": [str(options.model.absolute())],
        "tasks": options.tasks,
        "seeds": list(range(1, options.seeds + 1)),
        "strategies": [{"name": "top", "k": options.k}],
        "data_dir": str(options.data_dir.absolute()),
        "recipe": {
            "batch_size": 16,
            "epochs": 1,
            "max_length": 64,
            "limit_train": options.rows,
            "limit_dev": options.rows,
            "compute": "fast",
        },
        "resources_per_trial": {"cpu": os.cpu_count()},
    }
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    store = folder / "store"
    command = [
        sys.executable,
        "-m",
        "lp_sweep.orchestrator.cli",
        "run",
        str(path),
        "--even-if-not-learned",
    ]
    environment = os.environ | {"LP_SWEEP_CACHE_DIR": str(folder / "cache")}
    subprocess.run([*command, "--store", str(store)], check=True, env=environment)
    return Store(store)


def in_order(store: Store) -> list[dict[str, Any]]:
    return sorted(store.read_all("trials").rows.to_pylist(), key=lambda row: row["started_at"])


def busy(trials: list[dict[str, Any]]) -> dict[str, float]:
    """The share of the wall time in which the slot trained or evaluated, and seconds per trial."""
    wall = (trials[-1]["ended_at"] - trials[0]["started_at"]).total_seconds()
    worked = sum(row["seconds_train"] + row["seconds_evaluate"] for row in trials)
    seconds = [row["seconds_total"] for row in trials]
    return {"share": worked / wall, "shortest": min(seconds), "longest": max(seconds)}


def gaps(trials: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Seconds before each trial except the first, in run order, grouped by the trial before it."""
    found: dict[str, list[float]] = {COLD: [], "the task before": [], "another task": []}
    seen = {trials[0]["task"], trials[0]["k"]}
    for before, after in pairwise(trials):
        kind = "the task before" if before["task"] == after["task"] else "another task"
        new = {after["task"], after["k"]} - seen
        seen |= new
        waited = (after["started_at"] - before["ended_at"]).total_seconds()
        busy = after["seconds_train"] + after["seconds_evaluate"]
        found[COLD if new else kind].append(waited + after["seconds_total"] - busy)
    return {kind: values for kind, values in found.items() if values}


def summary(values: list[float]) -> dict[str, Any]:
    return {
        "trials": len(values),
        "median": statistics.median(values),
        "p90": sorted(values)[round(0.9 * (len(values) - 1))],
        "max": max(values),
        "seconds": values,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["sst2", "rte"])
    parser.add_argument("--k", nargs="+", type=int, default=[3, 4, 5])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=64, help="at most, to learn from and of dev")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trials = in_order(run(options, Path(folder)))
    found = {name: summary(values) for name, values in gaps(trials).items()}
    work = busy(trials)
    print(ROW.format("seconds between trials", "trials", "median", "p90", "max"))
    for name, row in found.items():
        numbers = (f"{row[of]:.3f}" for of in ("median", "p90", "max"))
        print(ROW.format(name, row["trials"], *numbers))
    print(f"busy {work['share']:.1%} of the wall time; trials of {work['shortest']:.0f} s or more")
    if options.out:
        settings = {"model": options.model.name, "tasks": options.tasks, "k": options.k}
        told = {"between_trials": found, "busy": work, "settings": settings}
        text = json.dumps(told, indent=2)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
