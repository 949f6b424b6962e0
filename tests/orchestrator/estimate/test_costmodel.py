"""Workload times the ratio of timings: which timings count for which work, and the band."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.estimate.timings import PRIOR, Pair, Ratios, Span, added
from lp_sweep.orchestrator.estimate.workload import CPU, GPU, Device, training

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


def test_without_timings_the_stated_rate_has_a_wide_band() -> None:
    assert ratios().of(("bert", "sst2")) == PRIOR == (1.0, 0.25, 4.0)


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


def test_more_timings_make_a_narrower_band() -> None:
    widths = [
        found.high / found.low
        for number in (1, 3, 10, 50)
        for found in [ratios(bert_sst2=[1.0, 1.2] * number).of(("bert", "sst2"))]
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 2 > 1.3 > widths[-1]


def test_one_wild_trial_moves_little() -> None:
    calm, shaken = (ratios(bert_sst2=[1.0] * 20 + more).of(("bert", "sst2")) for more in ([], [30]))
    assert shaken.median == calm.median
    assert shaken.high == calm.high


def test_only_the_newest_timings_count() -> None:
    assert ratios(bert_sst2=[9.0] * 200 + [1.0] * 50).of(("bert", "sst2")).median == 1.0


AMOUNTS = {
    "layer": 7e6, "epochs": 3, "layer_epochs": 36, "train": 1e4, "dev": 1e3, "tokens": 50,
    "batch": 32,
}  # fmt: skip


@pytest.mark.parametrize("device", [CPU, GPU], ids=["CPU", "GPU"])
@given(name=st.sampled_from(sorted(AMOUNTS.keys() - {"batch"})), factor=st.integers(1, 1000))
def test_more_never_takes_less(device: Device, name: str, factor: int) -> None:
    less, more = (
        training(**amounts).seconds(device)
        for amounts in (AMOUNTS, AMOUNTS | {name: factor * AMOUNTS[name]})
    )
    assert more >= less > 0


def test_bands_add_up() -> None:
    spans = [Span(1, 0.5, 2), Span(10, 8, 12)]
    assert added(spans) == (11, 8.5, 14)
    assert added([]) == (0, 0, 0)
    assert added([*spans, Span(5, None, None)]) == (16, None, None)
    for one, other in itertools.pairwise(spans):
        assert added([one.times(3), other]) == added([one, one, one, other])
