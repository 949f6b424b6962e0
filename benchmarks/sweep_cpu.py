"""Compares a whole sweep by lp-sweep with a shell loop over the Hugging Face Trainer, in wall time.

    pip install accelerate
    python -m benchmarks.sweep_cpu --model FOLDER --data-dir GLUE --out sweep-cpu.json
    python -m benchmarks.sweep_cpu --quickstart --out sweep-quickstart.json

The loop starts one process after another (hf_trainer.py), one for each cell whose layers are
chosen by position; it may use every core. lp-sweep runs the same cells, with an empty store and an
empty token cache. They take turns, `--repeats` times; the ratio is the median over the turns.
Scores of both are shown by task. They need not be equal, as dropout and the order of the rows
differ, but must be similar. `--k 0 2 4` takes only the cells with these K.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
QUICKSTART = HERE.parent / "quickstart" / "sweep.yaml"


def real_sweep(options: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "benchmark",
        "models": [str(Path(options.model).resolve())],
        "tasks": ["rte", "mrpc", "stsb", "sst2"],
        "seeds": [1],
        "strategies": [{"name": "top", "k": options.k or [0, 1, 2, 3, 4, 5]}],
        "recipe": {
            "learning_rate": 1e-4,
            "epochs": 1,
            "limit_train": options.limit_train,
            "limit_dev": options.limit_dev,
        },
        "data_dir": str(options.data_dir.resolve()),
    }


def quickstart_sweep(options: Any) -> dict[str, Any]:
    sweep = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    sweep["models"] = [str(QUICKSTART.parent / "model")]
    for task in sweep["tasks"]:
        task |= {name: str(QUICKSTART.parent / task[name]) for name in ("train", "dev")}
    entries = [
        entry | {"k": [k for k in entry["k"] if not options.k or k in options.k]}
        for entry in sweep["strategies"]
        if "k" in entry
    ]
    sweep["strategies"] = [entry for entry in entries if entry["k"]]
    del sweep["measure"]
    return sweep


def jobs(sweep_file: Path) -> list[dict[str, Any]]:
    """A job for each cell: a loop does not know that two cells are one network."""
    from lp_sweep.orchestrator.inputs.resolve import resolve
    from lp_sweep.orchestrator.plan.known import WorkHistory
    from lp_sweep.orchestrator.plan.planning import make_plan
    from lp_sweep.orchestrator.sweepfile.load import load_sweep

    plan = make_plan(resolve(load_sweep(sweep_file)), WorkHistory.nothing())
    return [plan.trials[cell.trial_id].job().to_plain() for cell in plan.cells if cell.trial_id]


class Side(NamedTuple):
    """One side in one turn: wall time, and each job's score by the task's own metric."""

    seconds: float
    scores: list[float]


def loop(found: list[dict[str, Any]], folder: Path) -> Side:
    begun, scores = time.perf_counter(), []
    for number, job in enumerate(found):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.hf_trainer", str(path)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        scores.append(json.loads(ended.stdout.splitlines()[-1])[job["spec"]["task"]["metric"]])
        print(f"loop: {number + 1} of {len(found)}", file=sys.stderr, flush=True)
    return Side(time.perf_counter() - begun, scores)


def sweep(found: list[dict[str, Any]], sweep_file: Path, folder: Path) -> Side:
    store = folder / "store"
    begun = time.perf_counter()
    command = [sys.executable, "-m", "lp_sweep.orchestrator.cli", "run", str(sweep_file)]
    command.append("--even-if-not-learned")  # few rows
    places = ["--store", str(store), "--cache-dir", str(folder / "cache")]
    subprocess.run([*command, *places], check=True, env={**os.environ, "RAY_worker_niceness": "0"})
    seconds, last = time.perf_counter() - begun, stored(store)
    return Side(seconds, [last[job["id"]] for job in found])


def stored(store: Path) -> dict[str, float]:
    from lp_sweep.storage.store import Store

    rows = Store(str(store)).read_all("trials").rows
    return dict(zip(rows["trial_id"].to_pylist(), rows["last"].to_pylist(), strict=True))


def turns(found: list[dict[str, Any]], file: Path, repeats: int) -> list[dict[str, Side]]:
    """Run the turns, each with its own store, token cache and files."""
    taken = []
    for number in range(repeats):
        folder = file.with_name(f"turn-{number}")
        folder.mkdir()
        ours, theirs = sweep(found, file, folder), loop(found, folder)
        print(f"{theirs.seconds / ours.seconds:.2f}x", file=sys.stderr, flush=True)
        taken.append({"lp-sweep": ours, "loop": theirs})
    return taken


def summary(tasks: list[str], taken: list[dict[str, Side]]) -> dict[str, Any]:
    """The figures. `tasks`: the tasks of the jobs. Seconds are medians; scores are means over jobs
    and turns."""
    ratios = [turn["loop"].seconds / turn["lp-sweep"].seconds for turn in taken]

    def mean(side: str, of: set[str]) -> float:
        return statistics.mean(
            score
            for turn in taken
            for task, score in zip(tasks, turn[side].scores, strict=True)
            if task in of
        )

    sides = tuple(taken[0])
    return {
        "seconds": {
            side: statistics.median(turn[side].seconds for turn in taken) for side in sides
        },
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "turns": [{side: turn[side].seconds for side in sides} for turn in taken],
        "mean_score": {side: mean(side, set(tasks)) for side in sides},
        "scores": {
            task: {side: mean(side, {task}) for side in sides} for task in dict.fromkeys(tasks)
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--quickstart", action="store_true")
    parser.add_argument("--limit-train", type=int, default=320)
    parser.add_argument("--limit-dev", type=int, default=160)
    parser.add_argument("--k", type=int, nargs="+", help="the cells with these alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    content = quickstart_sweep(options) if options.quickstart else real_sweep(options)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "sweep.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        found = jobs(file)
        taken = turns(found, file, options.repeats)
    result = {
        "cells": len(found),
        "networks": len({job["id"] for job in found}),
        **summary([job["task"]["name"] for job in found], taken),
        "cores": os.cpu_count(),
        "recipe": content["recipe"],
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
