"""Does a trial of lp-sweep score as high as the Hugging Face Trainer? With dropout, other seeds.

    pip install accelerate
    python -m benchmarks.parity --model FOLDER --data-dir GLUE --runs runs.jsonl --out parity.json

Each side fine-tunes the full model on the same rows with the same recipe, and is scored on the same
dev rows; no seed is used twice. lp-sweep's side is the trial as a sweep runs it (`compute: fast`);
the Trainer pads each batch to its longest example. The two are called equivalent when the
difference of their means is within MARGIN points by two one-sided Welch t tests (TOST) at 5%: the
90% interval of the difference then lies within the margin. Finished runs are appended to `--runs`,
and the same command continues from there. Two commands with different `--tasks` can share the file.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import yaml

QUICKSTART = Path(__file__).parent.parent / "quickstart"
MARGIN = 1.0  # points
LEVEL = 0.05
FEWEST_SEEDS = 5  # per side, for a verdict
TRAINER_SEEDS = 1000  # the Trainer's n-th seed is this + n
FULL = [{"name": "top", "k": [0]}]


class Task(NamedTuple):
    """A task and its model: MiniLM, or the encoder of the quickstart."""

    minilm: bool
    seeds: int  # per side
    chance: float  # points of the majority class; 0 for a correlation
    recipe: dict[str, Any]


MINILM = {"batch_size": 16, "epochs": 1, "limit_train": 3000}
TOY = yaml.safe_load((QUICKSTART / "sweep.yaml").read_text(encoding="utf-8"))
TASKS = {
    "sst2": Task(True, 12, 50.9, MINILM | {"learning_rate": 1e-4}),
    "stsb": Task(True, 8, 0, MINILM | {"learning_rate": 5e-5, "epochs": 2}),
    "toy-sentiment": Task(False, 5, 50, TOY["recipe"]),
    "toy-similarity": Task(False, 30, 0, TOY["recipe"]),
}


class Equivalence(NamedTuple):
    """The equivalence test of two samples of scores in points; the difference is a - b."""

    difference: float
    low: float  # of the 90% interval of the difference of the means, Welch
    high: float
    p: float  # the larger of the two one-sided tests' p

    @property
    def verdict(self) -> str:
        """The verdict of the tests; *differs* needs the whole interval outside the margin."""
        if self.p < LEVEL:
            return "equivalent"
        return "differs" if self.low > MARGIN or self.high < -MARGIN else "cannot tell"


def tost(a: Sequence[float], b: Sequence[float]) -> Equivalence:
    """Two one-sided tests (Schuirmann 1987), without assuming equal variances. Needs at least two
    scores of each."""
    from scipy.stats import t

    shares = [statistics.variance(side) / len(side) for side in (a, b)]
    error = math.sqrt(sum(shares))
    difference = statistics.mean(a) - statistics.mean(b)
    if error == 0:
        return Equivalence(difference, difference, difference, float(abs(difference) >= MARGIN))
    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(side) - 1) for share, side in zip(shares, (a, b), strict=True)
    )
    half = float(t.ppf(1 - LEVEL, freedom)) * error
    p = float(t.sf((MARGIN - abs(difference)) / error, freedom))
    return Equivalence(difference, difference - half, difference + half, p)


def jobs_of(options: Any, name: str, seeds: int, folder: Path) -> list[dict[str, Any]]:
    """One job for each of lp-sweep's seeds, then for each of the Trainer's."""
    from benchmarks.sweep_cpu import jobs

    task = TASKS[name]
    sweep = {
        "schema_version": 1,
        "name": "parity",
        "models": [str(QUICKSTART / "model")],
        "tasks": [_absolute(one) for one in TOY["tasks"] if one["name"] == name],
        "seeds": [start + n for start in (0, TRAINER_SEEDS) for n in range(1, seeds + 1)],
        "strategies": FULL,
        "recipe": task.recipe,
    }
    if task.minilm:
        sweep["models"], sweep["tasks"] = [str(Path(options.model).resolve())], [name]
        sweep["data_dir"] = str(options.data_dir.resolve())
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(sweep), encoding="utf-8")
    return [{**job, "threads": 1, "cache_dir": str(folder / "cache")} for job in jobs(file)]


def _absolute(task: dict[str, Any]) -> dict[str, Any]:
    return task | {part: str(QUICKSTART / task[part]) for part in ("train", "dev")}


def points(job: dict[str, Any]) -> float:
    """The score of a job's network. The seed decides which side trains it."""
    from benchmarks.hf_trainer import scores_of
    from lp_sweep.trials.train.finetune import Saver
    from lp_sweep.trials.worker.fetch import Supplies
    from lp_sweep.trials.worker.job import Job
    from lp_sweep.trials.worker.trial import run_trial
    from lp_sweep.trials.worker.tries import Way

    if job["spec"]["seed"] > TRAINER_SEEDS:
        return 100 * scores_of(job, "longest")[job["spec"]["task"]["metric"]]
    trained = run_trial(Supplies(Job.from_plain(job)), Way(), Saver())
    return 100 * float(trained.record["last"])


def run(options: Any, folder: Path) -> None:
    """Yields the runs that `--runs` does not have yet, in turns for the two sides."""
    options.runs.parent.mkdir(parents=True, exist_ok=True)
    done = {(one["task"], one["seed"]) for one in finished(options.runs)}
    for name in options.tasks:
        every = jobs_of(options, name, options.seeds or TASKS[name].seeds, folder)
        half = len(every) // 2
        for job in (job for pair in zip(every[:half], every[half:], strict=True) for job in pair):
            seed = job["spec"]["seed"]
            if (name, seed) in done:
                continue
            begun = time.process_time()
            row = {"task": name, "seed": seed, "points": points(job)}
            row["cpu_seconds"] = round(time.process_time() - begun, 1)
            with options.runs.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)


def finished(runs: Path) -> list[dict[str, Any]]:
    if not runs.exists():
        return []
    return [json.loads(line) for line in runs.read_text(encoding="utf-8").splitlines()]


def summary(runs: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The figures of one task; None if a side has too few seeds."""
    points = {one["seed"]: one["points"] for one in runs if one["task"] == name}
    sides = {
        "lp_sweep": [points[seed] for seed in sorted(points) if seed <= TRAINER_SEEDS],
        "trainer": [points[seed] for seed in sorted(points) if seed > TRAINER_SEEDS],
    }
    if min(map(len, sides.values())) < FEWEST_SEEDS:
        return None
    found = tost(sides["lp_sweep"], sides["trainer"])
    return {
        "task": name,
        "model": "all-MiniLM-L6-v2" if TASKS[name].minilm else "quickstart",
        "chance": TASKS[name].chance,
        "recipe": TASKS[name].recipe,
        **{
            side: {"mean": statistics.mean(of), "sd": statistics.stdev(of), "points": of}
            for side, of in sides.items()
        },
        "difference": found.difference,
        "interval_90": [found.low, found.high],
        "tost_p": found.p,
        "verdict": found.verdict,
    }


def main() -> None:
    import torch

    from benchmarks.trial_cpu import cpu_name

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, help="a side, in place of the task's own number")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))
    by_task = {name: summary(finished(options.runs), name) for name in TASKS}
    rows = [row for row in by_task.values() if row]
    for row in rows:
        print(row["task"], f"{row['difference']:+.2f}", row["interval_90"], row["verdict"])
    settings = {"margin": MARGIN, "level": LEVEL, "threads": 1, "torch": torch.__version__}
    found = {
        "rows": rows,
        "not_measured": [name for name, row in by_task.items() if not row],
        "settings": settings | {"cpu": cpu_name()},
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
