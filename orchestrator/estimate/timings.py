"""Ratios of the time that a store's trials took to their workload, and the band around them.

Trials that continued from a checkpoint (maybe on another device) or ran out of memory (smaller
micro-batches) are not used, nor are students that imitate hidden states.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.estimate.workload import CPU, GPU, MeanLengths, recorded
from lp_sweep.storage.specs import Recipe

Pair = tuple[str | None, str | None]  # fingerprints of a model and of a task's data

_NEWEST = 50  # timings of each pair that count
DEVICE = ["device_type", "device_name", "threads"]
_PAIR = ["model_fingerprint", "data_fingerprint"]
_BAND = (0.1, 0.9)  # quantiles
_STATED = (0.5, 2.0)  # two more ratios, times the median, so that few timings give a wide band
_LEAST = 1.1  # the band is at least this factor on either side


class Span(NamedTuple):
    """An expected value and its band. Without a band it is an upper limit."""

    expected: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> Span:
        low, high = (None if end is None else factor * end for end in self[1:])
        return Span(factor * self.expected, low, high)


def added(spans: Iterable[Span]) -> Span:
    """The sum of the values and of the bands, as if all errors had the same sign."""
    every = [Span(0.0, 0.0, 0.0), *spans]
    low, high = (None if None in ends else sum(ends) for ends in list(zip(*every, strict=True))[1:])
    return Span(sum(span.expected for span in every), low, high)


class Ratio(NamedTuple):
    """Actual over stated seconds: the median, and the band around it."""

    median: float
    low: float
    high: float

    def of(self, seconds: float, doubt: float = 1.0) -> Span:
        """The time that so many stated seconds take; `doubt` widens the band on either side."""
        return Span(seconds * self.median, seconds * self.low / doubt, seconds * self.high * doubt)


PRIOR = Ratio(1.0, 0.25, 4.0)  # the stated rates are right within a factor of 4


class Ratios:
    """The ratio of a model and task: of its own timings, else of the medians of the same model's
    tasks, else of all medians, else `PRIOR`. `known`: ratios that always count."""

    def __init__(self, known: Iterable[float] = ()) -> None:
        self._known = tuple(known)
        self._timings: dict[Pair, deque[float]] = defaultdict(lambda: deque(maxlen=_NEWEST))
        self._medians: dict[Pair, float] = {}
        self._found: dict[Pair, Ratio] = {}

    def __bool__(self) -> bool:
        return bool(self._timings)

    def add(self, pair: Pair, ratio: float) -> None:
        self._timings[pair].append(ratio)
        self._medians.pop(pair, None)
        self._found.clear()

    def of(self, pair: Pair) -> Ratio:
        if (found := self._found.get(pair)) is None:
            found = self._found[pair] = self._look(pair)
        return found

    def _look(self, pair: Pair) -> Ratio:
        if pair in self._timings:
            return _ratio([*self._known, *self._timings[pair]])
        # a display looks in another thread
        medians = [(other, self._median(other)) for other in [*self._timings]]
        of_model = [median for (model, _), median in medians if model == pair[0]]
        others = of_model or [median for _, median in medians]
        return _ratio([*self._known, *others]) if others else PRIOR

    def _median(self, pair: Pair) -> float:
        if (found := self._medians.get(pair)) is None:
            found = self._medians[pair] = float(np.median(self._timings[pair]))
        return found


def _ratio(ratios: list[float]) -> Ratio:
    median = float(np.median(ratios))
    low, high = np.quantile([*ratios, *(median * stated for stated in _STATED)], _BAND)
    return Ratio(median, min(float(low), median / _LEAST), max(float(high), median * _LEAST))


class Evidence(NamedTuple):
    """The ratios of one device, from `number` timings. `device`: its name, None without timings;
    `same_way`: whether these trials had the recipe's `compute` and `precision`."""

    device: str | None
    on_gpu: bool
    ratios: Ratios
    number: int
    same_way: bool


def evidence(trials: pa.Table, lengths: MeanLengths, recipe: Recipe) -> Evidence:
    """The timings of the newest trials on the device of the newest one, with the recipe's `compute`
    and `precision` if there are any."""
    sound = usable(trials)
    if not len(sound):
        return Evidence(None, False, Ratios(), 0, True)
    last = sound.take(pc.sort_indices(sound, [("ended_at", "descending")])[:1])
    [device] = last.select(DEVICE).to_pylist()
    here = where(sound, device)
    alike = where(here, {"compute": recipe.compute, "precision": recipe.precision})
    on_gpu = device["device_type"] == "cuda"
    rows = newest(alike if len(alike) else here)
    ratios = ratios_of(rows, lengths, on_gpu=on_gpu)
    return Evidence(_device_label(device), on_gpu, ratios, len(rows), bool(len(alike)))


def ratios_of(rows: Iterable[Mapping[str, Any]], lengths: MeanLengths, *, on_gpu: bool) -> Ratios:
    ratios = Ratios()
    for row in rows:
        stated = recorded(row, lengths).seconds(GPU if on_gpu else CPU)
        ratios.add(pair_of(row), row["seconds_total"] / stated)
    return ratios


def pair_of(row: Mapping[str, Any]) -> Pair:
    return row["model_fingerprint"], row["data_fingerprint"]


def usable(trials: pa.Table) -> pa.Table:
    """The trials whose time can be compared with their workload. Those that used a teacher's hidden
    states can't: the number of its layers is not among the columns."""
    for name in ("resumed_from_step", "out_of_memory_retries"):
        trials = trials.filter(pc.equal(pc.fill_null(trials[name], 0), 0))
    for name in ("seconds_total", "train_examples", "epochs"):
        trials = trials.filter(pc.greater(pc.fill_null(trials[name], 0), 0))
    hidden = pc.match_substring(pc.fill_null(trials["distill"], ""), "+hidden")
    return trials.filter(pc.invert(hidden))


def where(trials: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """The rows with these values; None matches null."""
    for name, value in values.items():
        same = pc.is_null(trials[name]) if value is None else pc.equal(trials[name], value)
        trials = trials.filter(pc.fill_null(same, False))
    return trials


def newest(trials: pa.Table) -> list[dict[str, Any]]:
    """The newest trials of each model and task."""
    names = [pc.fill_null(trials[name], "") for name in _PAIR]
    keyed = trials.append_column("pair", pc.binary_join_element_wise(*names, "\n"))
    ordered = keyed.take(
        pc.sort_indices(keyed, [("pair", "ascending"), ("ended_at", "descending")])
    )
    pairs = ordered["pair"].combine_chunks().dictionary_encode().indices.to_numpy()
    first = np.searchsorted(pairs, pairs)  # sorted: the codes ascend
    chosen = ordered.filter(pa.array(np.arange(len(pairs)) - first < _NEWEST))
    rows: list[dict[str, Any]] = chosen.drop(["pair"]).to_pylist()
    return rows


def _device_label(row: Mapping[str, Any]) -> str:
    """`NVIDIA H100`, or `AMD EPYC with 2 threads`."""
    name = str(row["device_name"] or row["device_type"] or "an unknown device")
    if row["device_type"] == "cuda" or not row["threads"]:
        return name
    return f"{name} with {row['threads']} thread{'s' if row['threads'] > 1 else ''}"
