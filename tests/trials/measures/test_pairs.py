"""Runs that take turns: their order, how often they are taken again, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, cycle, repeat

import pytest

from lp_sweep.trials.measures.pairs import Comparison, Rule, RunTime, compare


class Clock:
    """Two functions that say what they took, and the order in which they were asked."""

    def __init__(self, full: Iterable[float], pruned: Iterable[float]) -> None:
        self.order = ""
        self.full = self._runner("F", iter(full))
        self.pruned = self._runner("P", iter(pruned))

    def _runner(self, name: str, times: Iterator[float]) -> Callable[[], RunTime]:
        def run() -> RunTime:
            self.order += name
            ms = next(times)
            return RunTime(ms, 10 * ms)

        return run

    def compare(self, **rule: float) -> Comparison:
        return compare(self.full, self.pruned, Rule(**rule))  # type: ignore[arg-type]


def test_both_are_warmed_up_and_then_every_other_pair_begins_with_the_other() -> None:
    clock = Clock(chain([900.0, 900.0], repeat(4.0)), chain([1.0, 1.0], repeat(2.0)))
    found = clock.compare(warm_ups=2, pairs=4)
    assert clock.order == "FPPF" + "FPPFFPPF"
    assert (found.pairs, found.rounds) == (4, 1)
    assert (found.speedup, found.full_ms, found.pruned_ms) == (2.0, 4.0, 2.0)  # no warm-up counts


def test_the_ratio_is_that_of_each_pair_and_not_of_the_medians() -> None:
    """A machine that slows down by and by slows both of a pair."""
    slower = [1.0, 2.0, 4.0, 8.0, 16.0]
    clock = Clock([2 * ms for ms in slower], slower)
    found = clock.compare(warm_ups=0, pairs=5)
    assert (found.speedup, found.width, found.rounds) == (2.0, 0.0, 1)
    assert (found.full_ms, found.pruned_ms) == (8.0, 4.0)
    assert (found.full_wall_ms, found.pruned_wall_ms) == (80.0, 40.0)


def test_what_is_too_wide_is_taken_again_with_more_pairs_until_it_is_not() -> None:
    wide, steady = [1.0, 3.0, 1.0, 3.0], [2.0] * 8
    clock = Clock([*wide, *steady], repeat(1.0))
    found = clock.compare(warm_ups=0, pairs=4)
    assert len(clock.order) == 2 * (4 + 8)
    assert (found.speedup, found.pairs, found.rounds) == (2.0, 8, 2)


def test_what_stays_wide_is_bounded_and_the_least_wide_is_told_as_it_is() -> None:
    rounds = [[1.0, 3.0] * 2, [1.9, 2.1] * 4, [1.0, 4.0] * 6]
    clock = Clock(chain(*rounds), repeat(1.0))
    found = clock.compare(warm_ups=0, pairs=4)
    assert len(clock.order) == 2 * (4 + 8 + 12)
    assert (found.pairs, found.rounds) == (8, 3)
    assert (found.speedup_q25, found.speedup, found.speedup_q75) == (1.9, 2.0, 2.1)


@pytest.mark.parametrize(("spread", "rounds"), [(0.04, 1), (0.06, 2)])
def test_five_percent_is_the_border(spread: float, rounds: int) -> None:
    clock = Clock(cycle([1.0, 1 + spread]), repeat(1.0))
    assert clock.compare(warm_ups=0, pairs=8, rounds=2).rounds == rounds


def test_slow_steps_are_taken_less_often() -> None:
    """A pair takes 60 s on this clock's wall: 5 of them, after one warm-up, and no second round."""
    clock = Clock(cycle([4000.0, 5000.0]), repeat(2000.0))
    found = compare(clock.full, clock.pruned)
    assert len(clock.order) == 2 * (1 + 5)
    assert (found.pairs, found.rounds) == (5, 1)


@pytest.mark.parametrize(("ms", "rounds"), [(6.0, 3), (12.0, 2), (60.0, 1)])
def test_beside_other_work_rounds_are_repeated_for_a_short_time_only(
    ms: float, rounds: int
) -> None:
    """A step that is never steady."""
    clock = Clock(cycle([0.5 * ms, 1.5 * ms]), repeat(ms))
    found = compare(clock.full, clock.pruned)
    assert (found.rounds, found.pairs >= 20) == (rounds, True)
