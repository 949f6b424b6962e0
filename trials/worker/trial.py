"""One trial, from its specification to its record: loads the kept layers, fits bridges, removes
feed-forwards, trains, scores.

Returns plain data, writes only checkpoints (through its saver), and imports no Ray.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lp_sweep.trials.data.batches import BatchSizes, EncodedTask
from lp_sweep.trials.device import (
    memory_errors,
    peak_memory_bytes,
    pick_device,
    precision_used,
    reproducible,
    reset_peak_memory,
)
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.prune import parameter_counts
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.trials.spec.procedures import (
    NOT_RETRAINED,
    STAGED,
    Phase,
    distill_label,
    first_layers,
    imitated_layers,
    phases,
)
from lp_sweep.trials.spec.specs import TrialSpec
from lp_sweep.trials.train.bridge import bridge, calibration
from lp_sweep.trials.train.distill import Teaching, logits_of
from lp_sweep.trials.train.finetune import Saver, Tell, Training, finetune
from lp_sweep.trials.train.metrics import blindness, majority_score, positive_label
from lp_sweep.trials.train.steps import Setting
from lp_sweep.trials.train.thresholds import unfold
from lp_sweep.trials.worker.fetch import Supplies
from lp_sweep.trials.worker.inputs import Inputs, load_inputs, load_other, with_rows_of
from lp_sweep.trials.worker.job import Job, Records
from lp_sweep.trials.worker.provenance import now, where
from lp_sweep.trials.worker.tries import Way


class TrialResult(NamedTuple):
    record: dict[str, Any]  # one row of TRIALS
    predictions: list[dict[str, Any]]  # rows of PREDICTIONS
    network: Inputs  # what was trained, with its tokens

    @property
    def other_records(self) -> Records:
        """The predictions, if there are any."""
        rows = self.predictions
        return [("predictions", rows[0]["trial_id"], rows)] if rows else []


def run_trial(given: Supplies, way: Way, saver: Saver, tell: Tell | None = None) -> TrialResult:
    """Raises TrialError for what is not a bug."""
    job, start = given.job, given.start
    spec, device = job.trial, pick_device(job.place.device)
    batches = BatchSizes.halved(spec.recipe.batch_size, way.halvings)
    with (
        reproducible(job.place.threads, strict=_strict(job, way)),
        memory_errors(batches.training),
    ):
        started_at, begun = now(), time.perf_counter()
        reset_peak_memory(device)
        if (spec.procedure in STAGED) != (start is not None):
            raise ValueError(f"{job.id}: {spec.procedure}, started from {start}")
        inputs = load_inputs(job, spec, first_layers(spec, job.model.depth), spec.seed, start)
        if start and spec.procedure not in NOT_RETRAINED:
            unfold(inputs.model)
        more = _bridged(job, inputs, batches, device) if spec.bridge else {}
        learning = time.perf_counter()
        teaching = _teaching(given, inputs, device) if spec.distill else None
        more["seconds_teacher"] = time.perf_counter() - learning if teaching else None
        remove_feed_forwards(inputs.model, spec.removed_feed_forwards, second_norm=spec.second_norm)
        setting = Setting(
            definition=spec.task,
            recipe=spec.recipe,
            seed=spec.seed,
            device=device,
            padding=inputs.padding,
            precision=precision_used(spec.recipe.precision, device),
            batches=batches.on(device),
            phases=phases(spec, job.model.depth),
            label_names=inputs.encoded.label_names,
            teaching=teaching,
            loss=spec.loss,
            graphs=way.graphs,
        )
        trained = finetune(inputs.model, inputs.encoded, setting, saver, tell)
        record = {
            **asked_columns(job),
            **_score_columns(spec, inputs.encoded, trained, setting.phases),
            **_run_columns(job, inputs, setting, trained),
            **more,
            "out_of_memory_retries": way.halvings,
            "deterministic": way.deterministic,
            "seconds_total": time.perf_counter() - begun + trained.progress.seconds_before,
            **where(device, started_at),
        }
        return TrialResult(record, _prediction_rows(job, inputs.encoded, trained), inputs)


def _strict(job: Job, way: Way) -> bool:
    """On a CPU PyTorch also refuses some kernels that are deterministic in practice."""
    return way.deterministic and pick_device(job.place.device).type != "cpu"


def _bridged(job: Job, inputs: Inputs, batches: BatchSizes, device: torch.device) -> dict[str, Any]:
    """Replaces dropped layers by bridges. Returns the record's columns on it."""
    spec, begun = job.trial, time.perf_counter()
    train = with_rows_of(job, inputs, "").encoded.train
    rows = calibration(train, inputs.padding, device, batches.evaluation)
    fits = bridge(inputs.model.to(device), spec.kept_layers, rows)
    return {
        "bridge": spec.bridge,
        "bridge_left": [{"layer": fit.layer, "value": fit.left} for fit in fits],
        "seconds_bridge": time.perf_counter() - begun,
    }


def _teaching(given: Supplies, inputs: Inputs, device: torch.device) -> Teaching:
    job, spec = given.job, given.job.trial
    assert spec.distill is not None
    embeds = kind_of(spec.task).embeds
    logits = logits_of(given.logits, inputs.encoded, job.id, embeds=embeds)
    network = None
    if spec.distill.needs_network:
        layers = imitated_layers(spec, job.model.depth)
        network = load_other(job, inputs, given.teacher, layers).requires_grad_(False).to(device)
    return Teaching(settings=spec.distill, logits=logits, network=network)


def load_trained(job: Job, folder: Path, halvings: int) -> Inputs:
    """The network in `folder`, of a trial whose record is stored."""
    batches = BatchSizes.halved(job.trial.recipe.batch_size, halvings)
    with reproducible(job.place.threads), memory_errors(batches.training):
        return load_inputs(job, job.trial, None, job.trial.seed, folder)


def _run_columns(job: Job, inputs: Inputs, setting: Setting, trained: Training) -> dict[str, Any]:
    """How the trial was trained: neither identity nor scores."""
    embeds = kind_of(job.trial.task).embeds  # then the head is of no use
    counts = parameter_counts(inputs.model.base_model if embeds else inputs.model)
    return {
        "model_revision": job.model.revision,  # a commit: a run refuses less
        "precision_used": setting.precision,
        "compute_used": trained.compute,
        "params_total": counts.total,
        "params_encoder": counts.encoder,
        "vector_width": next(iter(trained.logits.values())).shape[-1] if embeds else None,
        "params_embedding": counts.embedding,
        "micro_batch": setting.batches.training,
        "distill": distill_label(job.trial),
        "teacher": job.lesson.source if job.lesson else None,
        "started_from": job.start,
        "resumed_from_step": trained.progress.resumed_from_step,
        "seconds_load": inputs.seconds_load,
        "seconds_tokenise": inputs.seconds_tokenise,
        "peak_memory_bytes": peak_memory_bytes(setting.device),
        "command": job.place.command,
    }


def asked_columns(job: Job) -> dict[str, Any]:
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


def _score_columns(
    spec: TrialSpec, data: EncodedTask, trained: Training, phases: Sequence[Phase]
) -> dict[str, Any]:
    """`best` considers only the epochs with the network's final layers. A training that dropped
    layers on the way has no speed: it is not the speed of one network."""
    main_split, main = next(iter(data.dev.items()))
    done = trained.progress
    curve = [
        item.value
        for item in done.epoch_metrics
        if item.split == main_split and item.metric == spec.task.metric
    ]
    final = range(len(curve) - max(1, phases[-1].epochs), len(curve))
    best = max(final, key=curve.__getitem__)
    kind = kind_of(spec.task)
    dev_rows = sum(len(split) for split in data.dev.values())
    examples = sum(len(kind.stored_labels(split.labels)) for split in data.dev.values())
    evaluations = len(curve) if len(phases) == 1 else None  # else networks of several depths
    epochs = evaluations and phases[-1].epochs
    positive = positive_label(spec.task, data.label_names)
    return {
        "metric": spec.task.metric,
        "positive": spec.task.positive or None,
        "positive_label": positive if spec.task.positive else None,
        "last": curve[-1],
        "best": curve[best],
        "best_epoch": best + 1 if done.step else 0,
        "majority": majority_score(spec.task, main.labels, data.label_names),
        "dev_blind": blindness(spec.task, main.labels, data.label_names),
        "epoch_metrics": [item._asdict() for item in done.epoch_metrics],
        "train_losses": done.train_losses,
        "train_examples": len(data.train),
        "dev_examples": examples // kind.rows_each,
        "dev_in_train": data.dev_in_train,
        "dev_relabelled": data.dev_relabelled,
        "train_tokens": data.train.token_count,
        "dev_tokens": sum(split.token_count for split in data.dev.values()),
        "steps": done.step,
        "seconds_train": done.seconds_train,
        "seconds_evaluate": done.seconds_evaluate,
        "train_examples_per_second": epochs and epochs * len(data.train) / done.seconds_train,
        "dev_examples_per_second": evaluations and evaluations * dev_rows / done.seconds_evaluate,
    }


def _prediction_rows(job: Job, data: EncodedTask, trained: Training) -> list[dict[str, Any]]:
    task = job.trial.task
    of_each = partial(kind_of(task).stored, metric=task.metric, names=data.label_names)
    return [
        {"trial_id": job.id, "split": name, "example": index, **found}
        for name, split in data.dev.items()
        for index, found in enumerate(of_each(split.labels, trained.logits[name]))
    ]
