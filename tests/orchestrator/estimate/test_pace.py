"""How wide a band is, and when a run ends: before it and after some of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.estimate.pace import Eta, Pace, Pending
from lp_sweep.orchestrator.estimate.span import Span, band, duration
from tests.support.courses import Clock


def pace(*took: float, measured: bool = True, slots: int = 1, clock: Clock | None = None) -> Pace:
    """After trials that took so many times their estimate."""
    clock = clock or Clock()
    rates = Rates([], gpu=False)
    rates.trials = int(measured)
    run = Pace(rates, now=clock)
    run.slots = slots
    for factor in took:
        run.started("a")
        clock.seconds += factor * 60
        run.ended("a", 60.0)
    return run


def scale(run: Pace) -> Span:
    found = run.scale()
    assert found is not None
    return found


def test_before_a_run_the_band_is_that_of_the_estimate() -> None:
    assert scale(pace()) == (1.0, 0.25, 4.0)
    assert pace(measured=False).scale() is None
    assert pace(measured=False).eta({}, Pending(60.0, 60.0)) == Eta()
    assert pace(slots=0).eta({}, Pending(60.0, 60.0)) == Eta()


def test_the_pace_of_the_run_replaces_it_and_each_trial_narrows_its_band() -> None:
    found = [scale(pace(*[3.0] * seen)) for seen in (1, 5, 40)]
    assert [span.expected for span in found] == [3.0] * 3
    widths = [span.high / span.low for span in found if span.low and span.high]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1.3
    run = pace()
    run.started("b")
    run.ended("b", None)  # it failed
    assert scale(run) == scale(pace())


@pytest.mark.parametrize(("ended", "left"), [(2, 60), (40, 10)])
def test_most_bands_hold(ended: int, left: int) -> None:
    """The remaining trials take a total within the band, on a device without a stated rate."""
    draw = np.random.default_rng(7)

    def held() -> bool:
        took = np.exp(draw.normal(0, 0.8)) * np.exp(draw.normal(0, 0.2, ended + left))
        told = scale(pace(*took[:ended].tolist(), measured=False))
        return bool((told.low or 0) <= took[ended:].mean() <= (told.high or 0))

    assert sum(held() for _ in range(200)) / 200 >= 0.8


def test_what_is_left_is_shared_by_the_slots_but_for_the_longest_piece() -> None:
    assert pace(slots=2).eta({}, Pending(600.0, 100.0)) == (300.0, 75.0, 1200.0)
    clock = Clock()
    run = pace(*[3.5] * 20, slots=2, clock=clock)
    run.started("c")
    clock.seconds += 5
    left = run.eta({"c": 10.0}, Pending(100.0, 20.0)).seconds
    assert left == pytest.approx((10 * 3.5 - 5 + 100 * 3.5) / 2)

    run = pace(slots=10)
    assert run.eta({}, Pending(1000.0, 500.0)).seconds == 500.0
    run.started("a")
    assert run.eta({"a": 700.0}, Pending(0.0, 0.0)).seconds == 700.0
    # what runs alone is not shared by ten slots
    assert run.eta({}, Pending(1000.0, 50.0, alone=300.0)).seconds == 400.0


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=60), st.floats(0.001, 1000))
def test_the_band_holds_the_median_and_scales_with_the_device(
    ratios: list[float], speed: float
) -> None:
    found = band(ratios)
    assert (found.low or 0) <= found.expected <= (found.high or 0)
    assert band([speed * ratio for ratio in ratios]) == pytest.approx(found.times(speed))


def test_more_timings_make_a_narrower_band_and_one_wild_one_moves_little() -> None:
    found = [band([1.0, 1.2] * number) for number in (1, 3, 10, 50)]
    widths = [span.high / span.low for span in found if span.low and span.high]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2 > 1.3 > widths[-1]
    assert band([1.0] * 20 + [30.0])[::2] == band([1.0] * 20)[::2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [((42.0,), "42 s"), ((176.0, 60.0, 780.0), "2.9 min (1.0 to 13)")],
)
def test_times_in_the_readers_scale(seconds: tuple[float, ...], text: str) -> None:
    assert duration(Span(*seconds).times(1 / 3600)) == text
