"""One trial, start to finish: load, select, delete, seed, fine-tune, evaluate, record.

Plain data in, plain data out; runs in a terminal as well as in a worker, and imports no Ray.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lp_sweep.storage.errors import MissingInputError, StoreError
from lp_sweep.storage.identity import (
    ProfileSpec,
    TrialSpec,
    profile_spec_from_plain,
    trial_spec_from_plain,
)
from lp_sweep.storage.store import Store
from lp_sweep.trials.contribution import contribution_profile
from lp_sweep.trials.datasource import load_task
from lp_sweep.trials.device import (
    peak_memory_bytes,
    pick_device,
    precision_used,
    reproducible,
    reset_peak_memory,
)
from lp_sweep.trials.encode import EncodedTask, encode_task
from lp_sweep.trials.finetune import EVALUATION_BATCH, Padding, finetune, to_device
from lp_sweep.trials.provenance import now, where
from lp_sweep.trials.prune import load_pruned, parameter_counts
from lp_sweep.trials.record import (
    Job,
    attempt_row,
    identity_columns,
    prediction_rows,
    score_columns,
)
from lp_sweep.trials.tasks import source_from_plain
from lp_sweep.trials.tokenizer import load_tokenizer


class Data(NamedTuple):
    """A task's tokens, and what the tokenizer says of padding."""

    encoded: EncodedTask
    padding: Padding
    seconds: float


def execute(job: Job, store_root: str) -> dict[str, Any]:
    """Do one job and store what came of it. A failure is an outcome: it is stored and returned.

    Only what leaves the process unfit for further work is raised: a CUDA error, and StoreError,
    since then nothing can be kept.
    """
    store = Store(store_root)
    started_at = now()
    table = "profiles" if job["kind"] == "profile" else "trials"
    if store.has(table, job["id"]):  # by another run on it, or before a worker was lost
        return _done(job, store.read(table, job["id"])[0])
    try:
        run = run_profile if job["kind"] == "profile" else run_trial
        result = run(job)
    except (torch.AcceleratorError, StoreError):
        raise
    except Exception as error:
        attempt = attempt_row(job, error, started_at)
        store.put("attempts", attempt["attempt_id"], [attempt])
        return {
            "id": job["id"],
            "status": "failed",
            "error_type": attempt["error_type"],
            "message": attempt["message"],
        }
    if "predictions" in result:
        store.put("predictions", job["id"], result["predictions"])
    store.put(table, job["id"], [result["record"]])  # last: its presence means done
    return _done(job, result["record"])


def _done(job: Job, record: Mapping[str, Any]) -> dict[str, Any]:
    told = {"id": job["id"], "status": "done", "seconds": record["seconds_total"]}
    if job["kind"] == "trial":
        told |= {"last": record["last"], "metric": record["metric"]}
    return told


def _check_fit(job: Job, config: Any, data: EncodedTask) -> None:
    """The plan's depth is the model's, and no row is longer than the model's positions."""
    planned, found = job["model"]["depth"], getattr(config, "lp_sweep_original_depth", None)
    if found is not None and found != planned:
        raise MissingInputError(
            f"model {job['model']['name']!r} has {found} layers, the plan counted on {planned}. "
            f"Give the right depth: {{id: {job['model']['name']}, layers: {found}}}."
        )
    positions = getattr(config, "max_position_embeddings", None)
    longest = max(int(split.lengths.max()) for split in (data.train, *data.dev.values()))
    if isinstance(positions, int) and 0 < positions < longest:
        raise MissingInputError(
            f"a text has {longest} tokens and model {job['model']['name']!r} takes {positions}. "
            f"Set recipe.max_length to {positions} or less."
        )


def run_trial(job: Job) -> dict[str, Any]:
    """`{"record": one row of TRIALS, "predictions": rows of PREDICTIONS}`; writes nothing.

    job: `kind`, `id`, `spec` (a TrialSpec as plain data), `model` (name, path, revision, depth),
    `task` (name, source), `cache_dir`, and optionally `device`, `threads`, `offline`.
    Raises TrialError for what is not a bug.
    """
    spec = trial_spec_from_plain(job["spec"])
    started_at, begun = now(), time.perf_counter()
    device = pick_device(job.get("device", "auto"))
    with reproducible(job.get("threads")):
        reset_peak_memory(device)
        data = _data(job, spec)
        loading = time.perf_counter()
        model = load_pruned(
            job["model"]["path"],
            revision=job["model"]["revision"],
            kept_layers=spec.kept_layers,
            num_labels=data.encoded.num_labels,
            problem_type=_problem_type(spec),
            seed=spec.seed,
            local_files_only=bool(job.get("offline")),
        )
        _check_fit(job, model.config, data.encoded)
        counts = parameter_counts(model)
        seconds_load = time.perf_counter() - loading
        precision = precision_used(spec.recipe.precision, device)
        trained = finetune(
            model,
            data.encoded,
            spec.task,
            spec.recipe,
            seed=spec.seed,
            device=device,
            padding=data.padding,
            precision=precision,
        )
        record = {
            **identity_columns(job, spec),
            **score_columns(spec, data.encoded, trained),
            "model_revision": getattr(model.config, "_commit_hash", None),
            "precision_used": precision,
            "params_total": counts.total,
            "params_encoder": counts.encoder,
            "params_embedding": counts.embedding,
            "seconds_load": seconds_load,
            "seconds_tokenise": data.seconds,
            "peak_memory_bytes": peak_memory_bytes(device),
            "seconds_total": time.perf_counter() - begun,
            **where(device, started_at),
        }
    return {
        "record": record,
        "predictions": prediction_rows(job["id"], spec, data.encoded, trained),
    }


def run_profile(job: Job) -> dict[str, Any]:
    """`{"record": one row of PROFILES}`: every layer's contribution in the pre-trained model."""
    spec = profile_spec_from_plain(job["spec"])
    started_at, begun = now(), time.perf_counter()
    device = pick_device(job.get("device", "auto"))
    with reproducible(job.get("threads")):
        data = _data(job, spec)
        model = load_pruned(
            job["model"]["path"],
            revision=job["model"]["revision"],
            kept_layers=range(1, job["model"]["depth"] + 1),
            num_labels=data.encoded.num_labels,
            problem_type=_problem_type(spec),
            seed=0,
            local_files_only=bool(job.get("offline")),
        )
        _check_fit(job, model.config, data.encoded)
        model = model.to(device)
        split = next(iter(data.encoded.dev.values()))
        order = np.argsort(split.lengths, kind="stable")
        batches = (
            to_device(split, order[start : start + EVALUATION_BATCH], data.padding, device)
            for start in range(0, len(order), EVALUATION_BATCH)
        )
        cosines = contribution_profile(model, batches)
        record = {
            "profile_id": job["id"],
            "measure": spec.measure,
            "model": job["model"]["name"],
            "model_fingerprint": spec.model_fingerprint,
            "depth": len(cosines),
            "task": job["task"]["name"],
            "data_fingerprint": spec.data_fingerprint,
            "max_length": spec.max_length,
            "limit_dev": spec.limit_dev,
            "layers": [{"layer": i, "value": value} for i, value in enumerate(cosines, start=1)],
            "dev_examples": len(split),
            "seconds_total": time.perf_counter() - begun,
            **where(device, started_at),
        }
    return {"record": record}


def _problem_type(spec: TrialSpec | ProfileSpec) -> Any:
    return "regression" if spec.task.kind == "regression" else "single_label_classification"


def _data(job: Job, spec: TrialSpec | ProfileSpec) -> Data:
    """Tokens of the task, from the cache where they are there."""
    begun = time.perf_counter()
    offline = bool(job.get("offline"))
    tokenizer = load_tokenizer(job["model"]["path"], job["model"]["revision"], offline)
    if isinstance(spec, TrialSpec):
        limits, length = (spec.recipe.limit_train, spec.recipe.limit_dev), spec.recipe.max_length
    else:
        limits, length = (None, spec.limit_dev), spec.max_length
    task = load_task(
        spec.task,
        source_from_plain(job["task"]["source"]),
        limit_train=limits[0],
        limit_dev=limits[1],
        offline=offline,
    )
    encoded = encode_task(tokenizer, task, spec.data_fingerprint, length, Path(job["cache_dir"]))
    return Data(encoded, Padding.of(tokenizer), time.perf_counter() - begun)
