"""The baseline: fine-tunes a network with the Hugging Face Trainer, as in most people's scripts.

It uses fp32, AdamW and linear decay. Batches are padded in one of two ways: every example to
`max_length`, as the GLUE example `run_glue.py` does by default, or each batch to its own longest
example (`DataCollatorWithPadding`). Dropped layers are removed from the encoder's list, as in a
user's own script. Run as a script, it trains one network and prints its scores:
`python -m benchmarks.hf_trainer JOB.json`, with a job of lp-sweep. Needs `pip install accelerate`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

from benchmarks.clocks import Clock

PaddedTo = Literal["max_length", "longest"]


class Watch(TrainerCallback):
    """Reads the clock before the first step and at the end of each, so making batches between steps
    is included."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *args: Any, **settings: Any) -> None:
        self.clock.mark()

    def on_step_end(self, *args: Any, **settings: Any) -> None:
        self.clock.mark()


def load(model_folder: str, kept_layers: list[int] | None, num_labels: int) -> Any:
    model = AutoModelForSequenceClassification.from_pretrained(model_folder, num_labels=num_labels)
    if kept_layers is not None:
        layers = model.base_model.encoder.layer
        model.base_model.encoder.layer = torch.nn.ModuleList(layers[i - 1] for i in kept_layers)
        model.config.num_hidden_layers = len(kept_layers)
    return model


def encoded(
    tokenizer: Any, texts: Any, labels: np.ndarray, max_length: int, padded_to: PaddedTo
) -> Dataset:
    padding = "max_length" if padded_to == "max_length" else False
    found = tokenizer(*texts, padding=padding, max_length=max_length, truncation=True)
    kind = np.float32 if labels.dtype.kind == "f" else np.int64
    return Dataset.from_dict({**found, "label": labels.astype(kind)})


def trainer(
    model: Any,
    train: Dataset,
    recipe: dict[str, Any],
    folder: str,
    collator: Any = default_data_collator,
    watch: list[Watch] | None = None,
) -> Any:
    return Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=recipe["batch_size"],
            per_device_eval_batch_size=recipe["batch_size"],
            num_train_epochs=recipe["epochs"],
            learning_rate=recipe["learning_rate"],
            use_cpu=not torch.cuda.is_available(),
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=recipe.get("seed", 1),
            bf16=recipe.get("bf16", False),
            train_sampling_strategy=recipe.get("order", "random"),
        ),
        train_dataset=train,
        data_collator=collator,
        callbacks=watch,
    )


def step_seconds(
    model_folder: str,
    texts: Any,
    labels: np.ndarray,
    num_labels: int,
    recipe: dict[str, Any],
    clock: Clock,
    padded_to: PaddedTo = "max_length",
) -> list[float]:
    """The seconds of each step."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    train = encoded(tokenizer, texts, labels, recipe["max_length"], padded_to)
    model, watch = load(model_folder, None, num_labels), [Watch(clock)]
    with tempfile.TemporaryDirectory() as folder:
        trainer(model, train, recipe, folder, collator(tokenizer, padded_to), watch).train()
    return clock.steps()


def collator(tokenizer: Any, padded_to: PaddedTo) -> Any:
    return DataCollatorWithPadding(tokenizer) if padded_to == "longest" else default_data_collator


def scores_of(job: dict[str, Any], padded_to: PaddedTo = "max_length") -> dict[str, float]:
    """Train a job's network and score it on dev: every metric of its task, as a fraction.

    Reads only the learning rate, batch size, epochs and lengths of the recipe: everything else has
    the same default in a Recipe and in the Trainer.
    """
    from lp_sweep.trials.data.datasource import load_task
    from lp_sweep.trials.data.tasks import TaskSource
    from lp_sweep.trials.spec.specs import TrialSpec, spec_from_plain
    from lp_sweep.trials.train.metrics import score

    spec = spec_from_plain(TrialSpec, job["spec"])
    recipe = {**job["spec"]["recipe"], "seed": spec.seed}
    task = load_task(
        spec.task,
        TaskSource(**job["task"]["source"]),
        limit_train=spec.recipe.limit_train,
        limit_dev=spec.recipe.limit_dev,
        offline=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(job["model"]["path"])
    train, dev = (
        encoded(tokenizer, split.texts, np.asarray(split.labels), spec.recipe.max_length, padded_to)
        for split in (task.splits["train"], list(task.splits.values())[1])
    )
    set_seed(spec.seed)  # loading draws the head's weights at random
    model = load(job["model"]["path"], list(spec.kept_layers), task.num_labels)
    with tempfile.TemporaryDirectory() as folder:
        run = trainer(model, train, recipe, folder, collator(tokenizer, padded_to))
        run.train()
        logits = run.predict(dev).predictions
    return score(spec.task, np.asarray(dev["label"]), logits)


if __name__ == "__main__":
    print(json.dumps(scores_of(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
