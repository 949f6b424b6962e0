"""How long the missing work takes: its stated seconds times the median ratio of the store's own
timings, with a band from their quantiles.

Stated seconds are the FLOP at the stated rate of a device. Missing work and finished records are
counted alike, so that the ratio of actual to stated seconds of the latter holds for the former. It
covers what is not counted: optimiser steps, attention over pairs of tokens, frozen layers, padding,
bridges, a teacher's hidden states. The seconds also order the work: the longest trial starts first,
so that it does not run last while other slots idle.

In a run `Pace` corrects this by the pace of the run itself. The driver's thread calls it, and
another thread reads it.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.plan.known import timing_columns
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.storage.printable import clock
from lp_sweep.storage.underway import Underway
from lp_sweep.trials.data.tasks import canonical_name
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.measures.pairs import RULE
from lp_sweep.trials.spec.autorecipe import FIND_RECIPE, RATES, try_size
from lp_sweep.trials.spec.procedures import ITERATIVE, NOT_RETRAINED
from lp_sweep.trials.spec.select import held_out_rows
from lp_sweep.trials.spec.specs import TEACHER, ProfileSpec, Recipe, SpeedSpec, TrialSpec

_UNITS = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
_BAND = (0.1, 0.9)  # quantiles
_STATED = (0.5, 2.0)  # two more ratios, times the median, so that few timings give a wide band
_LEAST = 1.1  # the band is at least this factor on either side


class Span(NamedTuple):
    """An expected value and its band. Without a band it is an upper limit."""

    expected: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Span:
        return Span(*(None if end is None else factor * end for end in self))  # type: ignore[arg-type]


def band(ratios: Sequence[float]) -> Span:
    """The median of ratios of actual to expected seconds, and its band."""
    median = float(np.median(ratios))
    low, high = np.quantile([*ratios, *(median * stated for stated in _STATED)], _BAND)
    return Span(median, min(float(low), median / _LEAST), max(float(high), median * _LEAST))


def duration(hours: Span) -> str:
    """`3 min (1 to 13)`, or `3 min` without a band."""
    seconds = hours.times(3600)
    unit, size = next((unit for unit in _UNITS if seconds.expected >= 1.5 * unit[1]), _UNITS[-1])
    expected, *ends = (None if end is None else _two_digits(end / size) for end in seconds)
    return f"{expected} {unit}" + ("" if None in ends else " ({} to {})".format(*ends))


def _two_digits(value: float) -> str:
    """`0.034`, `1.2`, `340`: an estimate is no better."""
    if not value:
        return "0"
    return f"{value:,.{max(0, 1 - math.floor(math.log10(value)))}f}"


# -- the work of a plan

_SPEEDS = "speeds"  # measurements of speed have no task
_NEWEST = 1000  # trials whose times count
_WITHOUT_TIMINGS = Span(1.0, 0.25, 4.0)  # the stated rates are right within a factor of 4
_NEEDED = ("seconds_total", "train_examples", "epochs", "max_length", "layers")
_DEVICE = ("device_type", "device_name", "threads")
_LAYER_PARAMETERS = 7_077_888  # bert-base
_FEED_FORWARD = 2 / 3  # of a layer's parameters
# FLOP per parameter and token: Kaplan et al. 2020, "Scaling Laws", section 2.1
_TRAINING, _SCORING = 6, 2

# Mean tokens of a train row for bert-base-uncased, of up to 5,000 random rows, cut at 128 tokens;
# used until the task has a record or a sample.
_GLUE_TOKENS = {
    "sst2": 13.4, "mnli": 39.8, "qnli": 48.9, "qqp": 30.3, "stsb": 27.8, "rte": 66.6,
    "mrpc": 53.2, "cola": 11.3, "wnli": 37.1,
}  # fmt: skip
_TOKENS = 64.0  # any other task


class Rates:
    """How long work takes, from the trials on the device of the newest one. `trials`:
    `Ledger.timings`, or records. `gpu`: whether work runs on GPUs, used without timings. `tokens`:
    task name -> mean length of a sample of its rows."""

    def __init__(
        self,
        trials: pa.Table | Iterable[Mapping[str, Any]] = (),
        recipe: Recipe | None = None,
        *,
        gpu: bool | None = None,
        tokens: Mapping[str, float] | None = None,
    ) -> None:
        records = trials if isinstance(trials, pa.Table) else timing_columns(trials)
        rows = _comparable(records, recipe or Recipe())
        self._lengths = MeanLengths(records, tokens)
        self.trials = len(rows)
        self.device = _device_label(rows[0]) if rows else None
        here = _has_gpu() if gpu is None else gpu
        self.on_gpu = rows[0]["device_type"] == "cuda" if rows else here
        self.stated = GPU if self.on_gpu else CPU
        flop = ((row, recorded_flop(row, self._lengths)) for row in rows)
        ratios = [row["seconds_total"] / self.stated.seconds(counted) for row, counted in flop]
        self.ratio = band(ratios) if ratios else _WITHOUT_TIMINGS

    @property
    def basis(self) -> str:
        if self.trials:
            return f"from {self.trials:,} trials of this store on {self.device}"
        return f"no timings yet: stated rate of {self.stated.words}"

    def seconds(self, work: Work) -> float:
        """Expected seconds on one slot."""
        return self.ratio.expected * self.stated.seconds(missing_flop(work, self._lengths))

    def banded(self, seconds: float) -> Span:
        """Expected seconds with their band."""
        return self.ratio.times(seconds / self.ratio.expected)


def _comparable(trials: pa.Table, recipe: Recipe) -> list[dict[str, Any]]:
    """The newest trials on the device of the newest one, with the recipe's `compute` and
    `precision` if there are any. Those that continued from a checkpoint (maybe on another device)
    or ran out of memory (smaller micro-batches) are left out."""
    newest = trials.sort_by([("ended_at", "descending")]).slice(0, _NEWEST)
    rows = [
        row
        for row in newest.to_pylist()
        if all((row[name] or 0) > 0 for name in _NEEDED)
        and not (row["resumed_from_step"] or row["out_of_memory_retries"])
    ]
    here = [row for row in rows if all(row[name] == rows[0][name] for name in _DEVICE)]
    way = (recipe.compute, recipe.precision)
    return [row for row in here if (row["compute"], row["precision"]) == way] or here


def _device_label(row: Mapping[str, Any]) -> str:
    """`NVIDIA H100`, or `AMD EPYC with 2 threads`."""
    name = str(row["device_name"] or row["device_type"] or "an unknown device")
    if row["device_type"] == "cuda" or not row["threads"]:
        return name
    return f"{name} with {row['threads']} thread{'s' if row['threads'] > 1 else ''}"


def _has_gpu() -> bool:
    """Whether trials are likely to run on a GPU: this machine has one, or a cluster is named."""
    named = os.environ.get("LP_SWEEP_ADDRESS") or os.environ.get("RAY_ADDRESS")
    return Path("/proc/driver/nvidia").exists() or bool(named)


class TimeEstimate(NamedTuple):
    """Hours on one slot, in all and by task. While a search may add trials they are an upper limit,
    mostly far too high, and have no band."""

    span: Span
    trials: int  # of the store, whose times count
    on_gpu: bool
    basis: str
    tasks: Mapping[str, Span]
    work: Sequence[Work]  # of a run

    @property
    def hours(self) -> float:
        return self.span.expected

    @property
    def at_most(self) -> bool:
        return self.span.high is None


def estimate(plan: Plan, rates: Rates) -> TimeEstimate:
    """Slot-hours of a run's work, with measurements and the trials that are trained again for them.
    A deferred cell counts as a full network."""
    to_do = taken_on(plan)
    hours: dict[str, float] = defaultdict(float)
    for work in to_do:
        parts = [replace(work, spec=item.spec) for item in plan.missing_measures(work.id)]
        if not plan.has_network(work.id):  # else it is only measured
            parts.append(work)
        hours[work.task.name or _SPEEDS] += sum(map(rates.seconds, parts)) / 3600
    for work, count in deferred_work(plan):
        hours[work.task.name] += count * rates.seconds(work) / 3600
    searching = any(cell.search == "waiting" for cell in plan.cells)
    spans = {task: Span(h) if searching else rates.banded(h) for task, h in hours.items()}
    total = sum(hours.values())
    return TimeEstimate(
        Span(total) if searching else rates.banded(total),
        rates.trials,
        rates.on_gpu,
        rates.basis if to_do else "nothing is missing",
        spans,
        to_do,
    )


def deferred_work(plan: Plan) -> Iterator[tuple[Work, int]]:
    """The cells that wait for a profile, each counted as a full network."""
    waiting = Counter(
        (cell.asked.model, cell.asked.task, cell.asked.procedure.name) for cell in plan.deferred()
    )
    models = {model.name: model for model in plan.sweep.models}
    for (name, task_name, procedure), count in waiting.items():
        model, task = models[name], plan.sweep.tasks[task_name]
        spec = TrialSpec(
            model_fingerprint=model.fingerprint,
            kept_layers=tuple(range(1, model.depth + 1)),
            task=task.definition,
            data_fingerprint=task.fingerprint,
            seed=0,
            procedure=procedure,
            recipe=plan.recipe((name, task_name)) or plan.sweep.expected_recipe(task.train_rows),
        )
        yield Work(id="", spec=spec, model=model, task=task), count


# -- what is counted: the FLOP of trials and measurements


class StatedRate(NamedTuple):
    words: str
    start: float  # seconds to start, load and store one piece of work
    flop: float  # a second

    def seconds(self, flop: float) -> float:
        return self.start + flop / self.flop


GPU = StatedRate("a GPU of 10 TFLOP/s", 3.0, 10e12)
CPU = StatedRate("a CPU core of 50 GFLOP/s", 3.0, 50e9)
CPU_BF16 = StatedRate("a CPU core of 80 GFLOP/s in bf16", 3.0, 80e9)  # 1.6 times, as measured


class MeanLengths:
    """Tokens per example after truncation: counted by records of the same rows, else by a `sample`
    of rows (task name -> mean), else stated."""

    def __init__(self, trials: pa.Table, sample: Mapping[str, float] | None = None) -> None:
        self._sample = sample or {}
        keys = ["data_fingerprint", "max_length"]
        counted = trials.filter(pc.greater(trials["train_tokens"], 0)).group_by(keys)
        sums = counted.aggregate([("train_tokens", "sum"), ("train_examples", "sum")])
        self._counted = {
            tuple(row[key] for key in keys): row["train_tokens_sum"] / row["train_examples_sum"]
            for row in sums.to_pylist()
        }

    def of(self, data: str, max_length: int, task: str) -> float:
        if found := self._counted.get((data, max_length)) or self._sample.get(task):
            return found
        return min(_GLUE_TOKENS.get(canonical_name(task) or "", _TOKENS), max_length)


def recorded_flop(row: Mapping[str, Any], lengths: MeanLengths) -> float:
    """The FLOP of a finished trial, a row of `known.timing_columns`."""
    tokens = lengths.of(row["data_fingerprint"], row["max_length"], row["task"])
    return _trial_flop(
        row["procedure"],
        parameters=(row["params_encoder"] or _LAYER_PARAMETERS * row["layers"]) / row["layers"],
        layers=row["layers"],
        depth=row["depth"],
        epochs=row["epochs"],
        epochs_per_layer=row["epochs_per_layer"] or 0,
        train_tokens=row["train_tokens"] or tokens * row["train_examples"],
        dev_tokens=row["dev_tokens"] or tokens * (row["dev_examples"] or 0),
    )


def missing_flop(work: Work, lengths: MeanLengths) -> float:
    """The FLOP of a trial or a measurement that is not done yet."""
    spec, model, task = work.spec, work.model, work.task
    parameters = model.layer_parameters or _LAYER_PARAMETERS
    if spec.kind == "speed":
        return _speed_flop(spec, parameters, model.depth)
    limits = spec.recipe if spec.kind == "trial" else spec
    tokens = lengths.of(task.fingerprint, limits.max_length, task.name)
    each = kind_of(spec.task).rows_each
    train = each * min(task.train_rows, limits.limit_train or task.train_rows)
    dev = each * min(task.dev_rows, limits.limit_dev or task.dev_rows)
    taught = train + (task.unlabelled_rows if spec.unlabelled else 0)
    if spec.kind == "profile":
        read = taught if spec.measure == TEACHER else dev + min(train, spec.rows or 0)
        return tokens * parameters * _profile_flop(spec, model.depth, train, read)
    layers = len(spec.kept_layers)
    return _trial_flop(
        spec.procedure,
        parameters=parameters * (1 - _FEED_FORWARD * len(spec.removed_feed_forwards) / layers),
        layers=layers,
        depth=model.depth,
        epochs=spec.recipe.epochs,
        epochs_per_layer=spec.epochs_per_layer,
        train_tokens=tokens * taught,
        dev_tokens=tokens * dev,
    )


def _trial_flop(
    procedure: str,
    *,
    parameters: float,
    layers: int,
    depth: int,
    epochs: int,
    epochs_per_layer: int,
    train_tokens: float,
    dev_tokens: float,
) -> float:
    """`parameters`: of one of the kept `layers`."""
    if procedure in NOT_RETRAINED:
        return _SCORING * parameters * layers * dev_tokens
    layer_epochs = epochs * layers
    if procedure == ITERATIVE:  # starts with all layers and drops one at a time
        layer_epochs += epochs_per_layer * sum(range(layers + 1, depth + 1))
    return parameters * layer_epochs * (_TRAINING * train_tokens + _SCORING * dev_tokens)


def _profile_flop(spec: ProfileSpec, depth: int, train: int, read: int) -> float:
    """FLOP per token and layer parameter of a pass over the rows that are `read`. Greedy selection
    trains the full network, and scores it for each layer that it tries; the search for a recipe
    trains it with each learning rate."""
    if spec.recipe is None:
        return _SCORING * read * depth
    held_out = held_out_rows(train)
    if spec.measure == FIND_RECIPE:
        rows, epochs = try_size(train - held_out, spec.recipe.batch_size)
        return len(RATES) * epochs * depth * (_TRAINING * rows + _SCORING * held_out)
    tried = sum(left * (left - 1) for left in range(2, depth + 1))
    return _TRAINING * (train - held_out) * depth * spec.recipe.epochs + _SCORING * held_out * tried


def _speed_flop(spec: SpeedSpec, parameters: float, depth: int) -> float:
    """One round of fine-tuning steps and inference of both networks, on rows without padding."""
    tokens = (RULE.warm_ups + RULE.pairs) * sum(spec.batches) * spec.length
    return (_TRAINING + _SCORING) * tokens * parameters * (depth + len(spec.kept_layers))


# -- the end of a run

_LATEST = 200  # trials of a run whose pace counts
_ALIKE = 0.1  # the least share of the longest work that is left


class Eta(NamedTuple):
    """Seconds until the end, with a band. All three are None before a run has a slot; `low` is None
    while a search may end earlier. `limited`: the run's hours end before its work."""

    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    limited: bool = False

    def text(self) -> str:
        """`1:05:03 (50:12 to 1:24:20)`, `at most 1:05:03`, `1:05:03 (the limit)`, or `--`."""
        if self.limited:
            return f"{clock(self.seconds)} (the limit)"
        if self.low is None and self.high is not None:
            return f"at most {clock(self.high)}"
        if self.low is None or self.high is None:
            return clock(self.seconds)
        return f"{clock(self.seconds)} ({clock(self.low)} to {clock(self.high)})"


class Pace:
    """Estimates when a run ends, with a band. `ratio`: actual over estimated seconds before this
    run, as in `Rates`."""

    def __init__(self, ratio: Span, *, now: Callable[[], float] = time.monotonic) -> None:
        self.slots = 0
        self.searching = False  # a search may ask for more: the estimate is an upper bound
        self.most: Callable[[], float] = lambda: math.inf  # seconds until the limit of the run
        self._ratio, self._now = ratio, now
        self._ratios: deque[tuple[float, float]] = deque(maxlen=_LATEST)  # and estimated seconds
        self._used = 0.0  # slot-seconds of ended work
        self.running: dict[str, tuple[int, float]] = {}  # work -> its slot, and when it began
        self._told: dict[str, tuple[Underway, float]] = {}  # how far work is, and since when

    def started(self, id_: str) -> int:
        """Starts the clock of work; returns its slot. Work that starts again keeps both."""
        taken = {slot for slot, _ in self.running.values()}
        free = next(slot for slot in itertools.count() if slot not in taken)
        return self.running.setdefault(id_, (free, self._now()))[0]

    def tell(self, underway: Mapping[str, Underway]) -> None:
        """How far running trials are."""
        lasting = {*self.running, *underway}
        before = {id_: told for id_, told in self._told.items() if id_ in lasting}
        new = {
            id_: (far, self._now())
            for id_, far in underway.items()
            if far.step < far.steps and far != self._told.get(id_, (None, 0.0))[0]
        }
        self._told = before | new

    def elapsed(self, id_: str) -> float:
        """Seconds since the start of running work."""
        now = self._now()
        return now - self.running.get(id_, (0, now))[1]

    def ended(self, id_: str, estimated: float | None) -> bool:
        """Returns whether the work had started. `estimated`: None after a failure, which does not
        show how long such a trial takes."""
        elapsed = self.elapsed(id_)
        self._used += elapsed
        if started := self.running.pop(id_, None):
            self._ratios += [(elapsed / estimated, estimated)] if estimated else []
        return started is not None

    def slot_hours(self) -> float:
        """Used until now, by live work as well."""
        return (self._used + sum(map(self.elapsed, [*self.running]))) / 3600

    def scale(self, longest: float, live: Mapping[str, float] = MappingProxyType({})) -> Span:
        """Actual over estimated seconds of work that takes `longest`: of the `live` work that tells
        how far it is, and of what has ended. The time of much shorter work does not count: most of
        it is start-up."""
        running = [
            (far.seconds_left * far.steps / (far.steps - far.step) / live[id_], live[id_])
            for id_, (far, _) in self._told.items()
            if live.get(id_)
        ]
        known = [*self._ratios, *running]
        if ratios := [ratio for ratio, estimated in known if estimated >= _ALIKE * longest]:
            return band(ratios)
        return self._ratio.times(1 / self._ratio.expected)

    def eta(
        self,
        live: Mapping[str, float],
        seconds: float,
        longest: float,
        held: Mapping[str, float] = MappingProxyType({}),
    ) -> Eta:
        """The time left with its band, unless the run is later than that, but not more than `most`.
        Blocked work counts as if it were sure to run. All in estimated slot-seconds: `live`, of
        running trials; `held`, of those that another run trains, for which this one waits;
        `seconds`, of the work that has not begun, the longest of which takes `longest`."""
        if not self.slots:
            return Eta()
        most = self.most()
        told, now = self._told, self._now()

        def left(factor: float, of_told: float) -> float:
            def rest(id_: str, took: float) -> float:
                if id_ in told:
                    far, when = told[id_]
                    return max(0.0, of_told * (when + far.seconds_left - now))
                return max(0.0, factor * took - self.elapsed(id_))

            running = list(itertools.starmap(rest, live.items()))
            shared = (sum(running) + factor * seconds) / self.slots
            elsewhere = itertools.starmap(rest, held.items())
            return min(max(shared, factor * longest, *running, *elsewhere, 0.0), most)

        scale = self.scale(max(longest, *live.values(), *held.values(), 0.0), live)
        bands = zip(scale, (1.0, 1 / _LEAST, _LEAST), strict=True)
        expected, low, high = (left(factor or 1.0, of_told) for factor, of_told in bands)
        if expected == most:
            return Eta(most, high=most, limited=True)
        if self.searching:
            return Eta(expected, high=expected)
        return Eta(expected, low, high) if high else Eta(expected)
