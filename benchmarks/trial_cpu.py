"""Compares training steps of lp-sweep and of the Hugging Face Trainer, on one CPU thread.

    pip install accelerate
    python -m benchmarks.trial_cpu --model FOLDER --data-dir GLUE --out trial-cpu.json

There are two baselines, both transformers' own Trainer in fp32: every example padded to 128 tokens,
as `run_glue.py` does by default, and each batch padded to its longest example (dynamic padding,
`DataCollatorWithPadding`). All sides train the same encoder on the same real rows with batches of
32. lp-sweep's side runs as a trial does: in deterministic mode, and with the words of the whole
train and dev set in its word table. A fourth side does the same without deterministic mode, and a
fifth with the rows packed into bins of 128 tokens as for `compute: graphs`, to show the costs. The
sides take turns in each round. A ratio compares CPU seconds per step: medians without
the first step of each run. `--out` keeps the figures of tasks that are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel

from benchmarks.clocks import Clock, CpuClock
from benchmarks.glue_rows import LENGTH, TEXTS, encoded_task, rows_of, words_of
from benchmarks.hf_trainer import step_seconds
from lp_sweep.trials.data.batches import BatchSizes, Padding
from lp_sweep.trials.device import reproducible
from lp_sweep.trials.model.prune import load_pruned
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.spec.specs import Compute, Distillation, Recipe, TaskDefinition
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.train.distill import Teaching
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.graphs import GraphPass
from lp_sweep.trials.train.steps import Setting

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
    deterministic: bool = True,
    kept_layers: Sequence[int] | None = None,
    distill: Distillation | None = None,
) -> list[float]:
    """The seconds of each step of a trial except the first. `distill`: train as a student, with
    made-up logits."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    data = encoded_task(tokenizer, texts, labels, classes, words)
    kind: Any = "regression" if classes == 1 else "classification"

    def network(kept: Sequence[int] | None) -> PreTrainedModel:
        return load_pruned(
            model_folder,
            kept_layers=kept,
            num_labels=classes,
            problem_type="regression" if classes == 1 else "single_label_classification",
            seed=1,
            local_files_only=True,
        )

    model = network(kept_layers)
    recipe = Recipe(learning_rate=2e-5, batch_size=BATCH, epochs=1, compute=compute)
    layers = tuple(kept_layers or range(1, model.config.num_hidden_layers + 1))
    teaching = None
    if distill is not None:
        below = range(1, max(layers[:-1]) + 1) if distill.hidden_weight else None
        teaching = Teaching(
            settings=distill,
            logits=np.zeros((len(labels), classes), np.float32),
            network=below and network(below).eval(),
        )
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
        phases=(Phase(layers, 1),),
        teaching=teaching,
    )
    with reproducible(None) if deterministic else contextlib.nullcontext():
        finetune(model, data, setting, _Watch(clock))
    return clock.steps()


class _Watch(Saver):
    """Called after each step to ask whether to save. It only reads the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def due(self) -> bool:
        self.clock.mark()
        return False


def compare(options: Any, task: str) -> list[dict[str, float]]:
    """CPU seconds per step for each side, in each round."""
    texts, labels = rows_of(options.data_dir, task, BATCH * (options.steps + 1))
    words = words_of(options.data_dir, task, AutoTokenizer.from_pretrained(options.model))
    classes = 1 if task == "stsb" else int(labels.max()) + 1
    rows = (options.model, texts, labels, classes)
    rounds = []
    for _ in range(options.rounds):
        took = {
            "padded": step_seconds(*rows, RECIPE, CpuClock()),
            "dynamic": step_seconds(*rows, RECIPE, CpuClock(), "longest"),
            "lp_sweep": lp_sweep(*rows, words, CpuClock()),
            "not_deterministic": lp_sweep(*rows, words, CpuClock(), deterministic=False),
        }
        with mock.patch.object(finetuning, "EagerPass", GraphPass):
            took["packed"] = lp_sweep(*rows, words, CpuClock())
        rounds.append({side: statistics.median(steps) for side, steps in took.items()})
        print(task, json.dumps(rounds[-1]), flush=True)
    return rounds


def ratios(rounds: list[dict[str, float]], of: str, to: str) -> dict[str, float]:
    found = [one[of] / one[to] for one in rounds]
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


RATIOS = {
    "ratio_vs_padded_trainer": ("padded", "lp_sweep"),
    "ratio_vs_dynamic_trainer": ("dynamic", "lp_sweep"),
    "cost_of_deterministic_mode": ("lp_sweep", "not_deterministic"),
    "cost_of_packed_bins": ("packed", "lp_sweep"),
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
    found: dict[str, Any] = {"cpu_seconds_a_step": {}, "steps": {}}
    if options.out and options.out.exists():
        found = json.loads(options.out.read_text(encoding="utf-8"))
    found["settings"] = {"batch": BATCH, "padded_to": LENGTH, "threads": 1, "cpu": cpu_name()}
    found["settings"]["torch"] = torch.__version__
    for task in options.tasks:
        rounds = compare(options, task)
        found["cpu_seconds_a_step"][task], found["steps"][task] = rounds, options.steps
        for name, sides in RATIOS.items():
            found.setdefault(name, {})[task] = ratios(rounds, *sides)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
