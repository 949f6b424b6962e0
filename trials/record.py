"""Rows of the store's tables, made from what a trial found. Computes nothing on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lp_sweep.storage.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.storage.specs import TrialSpec
from lp_sweep.trials.encoded import EncodedTask
from lp_sweep.trials.finetune import Trained
from lp_sweep.trials.job import Job
from lp_sweep.trials.metrics import majority_score, positive_label, predictions
from lp_sweep.trials.procedures import Phase


def identity_columns(job: Job) -> dict[str, Any]:
    spec, depth = job.trial, job.model.depth
    dropped = [layer for layer in range(1, depth + 1) if layer not in spec.kept_layers]
    return {
        "trial_id": job.id,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(spec),
        "model": job.model.name,
        "model_fingerprint": spec.model_fingerprint,
        "depth": depth,
        "kept_layers": list(spec.kept_layers),
        "dropped_layers": dropped,
        "k": len(dropped),
        "procedure": spec.procedure,
        "task": job.task.name,
        "data_fingerprint": spec.data_fingerprint,
        "seed": spec.seed,
        "freeze_dropped": spec.freeze_dropped,
        "epochs_per_layer": spec.epochs_per_layer,
        "removed_feed_forwards": list(spec.removed_feed_forwards),
        "second_norm": spec.second_norm,
        **{name: getattr(spec.recipe, name) for name in spec.recipe.__slots__},
        "freeze_layers": list(spec.recipe.freeze_layers),
    }


def score_columns(
    spec: TrialSpec, data: EncodedTask, trained: Trained, course: Sequence[Phase]
) -> dict[str, Any]:
    """`best` is of the epochs with the network's final layers; the speed of a training that dropped
    layers on the way is that of no one network, and left out."""
    main_split, main = next(iter(data.dev.items()))
    done = trained.progress
    curve = [
        item.value
        for item in done.epoch_metrics
        if item.split == main_split and item.metric == spec.task.metric
    ]
    final = range(len(curve) - course[-1].epochs, len(curve))
    best = max(final, key=curve.__getitem__)
    dev_rows = sum(len(split) for split in data.dev.values())
    rate = len(curve) if len(course) == 1 else None
    positive = positive_label(spec.task, data.label_names)
    return {
        "metric": spec.task.metric,
        "positive": spec.task.positive or None,
        "positive_label": positive if spec.task.positive else None,
        "last": curve[-1],
        "best": curve[best],
        "best_epoch": best + 1,
        "majority": majority_score(spec.task, data.train.labels, main.labels, positive=positive),
        "epoch_metrics": [item._asdict() for item in done.epoch_metrics],
        "train_losses": done.train_losses,
        "train_examples": len(data.train),
        "dev_examples": dev_rows,
        "dev_in_train": data.dev_in_train,
        "dev_relabelled": data.dev_relabelled,
        "train_tokens": data.train.token_count,
        "dev_tokens": sum(split.token_count for split in data.dev.values()),
        "steps": done.step,
        "seconds_train": done.seconds_train,
        "seconds_evaluate": done.seconds_evaluate,
        "train_examples_per_second": rate and rate * len(data.train) / done.seconds_train,
        "dev_examples_per_second": rate and rate * dev_rows / done.seconds_evaluate,
    }


def prediction_rows(
    trial: str, spec: TrialSpec, data: EncodedTask, trained: Trained
) -> list[dict[str, Any]]:
    rows = []
    for name, split in data.dev.items():
        logits = trained.logits[name]
        answers = predictions(spec.task, logits)
        rows += [
            {
                "trial_id": trial,
                "split": name,
                "example": index,
                "label": float(label),
                "prediction": float(answer),
                "scores": scores,
            }
            for index, (label, answer, scores) in enumerate(
                zip(split.labels, answers, logits.tolist(), strict=True)
            )
        ]
    return rows
