"""When a run ends: before it, and after some of it."""

from __future__ import annotations

import numpy as np
import pytest

from lp_sweep.orchestrator.estimate.estimate import Kind
from lp_sweep.orchestrator.estimate.pace import Pace, duration
from lp_sweep.orchestrator.estimate.timings import Span
from tests.support.courses import Clock
from tests.support.sweepfiles import CPU

RTE, QQP = Kind(60.0, ("bert", "rte")), Kind(900.0, ("bert", "qqp"))


def pace(*took: float, kind: Kind = RTE, measured: bool = True) -> Pace:
    """After pieces that took so many times their estimate."""
    clock = Clock()
    run = Pace(measured=measured, now=clock)
    for factor in took:
        run.started("a")
        clock.seconds += factor * kind.stated
        run.ended("a", kind, kind.stated)
    return run


def scale(run: Pace, *kinds: Kind) -> Span:
    found = run.scale(CPU, dict.fromkeys(kinds or (RTE,), 10))
    assert found is not None
    return found


def test_before_a_run_it_is_that_of_the_estimate() -> None:
    assert scale(pace()) == pytest.approx((1.0, 0.25, 4.0))
    assert pace(measured=False).scale(CPU, {RTE: 10}) is None


def test_the_pace_of_the_run_corrects_it_and_narrows_its_band() -> None:
    found = [scale(pace(*[3.0] * seen)) for seen in (1, 5, 40)]
    assert [span.expected for span in found] == pytest.approx([2.0, 3.0, 3.0])
    widths = [span.high / span.low for span in found if span.low and span.high]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1.3
    assert scale(pace(3.0, measured=False)).expected == pytest.approx(3.0)


def test_another_task_is_less_sure() -> None:
    run = pace(*[3.0] * 40)
    same, other = scale(run), scale(run, QQP)
    assert other.expected == pytest.approx(2.0)
    assert other.high / other.low > 2 * same.high / same.low  # type: ignore[operator]


@pytest.mark.parametrize(("ended", "left"), [(2, 60), (40, 10)])
def test_most_bands_hold(ended: int, left: int) -> None:
    """The remaining trials take a total within the band, on a device without a stated rate."""
    draw = np.random.default_rng(7)

    def held() -> bool:
        took = np.exp(draw.normal(0, 0.8)) * np.exp(draw.normal(0, 0.2, ended + left))
        told = scale(pace(*took[:ended].tolist(), measured=False))
        return bool((told.low or 0) <= took[ended:].mean() <= (told.high or 0))

    assert sum(held() for _ in range(200)) / 200 >= 0.8


@pytest.mark.parametrize(
    ("seconds", "text"),
    [((42.0, None, None), "42 s"), ((176.0, 60.0, 780.0), "2.9 min (1.0 to 13)")],
)
def test_times_in_the_readers_scale(
    seconds: tuple[float, float | None, float | None], text: str
) -> None:
    assert duration(Span(*seconds).times(1 / 3600)) == text
