"""Loads a job's network and its task's tokens, and checks that they fit each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.batches import EncodedTask, Padding
from lp_sweep.trials.data.datasource import (
    data_fingerprint,
    load_task,
    unlabelled_fingerprint,
)
from lp_sweep.trials.data.encode import (
    beyond_tables,
    cache_key,
    encode_task,
    for_words,
    open_tokens,
)
from lp_sweep.trials.fast.forward import attach
from lp_sweep.trials.kinds import COSENT, kind_of
from lp_sweep.trials.model.modelfiles import go_offline, longest_row
from lp_sweep.trials.model.plainload import vector_modules
from lp_sweep.trials.model.prune import load_pruned
from lp_sweep.trials.model.sentencefolder import digest, read_sentence_folder
from lp_sweep.trials.spec.specs import ProfileSpec, TrialSpec
from lp_sweep.trials.train.thresholds import output_bias, unfold
from lp_sweep.trials.worker.job import Job
from lp_sweep.trials.worker.resident import Head, Source, Words, resident

_CHANGED = "changed since the run was planned. Start the run again: it makes a new plan."


class Inputs(NamedTuple):
    """A network on the CPU, a task's tokens, and the tokenizer's padding."""

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
    """Tokens come from the cache if it has them. Raises TrialError for inputs that do not fit.

    `start`: the folder of a trained network, used instead of the pre-trained model.
    `kept_layers`: None keeps all layers.
    """
    begun = time.perf_counter()
    words = resident().words(_source(job))
    encoded = _encoded(job, spec, words, spec.unlabelled)
    loading = time.perf_counter()
    head = Head(encoded.num_labels, kind_of(spec.task).problem_type)
    model = _network(job, head, kept_layers, seed, start)
    if start is None:
        unfold(model, new_head=True)
        values, bias = kind_of(spec.task).first_bias(encoded.train.labels), output_bias(model)
        if values is not None and bias is not None:
            with torch.no_grad():
                bias.copy_(torch.from_numpy(values))
    tokenizer = for_words(words.tokenizer) if kind_of(spec.task).words else words.tokenizer
    _check_fit(job, model, encoded, words.tokenizer)
    if spec.modules:
        folder = Path(job.model.path)
        modules = read_sentence_folder(folder).changing
        if digest(folder, modules) != spec.modules:
            raise MissingInputError(
                f"model {job.model.name!r}: its modules after the pooling have {_CHANGED}"
            )
        attach(model, vector_modules(folder, modules))
    return Inputs(
        model,
        tokenizer,
        encoded,
        Padding.of(words.tokenizer),
        seconds_load=time.perf_counter() - loading,
        seconds_tokenise=loading - begun,
    )


def with_rows_of(job: Job, inputs: Inputs, unlabelled: str) -> Inputs:
    """The inputs of a trial with other unlabelled rows, or none (""): a teacher also scores those
    of its students; these are measured, and their bridges fitted, on labelled rows alone."""
    if unlabelled == job.trial.unlabelled:
        return inputs
    words = resident().words(_source(job))
    return inputs._replace(encoded=_encoded(job, job.trial, words, unlabelled))


def load_other(
    job: Job, inputs: Inputs, folder: Path | None, kept_layers: Sequence[int] | None = None
) -> PreTrainedModel:
    """Another network for the same task: the trained one in `folder`, else the pre-trained one."""
    task = job.trial.task if job.kind == "trial" else job.profile.task
    head = Head(inputs.model.config.num_labels, kind_of(task).problem_type)
    return _network(job, head, kept_layers, 0, folder).eval()


def load_untrained(job: Job, kept_layers: Sequence[int]) -> PreTrainedModel:
    """The pre-trained network of these layers, with a head of two classes."""
    head = Head(2, "single_label_classification")
    return _network(job, head, kept_layers, 0, None)


def _source(job: Job) -> Source:
    if job.place.offline:
        go_offline()
    return Source(job.model.path, job.model.revision, job.place.offline)


def _network(
    job: Job, head: Head, kept_layers: Sequence[int] | None, seed: int, folder: Path | None
) -> PreTrainedModel:
    """The trained network in `folder`, which is not cached, else the pre-trained one."""
    if folder is None:
        return resident().network(_source(job), head, kept_layers, seed)
    return load_pruned(
        folder, kept_layers=kept_layers, seed=seed, local_files_only=True, **head._asdict()
    )


def _encoded(job: Job, spec: TrialSpec | ProfileSpec, words: Words, unlabelled: str) -> EncodedTask:
    """Reads rows only if the cache lacks their tokens. `unlabelled`: the fingerprint of the
    unlabelled rows that follow the train rows, or ""."""
    limits = spec.recipe if spec.kind == "trial" else spec
    loss = spec.loss if spec.kind == "trial" else ""
    rows = f"{spec.data_fingerprint} {unlabelled}".rstrip()
    rows += " scored" if loss == COSENT else ""
    rows += " themselves" if kind_of(spec.task).searches else ""
    length, most = limits.max_length, (limits.limit_train, limits.limit_dev)
    folder = job.place.cache_dir / cache_key(words.digest, spec.task, rows, most, length)

    def make() -> EncodedTask:
        found = open_tokens(folder)
        if found is not None:
            return found
        source = replace(job.task.source, unlabelled=job.unlabelled.get(unlabelled, ""))
        task = load_task(
            spec.task,
            source,
            limit_train=limits.limit_train,
            limit_dev=limits.limit_dev,
            offline=job.place.offline,
            unlabelled=bool(unlabelled),
            loss=loss,
        )
        more = unlabelled_fingerprint(source, spec.task) if unlabelled else ""
        if (data_fingerprint(source, spec.task), more) != (spec.data_fingerprint, unlabelled):
            raise MissingInputError(f"task {job.task.name!r}: its files have {_CHANGED}")
        return encode_task(words.tokenizer, task, rows, length, job.place.cache_dir)

    return resident().tokens(folder, make)


def _check_fit(job: Job, model: PreTrainedModel, data: EncodedTask, tokenizer: Any) -> None:
    """Checks the planned depth, and that no row is beyond the model's positions or tables."""
    config: Any = model.config
    planned, found = job.model.depth, getattr(config, "lp_sweep_original_depth", None)
    if found is not None and found != planned:
        raise MissingInputError(
            f"model {job.model.name!r} has {found} layers, the plan expected {planned}. "
            f"Give the right depth: {{id: {job.model.name}, layers: {found}}}."
        )
    positions = longest_row(config.to_dict())
    splits = [data.train, *data.dev.values()]
    longest = max(int(split.lengths.max()) for split in splits)
    if positions is not None and positions < longest:
        raise MissingInputError(
            f"a text has {longest} tokens and model {job.model.name!r} takes {positions}. "
            f"Set recipe.max_length to {positions} or less."
        )
    tables: Any = model.get_input_embeddings()
    problem = beyond_tables(
        tokenizer,
        [split.tokens for split in splits],
        [split.token_types for split in splits if split.token_types is not None],
        tables.num_embeddings if isinstance(tables, torch.nn.Embedding) else 0,
        getattr(config, "type_vocab_size", 0) or 0,
    )
    if problem:
        raise MissingInputError(f"model {job.model.name!r}: {problem}")
