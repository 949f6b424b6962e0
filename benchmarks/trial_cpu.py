"""Compares training steps of lp-sweep and of the Hugging Face Trainer, on one CPU thread.

    pip install accelerate
    python -m benchmarks.trial_cpu --model FOLDER --data-dir GLUE --out trial-cpu.json

All sides train the same encoder for an epoch of the same real rows, in batches of 32. They are some
batches, of evenly spaced lengths, of an epoch of up to 6,400 rows with rows of similar length in
a batch:

- `padded`: the Trainer with each row padded to 128 tokens, as `run_glue.py` does by default. Its
  steps are all alike, so it trains two batches.
- `grouped`: the Trainer with these batches, each padded to its longest row, as its option
  `group_by_length` makes them; `grouped_bf16`: in bf16.
- `plain`: the fastest plain loop: these batches, each padded to its longest row, transformers'
  forward pass, clipping and fused AdamW.
- `lp_sweep`, `lp_sweep_bf16`: as a trial runs by default: the rows in random order, deterministic
  mode, and the words of the whole train and dev set in the word table.
- `by_length` (only with `--sides`): the same with `group_by_length: true`.

The sides take turns in each round, in the reverse order in every other one. A ratio compares the
mean CPU seconds of a step. `--out` keeps the figures of tasks that are not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel

from benchmarks.clocks import Clock, CpuClock
from benchmarks.glue_rows import LENGTH, TEXTS, encoded_task, rows_of, words_of
from benchmarks.hf_trainer import load, step_seconds
from lp_sweep.trials.data.batches import BatchSizes, Padding, chunks, epoch_order, to_device
from lp_sweep.trials.device import reproducible
from lp_sweep.trials.model.prune import load_pruned
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.spec.specs import Compute, Distillation, Recipe, TaskDefinition
from lp_sweep.trials.train.distill import Teaching
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.steps import Setting, TrainingProgress

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
    group_by_length: bool = False,
) -> list[float]:
    """The seconds of each step of a trial. `distill`: train as a student, with
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
    recipe = Recipe(
        learning_rate=2e-5,
        batch_size=BATCH,
        epochs=1,
        compute=compute,
        group_by_length=group_by_length,
    )
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
        finetune(model, data, setting, Watch(clock))
    return clock.steps()


class Watch(Saver):
    """Called before the first step to restore a state, and after each to ask whether to save. It
    only reads the clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingProgress:
        self.clock.mark()
        return super().restore(model, optimizer)

    def due(self) -> bool:
        self.clock.mark()
        return False


def plain_loop(
    model_folder: str, texts: Any, labels: np.ndarray, classes: int, clock: Clock
) -> list[float]:
    """The seconds of each step of a short loop on transformers alone."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    split = encoded_task(tokenizer, texts, labels, classes, np.zeros(0, np.int32)).train
    model = load(model_folder, None, classes).train()

    def loss_of(rows: np.ndarray) -> torch.Tensor:
        batch = to_device(split, rows, Padding.of(tokenizer), model.device)
        loss: torch.Tensor = model(**batch, labels=torch.from_numpy(split.labels[rows])).loss
        return loss

    return plain_steps(model, np.arange(len(split)), loss_of, clock)


def plain_steps(
    model: nn.Module, order: np.ndarray, loss_of: Callable[[np.ndarray], torch.Tensor], clock: Clock
) -> list[float]:
    """The seconds of each step. `loss_of`: the mean loss of a batch's rows."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.0, fused=True)
    clock.mark()
    for rows in chunks(order, BATCH):
        loss_of(rows).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.mark()
    return clock.steps()


def compare(options: Any, task: str) -> list[dict[str, float]]:
    """CPU seconds per step for each side, in each round."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    words = words_of(options.data_dir, task, tokenizer)
    texts, labels = rows_of(options.data_dir, task, BATCH * 200)
    classes = 1 if task == "stsb" else int(labels.max()) + 1
    lengths = encoded_task(tokenizer, texts, labels, classes, words).train.lengths
    chosen = grouped_batches(lengths, options.steps).ravel()
    texts, labels = [[part[row] for row in chosen] for part in texts], labels[chosen]
    rows = (options.model, texts, labels, classes)
    two = (options.model, [part[: 2 * BATCH] for part in texts], labels[: 2 * BATCH], classes)
    grouped = RECIPE | {"order": "sequential"}
    sides: dict[str, Callable[[], list[float]]] = {
        "padded": lambda: step_seconds(*two, RECIPE, CpuClock()),
        "grouped": lambda: step_seconds(*rows, grouped, CpuClock(), "longest"),
        "plain": lambda: plain_loop(*rows, CpuClock()),
        "lp_sweep": lambda: lp_sweep(*rows, words, CpuClock()),
        "grouped_bf16": lambda: step_seconds(
            *rows, grouped | {"bf16": True}, CpuClock(), "longest"
        ),
        "lp_sweep_bf16": lambda: lp_sweep(*rows, words, CpuClock(), precision="bf16"),
        "by_length": lambda: lp_sweep(*rows, words, CpuClock(), group_by_length=True),
    }
    sides = {side: sides[side] for side in options.sides}
    rounds = []
    for number in range(options.rounds):
        order = [*sides] if number % 2 == 0 else [*reversed(sides)]
        took = {side: statistics.mean(sides[side]()) for side in order}
        rounds.append({side: took[side] for side in sides})
        print(task, json.dumps(rounds[-1]), flush=True)
    return rounds


def grouped_batches(lengths: np.ndarray, count: int) -> np.ndarray:
    """(count, BATCH) rows of an epoch's batches of rows of similar length, of evenly spaced mean
    lengths, so that their mean is about that of the epoch."""
    order = epoch_order(lengths, seed=1, epoch=0, batch_size=BATCH, group_by_length=True)
    batches = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    batches = batches[np.argsort(lengths[batches].sum(1), kind="stable")]
    return batches[((np.arange(count) + 0.5) / count * len(batches)).astype(int)]


def ratios(rounds: list[dict[str, float]], of: str, to: str) -> dict[str, float]:
    found = [one[of] / one[to] for one in rounds]
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


RATIOS = {
    "ratio_vs_padded_trainer": ("padded", "lp_sweep"),
    "ratio_vs_grouped_trainer": ("grouped", "lp_sweep"),
    "ratio_vs_plain_loop": ("plain", "lp_sweep"),
    "ratio_of_bf16": ("lp_sweep", "lp_sweep_bf16"),
    "ratio_vs_grouped_trainer_in_bf16": ("grouped_bf16", "lp_sweep_bf16"),
    "ratio_of_group_by_length": ("lp_sweep", "by_length"),
}
SIDES = ("padded", "grouped", "plain", "lp_sweep", "grouped_bf16", "lp_sweep_bf16")


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(TEXTS))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", default=SIDES)
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
            if not {*sides} <= {*options.sides}:
                continue
            found.setdefault(name, {})[task] = ratios(rounds, *sides)
            print(task, name, json.dumps(found[name][task]))
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
