"""A whole sweep by lp-sweep against a shell loop over the Hugging Face Trainer, in wall-clock.

    pip install accelerate
    python benchmarks/sweep_cpu.py --model FOLDER --data-dir GLUE --out sweep-cpu.json
    python benchmarks/sweep_cpu.py --quickstart --out sweep-quickstart.json

The loop starts one process after another (padded_trainer.py), one for each cell whose layers are
chosen by position; it may use every core. lp-sweep does the same cells, into an empty store with
an empty token cache. Scores of both are printed: they need not be equal, as dropout and the order
of the rows differ, but must be alike.
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
from typing import Any

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
        "strategies": [{"name": "top", "k": [0, 1, 2, 3, 4, 5]}],
        "recipe": {
            "learning_rate": 1e-4,
            "epochs": 1,
            "limit_train": options.limit_train,
            "limit_dev": options.limit_dev,
        },
        "data_dir": str(options.data_dir.resolve()),
    }


def quickstart_sweep() -> dict[str, Any]:
    sweep = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    sweep["models"] = [str(QUICKSTART.parent / "model")]
    for task in sweep["tasks"]:
        task |= {name: str(QUICKSTART.parent / task[name]) for name in ("train", "dev")}
    sweep["strategies"] = [entry for entry in sweep["strategies"] if "k" in entry]
    return sweep


def jobs(sweep_file: Path) -> list[dict[str, Any]]:
    """One for each cell: a loop does not see that two cells are one network."""
    from lp_sweep.orchestrator.inputs.resolve import resolve
    from lp_sweep.orchestrator.plan.known import Known
    from lp_sweep.orchestrator.plan.planning import make_plan
    from lp_sweep.orchestrator.sweepfile.load import load_sweep

    plan = make_plan(resolve(load_sweep(sweep_file)), Known.nothing())
    return [plan.trials[cell.trial_id].job() for cell in plan.cells if cell.trial_id]


def loop(found: list[dict[str, Any]], folder: Path) -> tuple[float, list[dict[str, float]]]:
    begun, scores = time.perf_counter(), []
    for number, job in enumerate(found):
        path = folder / f"{number}.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, str(HERE / "padded_trainer.py"), str(path)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        scores.append(json.loads(ended.stdout.splitlines()[-1]))
        print(f"loop: {number + 1} of {len(found)}", file=sys.stderr, flush=True)
    return time.perf_counter() - begun, scores


def sweep(sweep_file: Path, store: Path) -> float:
    begun = time.perf_counter()
    command = [sys.executable, "-m", "lp_sweep.orchestrator.cli", "run", str(sweep_file)]
    places = ["--store", str(store), "--cache-dir", str(store.with_name("cache"))]
    subprocess.run([*command, *places], check=True, env={**os.environ, "RAY_worker_niceness": "0"})
    return time.perf_counter() - begun


def stored(store: Path) -> dict[str, float]:
    from lp_sweep.storage.store import Store

    rows = Store(str(store)).read_all("trials").rows
    return dict(zip(rows["trial_id"].to_pylist(), rows["last"].to_pylist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--quickstart", action="store_true")
    parser.add_argument("--limit-train", type=int, default=320)
    parser.add_argument("--limit-dev", type=int, default=160)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    content = quickstart_sweep() if options.quickstart else real_sweep(options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "sweep.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        found = jobs(file)
        ours = sweep(file, folder / "store")
        last = stored(folder / "store")
        theirs, scores = loop(found, folder)
    metrics = [job["spec"]["task"]["metric"] for job in found]
    main_scores = [score[metric] for metric, score in zip(metrics, scores, strict=True)]
    result = {
        "cells": len(found),
        "networks": len({job["id"] for job in found}),
        "seconds": {"lp-sweep": ours, "loop": theirs},
        "ratio": theirs / ours,
        "mean_score": {
            "lp-sweep": statistics.mean(last[job["id"]] for job in found),
            "loop": statistics.mean(main_scores),
        },
        "cores": os.cpu_count(),
        "recipe": content["recipe"],
    }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
