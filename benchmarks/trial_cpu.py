"""Training steps of lp-sweep against those of the Hugging Face GLUE example, on one CPU thread.

    pip install accelerate
    python benchmarks/trial_cpu.py --model FOLDER --data-dir GLUE --out trial-cpu.json

The baseline is what `run_glue.py` does: transformers' own Trainer, fp32, every example padded to
128 tokens. Both train the same encoder on the same real rows with batches of 32; lp-sweep's has the
table of words that it would have in a trial: those of the whole train and dev set, not of these few
rows. In each round the one runs, then the other; a ratio is of their CPU seconds a step, without
the first of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from clocks import Clock, CpuClock
from glue_rows import LENGTH, TEXTS, encoded_task, rows_of, words_of
from padded_trainer import step_seconds
from transformers import AutoTokenizer

from lp_sweep.storage.specs import Compute, Recipe, TaskDefinition
from lp_sweep.trials.batches import BatchSizes, Padding
from lp_sweep.trials.finetune import NoSaver, finetune
from lp_sweep.trials.procedures import Phase
from lp_sweep.trials.prune import load_pruned
from lp_sweep.trials.setting import Setting

BATCH = 32
RECIPE = {"batch_size": BATCH, "epochs": 1, "learning_rate": 2e-5, "max_length": LENGTH}


def lp_sweep(
    model_folder: str,
    texts: Any,
    labels: np.ndarray,
    classes: int,
    words: np.ndarray,
    clock: Clock,
    *,
    compute: Compute = "fast",
    device: str = "cpu",
    precision: str = "fp32",
) -> list[float]:
    """The same, by the steps of a trial."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    data = encoded_task(tokenizer, texts, labels, classes, words)
    kind: Any = "regression" if classes == 1 else "classification"
    model = load_pruned(
        model_folder,
        kept_layers=None,
        num_labels=classes,
        problem_type="regression" if classes == 1 else "single_label_classification",
        seed=1,
        local_files_only=True,
    )
    recipe = Recipe(learning_rate=2e-5, batch_size=BATCH, epochs=1, compute=compute)
    depth = model.config.num_hidden_layers
    setting = Setting(
        definition=TaskDefinition(text_columns=("text",), kind=kind, metric="pearson")
        if classes == 1
        else TaskDefinition(text_columns=("text",)),
        recipe=recipe,
        seed=1,
        device=torch.device(device),
        padding=Padding.of(tokenizer),
        precision=precision,
        batches=BatchSizes.halved(BATCH, 0),
        course=(Phase(tuple(range(1, depth + 1)), 1),),
    )
    finetune(model, data, setting, _Watch(clock))
    return clock.steps()


class _Watch(NoSaver):
    """Asked after each step whether it is time to save: it only looks at the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def due(self) -> bool:
        self.clock.mark()
        return False


def compare(options: Any, task: str) -> dict[str, Any]:
    texts, labels = rows_of(options.data_dir, task, BATCH * (options.steps + 1))
    words = words_of(options.data_dir, task, AutoTokenizer.from_pretrained(options.model))
    classes = 1 if task == "stsb" else int(labels.max()) + 1
    rows = (options.model, texts, labels, classes)
    ratios, seconds = [], []
    for _ in range(options.rounds):
        slow = statistics.median(step_seconds(*rows, RECIPE, CpuClock()))
        fast = statistics.median(lp_sweep(*rows, words, CpuClock()))
        ratios.append(slow / fast)
        seconds.append((slow, fast))
        print(f"{task}: {slow:.3f} s, {fast:.3f} s a step: {ratios[-1]:.2f}x", flush=True)
    return {
        "median": statistics.median(ratios),
        "min": min(ratios),
        "max": max(ratios),
        "words": len(words),
        "cpu_seconds_a_step": seconds,
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TEXTS))
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {task: compare(options, task) for task in options.tasks}
    settings = {"batch": BATCH, "padded_to": LENGTH, "steps": options.steps, "threads": 1}
    settings |= {"torch": torch.__version__, "rounds": options.rounds}
    settings |= {"cpu": cpu_name()}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"ratio_vs_padded_trainer": found, "settings": settings}, indent=2)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
