"""What a store's trials say of time: on which device they ran, how long each took, and how many
tokens an example of a task has.

A trial that went on from a checkpoint may have run on two devices, and one that ran out of memory
trained with smaller micro-batches: neither says how long a trial takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.estimate.costmodel import Timing
from lp_sweep.orchestrator.estimate.workload import Lengths, recorded_terms
from lp_sweep.storage.specs import Recipe
from lp_sweep.trials.tasks import canonical_name

_NEWEST = 50  # timings of each pair that prices are fitted to: enough, and the machine of today

_DEVICE = ["device_type", "device_name", "threads"]
_PAIR = ["model_fingerprint", "data_fingerprint"]
_LENGTH_KEYS = [*_PAIR, "max_length"]
_COUNTS = ("train_tokens", "train_examples", "dev_tokens", "dev_examples")

# Mean tokens of a train row with the vocabulary of bert-base-uncased at 128 tokens, from up to
# 5,000 random rows of each task; used until a record of the task has counted its own.
_GLUE_TOKENS = {
    "sst2": 13.4,
    "mnli": 39.8,
    "qnli": 48.9,
    "qqp": 30.3,
    "stsb": 27.8,
    "rte": 66.6,
    "mrpc": 53.2,
    "cola": 11.3,
    "wnli": 37.1,
}
_TOKENS = 64.0  # of another task


class MeanLengths:
    """Tokens of an example, as records counted them: of the pair, else of the task with another
    model's vocabulary, else a stated number."""

    def __init__(self, trials: pa.Table) -> None:
        self._counted: dict[tuple[Any, ...], Lengths] = {}
        counted = trials.filter(
            pc.and_(pc.greater(trials["train_tokens"], 0), pc.greater(trials["dev_tokens"], 0))
        )
        sums = counted.group_by(_LENGTH_KEYS).aggregate([(name, "sum") for name in _COUNTS])
        for row in sums.to_pylist():
            found = Lengths(
                row["train_tokens_sum"] / row["train_examples_sum"],
                row["dev_tokens_sum"] / row["dev_examples_sum"],
            )
            model, *task = (row[name] for name in _LENGTH_KEYS)
            self._counted[model, *task] = self._counted[None, *task] = found

    def of(self, model: str | None, data: str | None, max_length: int | None, task: str) -> Lengths:
        for name in (model, None):
            if found := self._counted.get((name, data, max_length)):
                return found
        stated = _GLUE_TOKENS.get(canonical_name(task) or "", _TOKENS)
        tokens = min(stated, max_length or stated)
        return Lengths(tokens, tokens)


class Evidence(NamedTuple):
    """Timings of one device. `device`: its name, None where there are none; `same_way`: they are
    of trials that compute as asked, else of whatever ran there."""

    device: str | None
    on_gpu: bool
    timings: list[Timing]
    same_way: bool


def evidence(trials: pa.Table, lengths: MeanLengths, recipe: Recipe) -> Evidence:
    """Of the device that the newest trial ran on, the newest trials, computed as `recipe` says
    where there are such."""
    sound = usable(trials)
    if not len(sound):
        return Evidence(None, False, [], False)
    last = sound.take(pc.sort_indices(sound, [("ended_at", "descending")])[:1])
    here = sound.filter(_same(sound, last.select(_DEVICE).to_pylist()[0]))
    ways = {"compute": recipe.compute, "precision": recipe.precision}
    alike = here.filter(_same(here, ways))
    [device] = last.to_pylist()
    return Evidence(
        device_label(device),
        device["device_type"] == "cuda",
        newest_timings(alike if len(alike) else here, lengths),
        bool(len(alike)),
    )


def newest_timings(trials: pa.Table, lengths: MeanLengths) -> list[Timing]:
    """Of each model and task the newest trials: thousands of one pair say no more."""
    if not len(trials):
        return []
    names = [pc.fill_null(trials[name], "") for name in _PAIR]
    keyed = trials.append_column("pair", pc.binary_join_element_wise(*names, "\n"))
    keys = [("pair", "ascending"), ("ended_at", "descending")]
    ordered = keyed.take(pc.sort_indices(keyed, keys))
    pairs = ordered["pair"].combine_chunks().dictionary_encode().indices.to_numpy()
    first = np.searchsorted(pairs, pairs)  # sorted: the codes ascend
    chosen = ordered.filter(pa.array(np.arange(len(pairs)) - first < _NEWEST))
    return [timing(row, lengths) for row in chosen.drop(["pair"]).to_pylist()]


def usable(trials: pa.Table) -> pa.Table:
    """The trials whose seconds say how long such a trial takes."""
    whole = [
        pc.equal(pc.fill_null(trials[name], 0), 0)
        for name in ("resumed_from_step", "out_of_memory_retries")
    ]
    timed = [
        pc.greater(pc.fill_null(trials[name], 0), 0)
        for name in ("seconds_total", "train_examples", "epochs")
    ]
    keep = whole[0]
    for condition in (*whole[1:], *timed):
        keep = pc.and_(keep, condition)
    return trials.filter(keep)


def _same(trials: pa.Table, values: Mapping[str, Any]) -> pa.ChunkedArray:
    """Which rows have these values; what an older record does not say is the default."""
    keep = pa.chunked_array([pa.repeat(True, len(trials))])
    for name, value in values.items():
        default = getattr(Recipe(), name, None)
        column = trials[name] if default is None else pc.fill_null(trials[name], default)
        same = pc.is_null(column) if value is None else pc.equal(column, value)
        keep = pc.and_(keep, pc.fill_null(same, False))
    return keep


def timing(row: Mapping[str, Any], lengths: MeanLengths) -> Timing:
    """A record as a timing; its pair is as `pair_of` a work's."""
    model, data = row["model_fingerprint"], row["data_fingerprint"]
    mean = lengths.of(model, data, row["max_length"], row["task"])
    return Timing(recorded_terms(row, mean), (model, data), row["seconds_total"])


def device_label(row: Mapping[str, Any]) -> str:
    """`NVIDIA H100`, or `AMD EPYC with 2 threads`."""
    name = str(row["device_name"] or row["device_type"] or "an unknown device")
    if row["device_type"] == "cuda" or not row["threads"]:
        return name
    return f"{name} with {row['threads']} thread{'s' if row['threads'] > 1 else ''}"
