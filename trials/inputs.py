"""What a job works on: its network and its task's tokens, checked against each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.identity import ProfileSpec, TrialSpec
from lp_sweep.trials.batches import Padding
from lp_sweep.trials.datasource import load_task
from lp_sweep.trials.encode import EncodedTask, encode_task
from lp_sweep.trials.offline import go_offline
from lp_sweep.trials.prune import load_pruned
from lp_sweep.trials.record import Job
from lp_sweep.trials.tasks import source_from_plain
from lp_sweep.trials.tokenizer import load_tokenizer


class Inputs(NamedTuple):
    """A network on the CPU, a task's tokens, and what the tokenizer says of padding."""

    model: PreTrainedModel
    tokenizer: Any
    encoded: EncodedTask
    padding: Padding
    seconds_load: float
    seconds_tokenise: float


def load_inputs(
    job: Job,
    spec: TrialSpec | ProfileSpec,
    kept_layers: Sequence[int] | None,
    seed: int,
    start: Path | None = None,
) -> Inputs:
    """Tokens come from the cache where they are there. Raises TrialError for what doesn't fit.

    `start`: the folder of a trained network to go on from, in place of the pre-trained model;
    `kept_layers`: None keeps all that it has.
    """
    begun = time.perf_counter()
    offline = bool(job.get("offline"))
    if offline:
        go_offline()
    tokenizer = load_tokenizer(job["model"]["path"], job["model"]["revision"], offline)
    encoded = _encoded(job, spec, tokenizer)
    loading = time.perf_counter()
    regression = spec.task.kind == "regression"
    model = load_pruned(
        start or job["model"]["path"],
        revision=None if start else job["model"]["revision"],
        kept_layers=kept_layers,
        num_labels=encoded.num_labels,
        problem_type="regression" if regression else "single_label_classification",
        seed=seed,
        local_files_only=offline or start is not None,
        from_here=start is None,
    )
    _check_fit(job, model.config, encoded)
    return Inputs(
        model,
        tokenizer,
        encoded,
        Padding.of(tokenizer),
        seconds_load=time.perf_counter() - loading,
        seconds_tokenise=loading - begun,
    )


def load_other(job: Job, inputs: Inputs, folder: Path | None) -> PreTrainedModel:
    """A second network for the same task: the one in `folder`, else the pre-trained one."""
    return load_pruned(
        folder or job["model"]["path"],
        revision=None if folder else job["model"]["revision"],
        kept_layers=None,
        num_labels=inputs.model.config.num_labels,
        problem_type=inputs.model.config.problem_type,
        seed=0,
        local_files_only=bool(job.get("offline")) or folder is not None,
        from_here=folder is None,
    ).eval()


def _encoded(job: Job, spec: TrialSpec | ProfileSpec, tokenizer: Any) -> EncodedTask:
    if isinstance(spec, TrialSpec):
        limits, length = (spec.recipe.limit_train, spec.recipe.limit_dev), spec.recipe.max_length
    else:
        limits, length = (spec.limit_train, spec.limit_dev), spec.max_length
    task = load_task(
        spec.task,
        source_from_plain(job["task"]["source"]),
        limit_train=limits[0],
        limit_dev=limits[1],
        offline=bool(job.get("offline")),
    )
    return encode_task(tokenizer, task, spec.data_fingerprint, length, Path(job["cache_dir"]))


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
