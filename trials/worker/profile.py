"""Takes measurements and makes their rows of PROFILES: the layers of a pre-trained network, the
layers of a network that a trial has just trained, and the speed of a network.

A measurement that fails is recorded as its own attempt; the trial's record is stored all the same.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.batches import EVALUATION_BATCH, BatchSizes, whole_batch
from lp_sweep.trials.device import memory_errors, pick_device, precision_used, reproducible
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import flat
from lp_sweep.trials.measures.pairs import RULE, Rule
from lp_sweep.trials.measures.registry import MEASURES
from lp_sweep.trials.measures.speed import Bystanders, Load, compare_networks
from lp_sweep.trials.measures.subject import Subject
from lp_sweep.trials.model.families import original_layers
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.modelfiles import longest_row
from lp_sweep.trials.model.prune import load_pruned, parameter_counts
from lp_sweep.trials.spec.identity import IDENTITY_VERSION, canonical_json
from lp_sweep.trials.spec.procedures import full_layers
from lp_sweep.trials.spec.specs import TEACHER, ProfileSpec, SpeedSpec
from lp_sweep.trials.worker.fetch import needed_network
from lp_sweep.trials.worker.handover import Handover
from lp_sweep.trials.worker.inputs import (
    Inputs,
    load_inputs,
    load_other,
    load_untrained,
    with_rows_of,
)
from lp_sweep.trials.worker.job import Job, Measure, Records, Result
from lp_sweep.trials.worker.provenance import now, where
from lp_sweep.trials.worker.tries import Tries, Way

SPEED = "speed"  # the measure's name in a record


def run_profile(job: Job, way: Way) -> Result:
    """A measurement of the pre-trained network."""
    spec = job.profile
    embeds = kind_of(spec.task).embeds
    batches = BatchSizes.halved(whole_batch(spec), way.halvings)
    with reproducible(job.place.threads), memory_errors(batches.training):
        started_at = now()
        inputs = load_inputs(job, spec, full_layers(job.model.depth), seed=spec.seed or 0)
        if spec.measure == TEACHER and not embeds:
            inputs = inputs._replace(model=_with_own_head(job, inputs))
        row, logits = _taken(job, job.id, spec, inputs, inputs.model, way, started_at)
        if logits is not None and not embeds:
            logits = logits[..., _places(job, inputs)]
        return Result(row, _logits_records(job.id, logits))


def _with_own_head(job: Job, inputs: Inputs) -> PreTrainedModel:
    """The model with the head that it was published with. Raises MissingInputError."""
    return load_pruned(
        job.model.path,
        kept_layers=None,
        num_labels=inputs.model.config.num_labels,
        problem_type=kind_of(job.profile.task).problem_type,
        seed=0,
        local_files_only=True,
        trained=True,
    )


def _places(job: Job, inputs: Inputs) -> list[int]:
    """The index of each of the task's classes in a teacher's logits. Raises MissingInputError."""
    wanted, named = inputs.encoded.label_names, inputs.model.config.id2label
    have = [str(named[index]) for index in range(len(wanted))] if wanted else []
    if not wanted or have == [f"LABEL_{index}" for index in range(len(wanted))]:
        return [*range(inputs.encoded.num_labels)]
    if sorted(have) != sorted(wanted):
        raise MissingInputError(
            f"teacher {job.model.name!r} has the classes {', '.join(have)}, and task "
            f"{job.task.name!r} has {', '.join(wanted)}. Correct id2label in its config.json, or "
            "`labels:` of the task."
        )
    return [have.index(name) for name in wanted]


def measure_trained(job: Job, network: Inputs, way: Way, handover: Handover) -> Records:
    """The records of the job's measurements of its trained network. After a lack of memory a
    measurement, and those that follow, use smaller batches."""
    made: Records = []
    for item in job.measures:
        tries = Tries(job, item.id, item.spec, way, handover.send_attempt)
        for way in tries:
            batches = BatchSizes.halved(EVALUATION_BATCH, way.halvings)
            with (
                tries.attempt(way),
                reproducible(job.place.threads),
                memory_errors(batches.training),
            ):
                made += _measured(job, item, network, way, handover)
    return made


def _measured(job: Job, item: Measure, network: Inputs, way: Way, handover: Handover) -> Records:
    spec, started_at = item.spec, now()
    inputs = with_rows_of(job, network, spec.unlabelled)
    compares = MEASURES[spec.measure].compares
    with needed_network(handover.outbox, (compares and spec.against) or None) as folder:
        other = inputs.model
        if compares:  # with another trial's network, else with the pre-trained one
            other = load_other(job, inputs, folder).to(pick_device(job.place.device))
        row, logits = _taken(job, item.id, spec, inputs, other, way, started_at)
    return [*_logits_records(item.id, logits), ("profiles", item.id, [row])]


def _taken(
    job: Job,
    id_: str,
    spec: ProfileSpec,
    inputs: Inputs,
    other: PreTrainedModel,
    way: Way,
    started_at: datetime,
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Takes one measurement: its row of PROFILES, and the logits of a teacher."""
    device = pick_device(job.place.device)
    subject = Subject(
        model=inputs.model.to(device),
        encoded=inputs.encoded,
        padding=inputs.padding,
        device=device,
        halvings=way.halvings,
        other=lambda: other,
        graphs=way.graphs,
    )
    found = MEASURES[spec.measure].run(subject, spec)
    row = {
        "trial_id": spec.trial or None,
        "against": spec.against or None,
        "seed": job.trial.seed if spec.trial else spec.seed,
        "kept_layers": list(original_layers(subject.model.config)),
        "task": job.task.name,
        "data_fingerprint": spec.data_fingerprint,
        "max_length": spec.max_length,
        "limit_dev": spec.limit_dev,
        "layers": [{"layer": layer, "value": value} for layer, value in found.layers],
        "values": [item._asdict() for item in found.values],
        "dev_examples": len(subject.dev),
    }
    return row | _facts(job, id_, spec.measure, spec, device, started_at), found.logits


def _facts(
    job: Job,
    id_: str,
    measure: str,
    spec: ProfileSpec | SpeedSpec,
    device: torch.device,
    started_at: datetime,
) -> dict[str, Any]:
    """Columns of every measurement, at its end."""
    return {
        "profile_id": id_,
        "measure": measure,
        "identity_version": IDENTITY_VERSION,
        "spec": canonical_json(spec),
        "model": job.model.name,
        "model_fingerprint": spec.model_fingerprint,
        "depth": job.model.depth,
        **where(device, started_at),
        "seconds_total": (now() - started_at).total_seconds(),
    }


def _logits_records(id_: str, logits: np.ndarray | None) -> Records:
    """A teacher's, if there are any. They come first, since the row's presence means done."""
    if logits is None:
        return []
    scores = flat(logits) if logits.ndim == 3 else logits.tolist()
    rows = [
        {"profile_id": id_, "example": index, "scores": each} for index, each in enumerate(scores)
    ]
    return [("teacher_logits", id_, rows)]


# -- speed


def run_speed(job: Job, rule: Rule = RULE) -> Result:
    """Raises TrialError for what is not a bug."""
    spec = job.speed
    with reproducible(job.place.threads), memory_errors(min(spec.batches)):
        started_at, device = now(), _speed_device(spec, job)
        full = load_untrained(job, full_layers(job.model.depth)).to(device)
        pruned = load_untrained(job, spec.kept_layers)
        remove_feed_forwards(pruned, spec.removed_feed_forwards, second_norm=spec.second_norm)
        positions = longest_row(full.config.to_dict())
        if positions is not None and positions < spec.length:
            raise MissingInputError(
                f"speeds use rows of {spec.length} tokens, but model {job.model.name!r} takes at "
                f"most {positions}. Set measure.speed_length to {positions} or less."
            )
        precision = precision_used(spec.precision, device)
        load = Load(length=spec.length, batches=spec.batches, precision=precision)
        bystanders = Bystanders()
        timings = compare_networks(full, pruned.to(device), load, rule)
        row = {
            "kept_layers": list(spec.kept_layers),
            "removed_feed_forwards": list(spec.removed_feed_forwards),
            "second_norm": spec.second_norm,
            "max_length": spec.length,
            "precision_used": precision,
            "params_total": parameter_counts(pruned).total,
            "params_full": parameter_counts(full).total,
            "timings": [
                {"quantity": t.quantity, "batch": t.batch, **asdict(t.comparison)} for t in timings
            ],
            "others_busy_cores": bystanders.busy_cores(),
        }
        return Result(row | _facts(job, job.id, SPEED, spec, device, started_at), [])


def _speed_device(spec: SpeedSpec, job: Job) -> torch.device:
    """Raises MissingInputError if the speed of a GPU is wanted and this slot has none."""
    here = pick_device(job.place.device)
    if spec.device_type == "cuda" and here.type != "cuda":
        raise MissingInputError(
            "the sweep measures speed on cuda, but this slot has no GPU. Run it where trials have "
            "one, or remove cuda from `measure: {speed: ...}`."
        )
    return here if spec.device_type == here.type else torch.device(spec.device_type)
