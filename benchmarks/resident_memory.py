"""Measures the memory of one worker over 200 trials. It caches what it reads, and must not grow.

    python -m benchmarks.resident_memory --models FOLDER [FOLDER ...] --out resident-memory.json

Two encoders (two small ones without --models) and three small tasks take turns, so that no two
consecutive trials share a network or tokens. Every tenth trial diverges. Prints the process's
resident set after every 10 trials, and its growth per trial in the second half.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import linear_regression
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import yaml

from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.run import execute
from tests.support.toyworld import save_data, save_model

MIB = 2**20
TASKS = ("one", "two", "three")
EVERY, DIVERGES = 10, 10


def jobs(folder: Path, models: list[str], count: int) -> list[dict[str, Any]]:
    """The trials. Model, task and number of layers change from each trial to the next."""
    tasks = []
    for number, name in enumerate(TASKS, start=1):
        files = save_data(folder / name, train=64 + number, dev=32)
        paths = {"train": str(files / "train.csv"), "dev": str(files / "dev.csv")}
        tasks.append({"name": name, **paths, "text": ["text"]})
    sweep = {
        "schema_version": 1,
        "name": "memory",
        "models": models,
        "tasks": tasks,
        "seeds": list(range(count)),
        "strategies": [{"name": "top", "k": [0, 1, 2]}],
        "recipe": {"batch_size": 16, "epochs": 1, "max_length": 32, "compute": "fast"},
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    plan = make_plan(resolve(load_sweep(folder / "sweep.yaml", [])), WorkHistory.nothing())
    folders = {"store": str(folder / "store"), "cache_dir": str(folder / "cache")}
    place = {**folders, "device": "cpu", "threads": 1}
    found: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for work in plan.trials.values():
        of = (work.model.name, work.task.name, len(work.spec.kept_layers))
        found.setdefault(of, []).append({**work.job().to_plain(), **place})
    kinds = sorted(found, key=lambda of: (of[2], of[1], of[0]))
    return [found[kinds[n % len(kinds)]][n // len(kinds)] for n in range(count)]


def diverging(job: dict[str, Any]) -> dict[str, Any]:
    recipe = {**job["spec"]["recipe"], "learning_rate": 1e30}
    return {**job, "id": f"{job['id']}-diverges", "spec": {**job["spec"], "recipe": recipe}}


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / MIB


def worker(folder: Path, todo: list[dict[str, Any]]) -> list[dict[str, float]]:
    Store(folder / "store", create=True)
    seen = []
    for number, job in enumerate(todo, start=1):
        is_bad = number % DIVERGES == 0
        told = execute(diverging(job) if is_bad else job)
        assert told["status"] == ("failed" if is_bad else "done"), told
        if number % EVERY == 0:
            seen.append({"trials": number, "resident_mib": resident_mib()})
            print(f"{number:4} trials {seen[-1]['resident_mib']:8.1f} MiB", flush=True)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs=2)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = options.models or [str(save_model(folder / side)) for side in ("a", "b")]
        models = [str(Path(model).absolute()) for model in models]
        seen = worker(folder, jobs(folder, models, options.trials))
    half = seen[len(seen) // 2 :]
    slope = linear_regression(*zip(*(row.values() for row in half), strict=True)).slope
    print(f"a trial adds {slope * 1024:.1f} KiB")
    if options.out:
        found = {
            "kib_a_trial": slope * 1024,
            "seen": seen,
            "models": [Path(m).name for m in models],
        }
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
