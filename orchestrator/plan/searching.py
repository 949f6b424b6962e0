"""Searches of a sweep: which cells of `until: min_layers` are asked for so far.

A *curve* is a model, procedure, removal of feed-forwards, strategy and task; its cells are K x
seed. Its next cells follow from its scores alone (`analysis.statistics.search`). A curve asks for
no more trials while a run still has some of its trials to do. These are not stored: after a break
the first batch continues, and a later round may ask for other trials than the interrupted run did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from typing import Literal

from lp_sweep.analysis.statistics import search
from lp_sweep.analysis.statistics.answerset import Pair
from lp_sweep.orchestrator.plan.cells import CellAxes
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.sweepfile.axes import WITHIN, StrategyEntry
from lp_sweep.trials.spec.procedures import DIRECT, Procedure

# to be run, or done; may be asked for later; was not needed for the answer
SearchState = Literal["asked", "waiting", "not_needed"]
_REMEMBERED = 4096  # curves: whenever one of them changes, the whole plan is made again


def curve_of(asked: CellAxes) -> CellAxes:
    """The curve that a cell is a point of: its axes without K and seed."""
    return asked._replace(k=None, threshold=None, seed=0)


def search_states(
    strategies: Iterable[StrategyEntry],
    cells: Iterable[CellAxes],
    included: Set[CellAxes],
    trial_of: Callable[[CellAxes], str | None],
    known: WorkHistory,
) -> dict[CellAxes, SearchState]:
    """The state of each possible cell of strategies with `until:`. Cells of `include:` are always
    asked for, each with K=0 of its seed for comparison. `trial_of` returns None until a measurement
    has chosen the layers, and raises ValueError where none are left."""
    entries = {name: entry for entry in strategies if entry.until for name in entry.names}
    curves: dict[CellAxes, dict[CellAxes, str | None]] = {}
    cells = list(cells)
    whole = _compared_with(cells)
    for asked in cells:
        if asked.strategy in entries:
            with suppress(ValueError):
                trial = trial_of(whole.get(asked, asked))
                curves.setdefault(curve_of(asked), {})[asked] = trial
    states: dict[CellAxes, SearchState] = {}
    for curve, trials in curves.items():
        within = entries[curve.strategy].within or WITHIN
        states |= _states(trials, _named(trials, included), within, known)
    for asked, other in whole.items():
        if states.get(asked) == "asked" and other in states:
            states[other] = "asked"
    return states


def _compared_with(cells: Sequence[CellAxes]) -> dict[CellAxes, CellAxes]:
    """K=0 with another model as its teacher -> the K=0 that its losses are counted from, as in the
    view `cells`: the same without a teacher, if the sweep lists it."""
    full = [asked for asked in cells if asked.k == 0]
    without_teacher = {_without_procedure(c): c for c in full if not c.procedure.teacher}
    alike = {c: without_teacher.get(_without_procedure(c)) for c in full if c.procedure.teacher}
    return {asked: other for asked, other in alike.items() if other}


def _without_procedure(asked: CellAxes) -> CellAxes:
    return asked._replace(procedure=Procedure(DIRECT))


def _named(cells: Iterable[CellAxes], included: Set[CellAxes]) -> set[CellAxes]:
    """The cells of one curve in `include:`, and K=0 of their seeds."""
    own = {asked for asked in cells if asked in included}
    seeds = {asked.seed for asked in own}
    return own | {asked for asked in cells if asked.k == 0 and asked.seed in seeds}


def _states(
    cells: Mapping[CellAxes, str | None],
    named: Set[CellAxes],
    within: Sequence[float],
    known: WorkHistory,
) -> dict[CellAxes, SearchState]:
    """The states of one curve, whose cells in `named` are always asked for."""
    trials = {asked: trial for asked, trial in cells.items() if trial is not None}
    if len(trials) < len(cells):  # the measurement that chooses the layers comes first
        return dict.fromkeys(cells, "waiting")
    scored = {asked for asked, trial in trials.items() if trial in known.points}
    failed = {c for c, t in trials.items() if t in known.failed or t in known.given_up}
    # without a score it will get none
    gone = failed | {asked for asked, trial in trials.items() if trial in known.trials}
    asked_for = {asked for asked, trial in trials.items() if trial in known.asked}
    wanted = asked_for - scored - failed  # not ended, or its score is not read yet
    if not wanted:
        points = {_pair(asked): known.points[trials[asked]] for asked in scored}
        pairs = _next_pairs(trials, within, points, {_pair(asked) for asked in gone - scored})
        wanted = {asked for asked in trials if _pair(asked) in pairs}
        wanted |= named & trials.keys() - gone - scored
    idle: SearchState = "waiting" if wanted else "not_needed"
    return dict.fromkeys(trials, idle) | dict.fromkeys(wanted | gone | scored, "asked")


def _pair(asked: CellAxes) -> Pair:
    return Pair(asked.k or 0, asked.seed)


def _next_pairs(
    cells: Iterable[CellAxes],
    within: Sequence[float],
    points: Mapping[Pair, float],
    lost: Set[Pair],
) -> frozenset[Pair]:
    """The pairs to run next. A pair that the sweep does not list, or whose score is not a number,
    counts as failed: it will get no score."""
    listed = dict.fromkeys(map(_pair, cells))
    ks = tuple(sorted({pair.k for pair in listed}))
    seeds = tuple(dict.fromkeys(pair.seed for pair in listed))
    absent = {Pair(k, seed) for k in ks for seed in seeds} - listed.keys()
    return _asked_next(
        ks, seeds, frozenset(points.items()), frozenset(lost | absent), tuple(within)
    )


@lru_cache(_REMEMBERED)
def _asked_next(
    ks: tuple[int, ...],
    seeds: tuple[int, ...],
    points: frozenset[tuple[Pair, float]],
    failed: frozenset[Pair],
    within: tuple[float, ...],
) -> frozenset[Pair]:
    curve = search.SearchGrid(ks=ks, seeds=seeds, points=dict(points), failed=failed)
    return frozenset(search.next_step(curve, within).ask)
