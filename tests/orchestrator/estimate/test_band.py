"""How sure the end of a run is, before it and after some of it."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from lp_sweep.orchestrator.estimate.band import spread
from lp_sweep.orchestrator.estimate.costmodel import CostModel, Pair, Timing, fit
from lp_sweep.orchestrator.estimate.pace import Eta, Pace
from tests.orchestrator.estimate.test_costmodel import RULE, terms

PAIR: Pair = ("base", "rte")
PIECE = terms("base", "rte", 12)


def model(timings: int = 0) -> CostModel:
    seconds = float(np.array(RULE) @ np.array(PIECE))
    return fit([Timing(PIECE, PAIR, seconds)] * timings, RULE)


def test_before_a_run_it_is_that_of_the_estimate() -> None:
    left = {(PIECE, PAIR): 50}
    total = model().total(left)
    assert spread(model(), left, {}) == pytest.approx(total.high / total.seconds)
    assert spread(model(), {}, {}) == 1.0


def test_what_the_run_has_seen_narrows_it() -> None:
    left = {(PIECE, PAIR): 50}
    widths = [spread(model(), left, {(PIECE, PAIR): seen}) for seen in (0, 1, 5, 50)]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 3
    assert widths[-1] < 1.15


def test_a_rest_of_other_layers_hangs_on_prices_that_the_run_has_not_seen() -> None:
    short = terms("base", "rte", 1)
    seen = {(PIECE, PAIR): 1000}
    alike, other = (spread(model(), {(piece, PAIR): 50}, seen) for piece in (PIECE, short))
    assert alike < 1.1 < 1.3 < other < spread(model(), {(short, PAIR): 50}, {})
    known = model(timings=50)
    assert spread(known, {(PIECE, PAIR): 50}, seen) < 1.1


def test_another_pair_keeps_the_spread_of_its_factor() -> None:
    other: Pair = ("base", "qqp")
    seen = {(PIECE, PAIR): 1000}
    of_it = spread(model(), {(PIECE, other): 50}, seen)
    assert of_it > math.exp(1.28 * 0.29)
    assert 1.0 < spread(model(), {(PIECE, PAIR): 50}, seen) < 1.1 < of_it


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def held(draw: np.random.Generator, *, ended: int, left: int) -> bool:
    """A run of one slot on a device that differs from the rule of thumb: whether what is left after
    some pieces then takes what the band says."""
    known, clock = model(), Clock()
    factor = math.exp(draw.normal(0, 0.8))
    estimated = known.seconds(PIECE, PAIR)
    pace = Pace(measured=False, now=clock)
    pace.slots = 1
    took = estimated * factor * np.exp(draw.normal(0, 0.2, ended + left))
    for number, seconds in enumerate(took[:ended]):
        pace.started(str(number))
        clock.seconds += float(seconds)
        pace.ended(str(number), estimated)
    expected = pace.seconds_left([], left * estimated, estimated)
    assert expected is not None
    wide = spread(known, {(PIECE, PAIR): left}, Counter({(PIECE, PAIR): ended}))
    return bool(expected / wide <= took[ended:].sum() <= expected * wide)


@pytest.mark.parametrize(("ended", "left"), [(2, 60), (10, 60), (40, 10)])
def test_about_four_of_five_bands_hold(ended: int, left: int) -> None:
    draw = np.random.default_rng(7)
    share = sum(held(draw, ended=ended, left=left) for _ in range(300)) / 300
    assert 0.7 <= share <= 0.95


@pytest.mark.parametrize(
    ("eta", "text"),
    [
        (Eta(), "--"),
        (Eta(61.0), "1:01"),
        (Eta(3903.0, 3012.0, 5060.0), "1:05:03 (80%: 50:12 to 1:24:20)"),
    ],
)
def test_in_words(eta: Eta, text: str) -> None:
    assert eta.text() == text
