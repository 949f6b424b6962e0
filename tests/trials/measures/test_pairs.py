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
    assert found.pairs == 4
    assert (found.speedup, found.full_ms, found.pruned_ms) == (2.0, 4.0, 2.0)  # no warm-up counts


def test_the_ratio_is_that_of_each_pair_and_not_of_the_medians() -> None:
    """A machine that slows down by and by slows both of a pair."""
    slower = [1.0, 2.0, 4.0, 8.0, 16.0]
    clock = Clock([2 * ms for ms in slower], slower)
    found = clock.compare(warm_ups=0, pairs=5)
    assert (found.speedup, found.speedup_q25, found.speedup_q75) == (2.0, 2.0, 2.0)
    assert (found.full_ms, found.pruned_ms) == (8.0, 4.0)
    assert (found.full_wall_ms, found.pruned_wall_ms) == (80.0, 40.0)


def test_pairs_are_taken_until_the_standard_error_is_small() -> None:
    """Ratios of 0.95 and 1.05: a tenth of range, so 0.0929 / sqrt(n) is 0.01 at 86 pairs."""
    clock = Clock(cycle([0.95, 1.05]), repeat(1.0))
    found = clock.compare(warm_ups=0)
    assert 85 <= found.pairs <= 88
    assert found.speedup_q75 - found.speedup_q25 == pytest.approx(0.1)
    assert Clock(cycle([0.99, 1.01]), repeat(1.0)).compare(warm_ups=0).pairs == 10


def test_what_is_never_sure_is_bounded_and_told_as_it_is() -> None:
    found = Clock(cycle([0.5, 1.5]), repeat(1.0)).compare(warm_ups=0, most=60)
    assert (found.pairs, found.speedup_q25, found.speedup_q75) == (60, 0.5, 1.5)


def test_slow_steps_are_taken_less_often() -> None:
    """A pair takes 60 s on this clock's wall: 5 of them, after one warm-up."""
    clock = Clock(cycle([4000.0, 5000.0]), repeat(2000.0))
    found = compare(clock.full, clock.pruned)
    assert len(clock.order) == 2 * (1 + 5)
    assert found.pairs == 5


@pytest.mark.parametrize(("ms", "pairs"), [(6.0, 84), (12.0, 42), (60.0, 10)])
def test_beside_other_work_pairs_are_taken_for_a_short_time_only(ms: float, pairs: int) -> None:
    """A step that is never steady: ten seconds, of the wall, but 10 pairs."""
    clock = Clock(cycle([0.5 * ms, 1.5 * ms]), repeat(ms))
    assert compare(clock.full, clock.pruned).pairs == pairs
