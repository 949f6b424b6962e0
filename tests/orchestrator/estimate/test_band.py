"""When a run ends, before it and after some of it, and the band of that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.estimate.estimate import Kind, Rates
from lp_sweep.orchestrator.estimate.pace import Pace, Pending, duration
from lp_sweep.orchestrator.estimate.timings import PRIOR, Pair, Ratios, Span, added
from tests.support.courses import Clock

RTE, QQP = Kind(60.0, ("bert", "rte")), Kind(900.0, ("bert", "qqp"))


def rates(*, measured: bool) -> Rates:
    stated = Rates([], gpu=False)
    stated.trials = int(measured)
    return stated


def pace(*took: float, kind: Kind = RTE, measured: bool = True) -> Pace:
    """After pieces that took so many times their estimate."""
    clock = Clock()
    run = Pace(rates(measured=measured), now=clock)
    for factor in took:
        run.started("a")
        clock.seconds += factor * kind.stated
        run.ended("a", kind)
    return run


def scale(run: Pace, *kinds: Kind) -> Span:
    found = run.scale(dict.fromkeys(kinds or (RTE,), 10))
    assert found is not None
    return found


def test_before_a_run_it_is_that_of_the_estimate() -> None:
    assert scale(pace()) == pytest.approx((1.0, 0.25, 4.0))
    assert pace(measured=False).scale({RTE: 10}) is None


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


def test_what_is_left_is_shared_by_the_slots_but_for_the_longest_piece() -> None:
    hands = Clock()
    pace = Pace(rates(measured=True), now=hands)
    assert pace.seconds_left({}, Pending(600.0, 100.0)) is None  # no slots yet
    pace.slots = 2
    assert pace.seconds_left({}, Pending(600.0, 100.0)) == 300.0
    pace.started("c")
    hands.seconds += 5
    left = pace.seconds_left({"c": 10.0}, Pending(100.0, 20.0), scale=3.5)
    assert left == pytest.approx((10 * 3.5 - 5 + 100 * 3.5) / 2)

    pace = Pace(rates(measured=True), now=Clock())
    pace.slots = 10
    assert pace.seconds_left({}, Pending(1000.0, 500.0)) == 500.0
    pace.started("a")
    assert pace.seconds_left({"a": 700.0}, Pending(0.0, 0.0)) == 700.0
    # what runs alone is not shared by ten slots
    assert pace.seconds_left({}, Pending(1000.0, 50.0, alone=300.0)) == 400.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [((42.0, None, None), "42 s"), ((176.0, 60.0, 780.0), "2.9 min (1.0 to 13)")],
)
def test_times_in_the_readers_scale(
    seconds: tuple[float, float | None, float | None], text: str
) -> None:
    assert duration(Span(*seconds).times(1 / 3600)) == text


# -- workload times the ratio of timings: which timings count for which work

RATIOS = st.lists(st.floats(0.01, 100), min_size=1, max_size=60)


def ratios(**timings: list[float]) -> Ratios:
    """By model and task: `bert_sst2=[...]`."""
    found = Ratios()
    for name, values in timings.items():
        model, task = name.split("_")
        for value in values:
            found.add((model, task), value)
    return found


@pytest.mark.parametrize(
    ("pair", "median"),
    [
        pytest.param(("bert", "sst2"), 2.0, id="its own timings"),
        pytest.param(("bert", "qqp"), 3.0, id="the medians of the model's other tasks"),
        pytest.param(("new", "sst2"), 4.0, id="the medians of all"),
    ],
)
def test_the_nearest_timings_count(pair: Pair, median: float) -> None:
    known = ratios(bert_sst2=[2.0] * 9, bert_rte=[4.0], roberta_rte=[6.0, 10.0])
    assert known.of(pair).median == median


@given(RATIOS)
def test_the_band_holds_the_median(values: list[float]) -> None:
    for pair in (("bert", "sst2"), ("bert", "rte"), ("new", "rte")):
        ratio = ratios(bert_sst2=values).of(pair)
        assert ratio.low < ratio.median < ratio.high


@given(RATIOS, st.floats(0.001, 1000))
def test_a_device_of_another_speed_scales_everything(values: list[float], speed: float) -> None:
    slow, fast = (
        ratios(bert_sst2=[factor * value for value in values]).of(("bert", "sst2"))
        for factor in (1.0, speed)
    )
    assert fast == pytest.approx([speed * value for value in slow])


def test_more_timings_make_a_narrower_band_and_one_wild_one_moves_little() -> None:
    pair = ("bert", "sst2")
    found = [ratios(bert_sst2=[1.0, 1.2] * number).of(pair) for number in (1, 3, 10, 50)]
    widths = [ratio.high / ratio.low for ratio in [ratios().of(pair), *found]]
    assert ratios().of(pair) == PRIOR == (1.0, 0.25, 4.0)
    assert widths == sorted(widths, reverse=True)
    assert widths[1] > 2 > 1.3 > widths[-1]
    calm, shaken = (ratios(bert_sst2=[1.0] * 20 + more).of(pair) for more in ([], [30.0]))
    assert (shaken.median, shaken.high) == (calm.median, calm.high)
    assert ratios(bert_sst2=[9.0] * 200 + [1.0] * 50).of(pair).median == 1.0  # only the newest


def test_bands_add_up() -> None:
    spans = [Span(1, 0.5, 2), Span(10, 8, 12)]
    assert added(spans) == (11, 8.5, 14)
    assert added([]) == (0, 0, 0)
    assert added([*spans, Span(5, None, None)]) == (16, None, None)
