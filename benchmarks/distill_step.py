"""Measures what a teacher adds to a training step of its student, on one CPU thread.

    python -m benchmarks.distill_step --model FOLDER --data-dir GLUE --out distill-step.json

The student keeps the lower half of the model's layers. `logits`: the teacher's logits are already
computed, as in a sweep. `logits+hidden`: the teacher's layers up to the student's last layer run in
each step. Rows, batches and clock are those of trial_cpu.py. The sides take turns in each round. A
ratio compares the median CPU seconds of a step with the teacher and without.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from benchmarks.clocks import CpuClock
from benchmarks.glue_rows import TEXTS, rows_of, words_of
from benchmarks.trial_cpu import BATCH, cpu_name, lp_sweep, ratios
from lp_sweep.trials.spec.specs import Distillation

SIDES = {
    "plain": None,
    "logits": Distillation(),
    "logits+hidden": Distillation(hidden_weight=1.0),
}


def compare(options: Any, task: str, compute: Any) -> list[dict[str, float]]:
    """CPU seconds per step for each side, in each round."""
    texts, labels = rows_of(options.data_dir, task, BATCH * (options.steps + 1))
    words = words_of(options.data_dir, task, AutoTokenizer.from_pretrained(options.model))
    classes = 1 if task == "stsb" else int(labels.max()) + 1
    depth = AutoConfig.from_pretrained(options.model).num_hidden_layers
    rounds = []
    for _ in range(options.rounds):
        how = {"compute": compute, "kept_layers": range(1, depth // 2 + 1)}
        took = {
            name: lp_sweep(
                options.model, texts, labels, classes, words, CpuClock(), distill=distill, **how
            )
            for name, distill in SIDES.items()
        }
        rounds.append({side: statistics.median(steps) for side, steps in took.items()})
        print(task, compute, json.dumps(rounds[-1]), flush=True)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["sst2", "mrpc", "stsb"], choices=TEXTS)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    found: dict[str, Any] = {"settings": {"batch": BATCH, "threads": 1, "cpu": cpu_name()}}
    for compute in ("fast", "reference"):
        for task in options.tasks:
            rounds = compare(options, task, compute)
            found.setdefault("cpu_seconds_a_step", {})[f"{task} {compute}"] = rounds
            found.setdefault("ratios", {})[f"{task} {compute}"] = {
                side: ratios(rounds, side, "plain") for side in SIDES if side != "plain"
            }
            if options.out:
                options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
