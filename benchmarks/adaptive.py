"""Counts the trials that `until: min_layers` needs and its wrong answers, on known curves.

    python -m benchmarks.adaptive [--repetitions 200] [--out adaptive.json]
    python -m benchmarks.adaptive --store docs/studies/records --sweep sst2

Each repetition draws a grid of every K and five seeds around a curve of losses, and replays the
search on it, for losses of 1, 2 and 3 points. The noise is either independent for each trial, or
half of it (`shared`) is common to all K of a seed. The columns, over all answers:

    trials    share of the grid that was run
    off       the true loss of the answer is above the allowed loss by more than half a point, or
              that of a larger K is below it by more; `grid`: the same for the whole grid's answer
    covered   the true answer is in the 90% set
    set       mean number of K in the set
    decided   the search ended because it was sure, not because it had used all seeds
    untried   larger K that the search never ran and its set leaves out: `decided` assumes that none
              of them dips. The true answer is among them in `hidden` of the answers

The curves with a hidden dip lose 3.5 points or more at every K but one, which loses 0.3.

With --store, it replays on the grids of a sweep in which every K of a strategy is done.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lp_sweep.analysis.statistics.answerset import Pair
from lp_sweep.analysis.statistics.search import (
    TOLERANCE,
    SearchAnswer,
    SearchGrid,
    largest_within,
    next_step,
)
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.printable import ranges
from lp_sweep.storage.store import Store

# true losses in points, for 12 layers; for 24 layers they are stretched
CURVES = {
    "flat, falling": (0, 0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.4, 2.6, 5, 10, 18),
    "steep": (0, 0.6, 1.6, 3.2, 5.5, 8, 11, 14, 17, 20, 24, 30),
    "stepped": (0, 0, 0.2, 0.2, 0.2, 1.6, 1.6, 1.6, 4, 4, 9, 9),
    "with a dip": (0, 0.1, 0.3, 0.5, 0.7, 1.7, 0.4, 1.5, 2.4, 5, 11, 20),
    "at the limit": (0, 0.3, 0.6, 0.8, 0.9, 0.95, 1.0, 1.02, 1.05, 1.1, 4, 12),
}
# every K loses more than any allowed loss, except one: its place, as a share of all K
DIPPED = (0, 3.5, 3.5, 3.5, 3.5, 3.75, 4, 5, 6, 8, 12, 20)
DIPS = {"dip at 1/6": 1 / 6, "dip at 5/12": 5 / 12, "dip at 2/3": 2 / 3, "dip at 5/6": 5 / 6}
DIP_LOSS = 0.3
DELTAS = (1, 2, 3)
SEEDS = 5
DEPTHS = (12, 24)
DEVIATIONS = (0.3, 2.0)  # sd of a score over seeds: of a large task, of a small task
SHARES = (0.0, 0.5)  # share of that variance that all K of a seed have in common
FULL_SCORE = 90.0
_SLACK = 1e-9


class Replay(NamedTuple):
    """A replayed search. `trials`: pairs in the order asked for; `rounds`: number of batches."""

    answers: tuple[SearchAnswer, ...]
    trials: tuple[Pair, ...]
    rounds: int


def replay(
    grid: Mapping[Pair, float], deltas: Collection[float], *, failing: Iterable[Pair] = ()
) -> Replay:
    """Replay a search. `grid`: (K, seed) -> points of every pair. Pairs in `failing` never give a
    score. Seeds are used in ascending order."""
    ks, seeds = (tuple(sorted({pair[part] for pair in grid})) for part in (0, 1))
    fails = {*failing}
    points: dict[Pair, float] = {}
    failed: set[Pair] = set()
    rounds = 0
    while True:
        searched = SearchGrid(ks=ks, seeds=seeds, points=points, failed=frozenset(failed))
        step = next_step(searched, deltas)
        if not step.ask:
            return Replay(step.answers, (*points, *failed), rounds)
        rounds += 1
        failed |= fails & {*step.ask}
        points |= {pair: grid[pair] for pair in step.ask if pair not in fails}


class Row(NamedTuple):
    deviation: float
    shared: float
    depth: int
    curve: str
    trials: float
    off: float
    grid: float
    covered: float
    set: float
    decided: float
    untried: float
    hidden: float
    rounds: float


def losses_of(curve: str, depth: int) -> list[float]:
    known = CURVES.get(curve, DIPPED)
    places = np.linspace(0, len(known) - 1, depth)
    losses: list[float] = np.interp(places, range(len(known)), known).tolist()
    if curve in DIPS:
        losses[round(depth * DIPS[curve])] = DIP_LOSS
    return losses


def drawn(losses: list[float], deviation: float, shared: float, seed: int) -> Mapping[Pair, float]:
    """Mapping[Pair, float] by (K, seed). The same `seed` draws the same noise for every curve."""
    rng = np.random.default_rng(seed)
    common = rng.normal(0, deviation * shared**0.5, SEEDS)
    own = rng.normal(0, deviation * (1 - shared) ** 0.5, (len(losses), SEEDS))
    return {
        Pair(k, s): FULL_SCORE - losses[k] + common[s] + own[k, s]
        for k in range(len(losses))
        for s in range(SEEDS)
    }


def is_off(losses: list[float], k: int, delta: float) -> bool:
    missed = any(loss < delta - TOLERANCE - _SLACK for loss in losses[k + 1 :])
    return missed or losses[k] > delta + TOLERANCE + _SLACK


def grid_losses(grid: Mapping[Pair, float]) -> dict[int, float]:
    ks, seeds = ({pair[part] for pair in grid} for part in (0, 1))
    return {k: sum(grid[Pair(0, s)] - grid[Pair(k, s)] for s in seeds) / len(seeds) for k in ks}


def simulate(deviation: float, shared: float, depth: int, curve: str, repetitions: int) -> Row:
    losses = losses_of(curve, depth)
    true = dict(enumerate(losses))
    found = []
    for seed in range(repetitions):
        grid = drawn(losses, deviation, shared, seed)
        replayed, of_grid = replay(grid, DELTAS), grid_losses(grid)
        for answer in replayed.answers:
            found.append(
                (
                    len(replayed.trials) / len(grid),
                    is_off(losses, answer.k, answer.delta),
                    is_off(losses, largest_within(of_grid, answer.delta), answer.delta),
                    largest_within(true, answer.delta) in answer.credible,
                    len(answer.credible),
                    answer.why == "decided",
                    len(answer.untried),
                    largest_within(true, answer.delta) in answer.untried,
                    replayed.rounds,
                )
            )
    return Row(deviation, shared, depth, curve, *np.mean(found, axis=0).round(4).tolist())


def simulations(repetitions: int) -> Iterator[Row]:
    for shared, deviation, depth in itertools.product(SHARES, DEVIATIONS, DEPTHS):
        for name, curves in (("all five", CURVES), ("all dips", DIPS)):
            rows = []
            for curve in curves:
                rows.append(simulate(deviation, shared, depth, curve, repetitions))
                yield rows[-1]
            means = np.mean([row[4:] for row in rows], axis=0).round(4).tolist()
            yield Row(deviation, shared, depth, name, *means)


def show(row: Row) -> str:
    return (
        f"{row.deviation:>4}  {row.shared:>6}  {row.depth:>6}  {row.curve:<13}  "
        f"{row.trials:>6.1%}  {row.off:>5.1%}  {row.grid:>5.1%}  {row.covered:>7.1%}  "
        f"{row.set:>4.1f}  {row.decided:>7.0%}  {row.untried:>7.1f}  {row.hidden:>6.1%}  "
        f"{row.rounds:>6.1f}"
    )


HEADING = (
    "  sd  shared  layers  curve          trials    off   grid  covered   set  decided  untried  "
    "hidden  rounds"
)


def stored_grids(store: str, sweep: str) -> Iterator[tuple[str, Mapping[Pair, float]]]:
    """Each curve whose every K and seed is done, and its scores."""
    with open_views(Store(store), sweep=sweep) as catalog:
        rows = catalog.query(
            "SELECT concat_ws(' ', model, procedure, strategy, task) AS curve, k, seed, score "
            "FROM cells WHERE feed_forward = 'none' AND threshold IS NULL ORDER BY curve"
        ).to_pylist()
    curves: dict[str, dict[Pair, float]] = {}
    for row in rows:
        curves.setdefault(row["curve"], {})[Pair(row["k"], row["seed"])] = row["score"]
    for curve, grid in curves.items():
        if None not in grid.values() and any(k == 0 for k, _ in grid):
            yield curve, grid


def unless(answer: SearchAnswer) -> str:
    return f", unless K={ranges(answer.untried)} dips" if answer.untried else ""


def show_stored(store: str, sweep: str) -> None:
    for curve, grid in stored_grids(store, sweep):
        replayed, losses = replay(grid, DELTAS), grid_losses(grid)
        print(f"{curve}: {len(replayed.trials)} of {len(grid)} trials")
        for answer in replayed.answers:
            print(
                f"  loss <= {answer.delta}: K={answer.k}, 90% {list(answer.credible)} "
                f"({answer.why}{unless(answer)}); the whole grid: "
                f"K={largest_within(losses, answer.delta)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--store")
    parser.add_argument("--sweep")
    asked = parser.parse_args()
    if asked.store:
        show_stored(asked.store, asked.sweep)
        return
    print(HEADING)
    rows = []
    for row in simulations(asked.repetitions):
        print(show(row), flush=True)
        rows.append(row._asdict())
    if asked.out:
        asked.out.write_text(json.dumps({"repetitions": asked.repetitions, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
