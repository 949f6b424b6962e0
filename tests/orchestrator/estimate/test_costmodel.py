"""Workload times the ratio of timings: which timings count for which work, and the band."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.estimate.timings import PRIOR, Pair, Ratios, Span, added

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
