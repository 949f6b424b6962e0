"""Times commands on a sweep of 20,000 cells and a compacted store of 100,000 records.

    python -m benchmarks.at_scale --out at-scale.json [--seeds 83] [--keep FOLDER] [--all]

Each command runs in its own process, as a user starts it. The time for its start and imports is
shown next to it: this is the command's time with 2 seeds of each sweep, over 2,300 records. The
records are made up and have no predictions: five sweeps, each of 5 models of 12 layers, 2 tasks,
`top` and `bottom` with every K. The store has half of the sweep that `plan` reads.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors.numpy import save_file

from lp_sweep.analysis.tables import TABLES
from lp_sweep.orchestrator.engine.course import Recorder
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.schema import TRIALS
from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import put_pack
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json

SWEEPS, MODELS, TASKS, DEPTH = 5, 5, ("sentiment", "topic"), 12
_FEW_SEEDS = 2  # of each sweep
_STORE = "store"
_TOY = Path(__file__).parents[1] / "quickstart" / "model"
_PACK = 1_000  # records that `lp-sweep compact` puts into one file
_START = dt.datetime(2026, 1, 5, tzinfo=dt.UTC)


def write_sweep(folder: Path, first_seed: int, seeds: int, name: str = "scale") -> Path:
    """Write a sweep file and its inputs into the folder."""
    for number in range(MODELS):
        model = folder / f"model-{number}"
        model.mkdir(exist_ok=True)
        config = {"model_type": "bert", "num_hidden_layers": DEPTH, "hidden_size": 64 + number}
        config |= {"intermediate_size": 256, "num_attention_heads": 1}
        (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file({"w": np.zeros(1, np.float32)}, model / "model.safetensors")
        shutil.copy(_TOY / "tokenizer.json", model)
    for task in TASKS:
        for split, rows in (("train", 3000), ("dev", 300)):
            lines = [f"a sentence of {task} with number {n},{n % 2}\n" for n in range(rows)]
            text = "text,label\n" + "".join(lines)
            (folder / f"{task}-{split}.csv").write_text(text, encoding="utf-8")
    every_k = list(range(DEPTH))
    content = {
        "schema_version": 1,
        "name": name,
        "models": [f"./model-{number}" for number in range(MODELS)],
        "tasks": [
            {"name": t, "train": f"{t}-train.csv", "dev": f"{t}-dev.csv", "text": ["text"]}
            for t in TASKS
        ],
        "seeds": {"from": first_seed, "count": seeds},
        "strategies": [{"name": name, "k": every_k} for name in ("top", "bottom")],
    }
    file = folder / "sweep.yaml"
    file.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    return file


def planned(file: Path) -> Plan:
    return make_plan(resolve(load_sweep(file), offline=True), WorkHistory.nothing())


def record(work: Work, number: int, draw: np.random.Generator) -> dict[str, Any]:
    """A row of TRIALS as wide as a real one."""
    spec, kept = work.spec, len(work.spec.kept_layers)
    score = 0.9 - 0.4 * (1 - kept / DEPTH) ** 2 + float(draw.normal(0, 0.01))
    seconds = (3 + 4 * kept) * float(np.exp(draw.normal(0, 0.1)))
    dropped = [layer for layer in range(1, DEPTH + 1) if layer not in spec.kept_layers]
    ended = _START + dt.timedelta(seconds=number)
    return {
        "trial_id": work.id,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(spec),
        "model": work.model.name,
        "model_fingerprint": spec.model_fingerprint,
        "depth": DEPTH,
        "kept_layers": list(spec.kept_layers),
        "dropped_layers": dropped,
        "k": len(dropped),
        "procedure": spec.procedure,
        "task": work.task.name,
        "data_fingerprint": spec.data_fingerprint,
        "seed": spec.seed,
        **{name: getattr(spec.recipe, name) for name in spec.recipe.__slots__},
        "freeze_layers": [],
        "removed_feed_forwards": [],
        "epochs_per_layer": 2,
        "precision_used": "fp32",
        "compute_used": "padded",
        "metric": "accuracy",
        "last": score,
        "best": score,
        "best_epoch": 3,
        "majority": 0.5,
        "epoch_metrics": [
            {"epoch": e, "split": "validation", "metric": "accuracy", "value": score}
            for e in (1, 2, 3)
        ],
        "train_losses": [0.6, 0.4, 0.3],
        "train_examples": 3000,
        "dev_examples": 300,
        "train_tokens": 30_000,
        "dev_tokens": 3_000,
        "steps": 282,
        "micro_batch": 32,
        "out_of_memory_retries": 0,
        "resumed_from_step": 0,
        "params_total": 2_000_000 + 50_000 * kept,
        "params_encoder": 50_000 * kept,
        "params_embedding": 1_900_000,
        "seconds_load": 0.1,
        "seconds_tokenise": 0.1,
        "seconds_train": 0.9 * seconds,
        "seconds_evaluate": 0.1 * seconds,
        "seconds_total": seconds,
        "train_examples_per_second": 9000 / seconds,
        "dev_examples_per_second": 9000 / seconds,
        "peak_memory_bytes": 10**9 + 10**7 * kept,
        "command": "lp-sweep run sweep.yaml",
        "host": f"node-{number % 8}",
        "device_type": "cpu",
        "device_name": "AMD EPYC",
        "threads": 1,
        "started_at": ended - dt.timedelta(seconds=seconds),
        "ended_at": ended,
        "versions": {"lp_sweep": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    }


def fill(store: Store, plan: Plan) -> int:
    """Publish a record of every trial, in packs, and the cells. Returns the number of records."""
    draw = np.random.default_rng(0)
    works = list(plan.trials.values())
    for start in range(0, len(works), _PACK):
        rows = [
            record(work, start + place, draw)
            for place, work in enumerate(works[start : start + _PACK])
        ]
        put_pack(store, "trials", pa.Table.from_pylist(rows, TRIALS))
    Recorder(store, part=False, command="").cells(plan)
    return len(works)


def timed(*words: str, cwd: Path) -> dict[str, Any]:
    """Time one command as a process: wall seconds, CPU seconds of all threads, bytes printed."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "lp_sweep.orchestrator.cli", *words]
    done = subprocess.run(command, cwd=cwd, capture_output=True, check=False)
    wall = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.decode()}")
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"command": " ".join(words), "wall": wall, "cpu": cpu, "printed": len(done.stdout)}


def median_of(repeat: int, words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """The medians over the repeats, separately for wall and CPU time."""
    runs = [timed(*words, cwd=folder) for _ in range(repeat)]
    medians = {of: statistics.median(run[of] for run in runs) for of in ("wall", "cpu")}
    return runs[0] | medians


RESAMPLING = ("intervals", "significance", "min-layers-interval")
COMMANDS = (
    ("--version",),
    ("plan", "sweep.yaml"),
    ("plan", "sweep.yaml", "--json"),
    ("status",),
    *(("table", name) for name in TABLES if name not in RESAMPLING),
)


def build(folder: Path, seeds: int) -> tuple[int, int]:
    """Make the store, if there is none yet, and the sweep file of `plan`. Returns the number of
    cells in the file and of records in the store."""
    if not (folder / _STORE).exists():
        folder.mkdir(exist_ok=True)
        store = Store(folder / _STORE, create=True)
        for number in range(SWEEPS):
            file = write_sweep(folder, number * seeds, seeds, f"scale-{number}")
            fill(store, planned(file))
    last = SWEEPS - 1  # the sweep of which the store has half
    file = write_sweep(folder, last * seeds + seeds // 2, seeds, f"scale-{last}")
    return len(planned(file).cells), len(Store(folder / _STORE).names("trials"))


@contextlib.contextmanager
def place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=83, help="of each network")
    parser.add_argument("--repeat", type=int, default=3, help="the median of so many is told")
    parser.add_argument("--keep", type=Path, help="build the store here, or take the one here")
    parser.add_argument("--out", type=Path, help="write JSON")
    parser.add_argument("--all", action="store_true", help="the tables that resample, too")
    arguments = parser.parse_args()
    resampling = [("table", name) for name in RESAMPLING] if arguments.all else []
    with place(arguments.keep) as folder:
        os.environ["LP_SWEEP_STORE"] = _STORE  # relative to the folder that a command runs in
        cells, records = build(folder, arguments.seeds)
        build(folder / "few", _FEW_SEEDS)
        print(f"{cells:,} cells, {records:,} records", flush=True)
        results = []
        for words in (*COMMANDS, *resampling):
            start = median_of(arguments.repeat, words, folder / "few")
            whole = median_of(arguments.repeat, words, folder)
            results.append({**whole, "start": start["wall"], "start_cpu": start["cpu"]})
            print(
                f"{whole['wall']:7.2f} s  cpu {whole['cpu']:6.2f} s  start {start['wall']:5.2f} s  "
                f"{whole['command']}",
                flush=True,
            )
    if arguments.out:
        told = {"cells": cells, "records": records, "cores": os.cpu_count(), "commands": results}
        arguments.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
