"""The minimum-layers answer under resampling: the view's rule, and shares that mean something."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lp_sweep.analysis.statistics.credible import Curve, answers
from lp_sweep.analysis.statistics.tables import min_layers_interval
from tests.answered import long, network, right
from tests.fake_records import FakeSweep


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    return FakeSweep(tmp_path)


def test_a_clear_answer_is_that_of_every_resample(fake: FakeSweep) -> None:
    for seed in (1, 2, 3):
        for k, n_right in ((0, 900), (2, 900), (6, 700)):
            network(fake, right(n_right, n=1000), k=k, seed=seed)
    (row,) = long(fake, min_layers_interval)
    assert (row["max_dropped"], row["share"], row["credible"]) == (2, 1.0, [2])
    assert (row["n_seeds"], row["n_examples"], row["resamples"]) == (3, 1000, 2000)


def test_a_loss_of_just_delta_is_a_toss(fake: FakeSweep) -> None:
    network(fake, right(900, n=1000), k=0)
    network(fake, right(880, n=1000), k=2)
    (row,) = long(fake, min_layers_interval, deltas=(2,))
    assert row["max_dropped"] == 2
    assert 0.45 < row["share"] < 0.65  # ties count as within: P(binomial(1000, .02) <= 20) = .56
    assert row["credible"] == [0, 2]
    assert row["shares"] == [{"k": 0, "share": pytest.approx(1 - row["share"])}, row["shares"][1]]


def test_seeds_of_full_depth_that_a_strategy_has_no_use_for(fake: FakeSweep) -> None:
    for seed in (1, 2):
        network(fake, right(90), k=0, seed=seed)
    network(fake, right(90), k=2, seed=1)
    (row,) = long(fake, min_layers_interval)
    assert (row["n_seeds"], row["share"]) == (1, 1.0)
    for seed in (1, 2):
        network(fake, right(90), k=4, seed=seed)
    (uneven,) = long(fake, min_layers_interval)
    assert uneven["reason"] == "different seeds for different K"


N = 20
CURVES = st.dictionaries(
    st.integers(0, 4),
    st.lists(st.none() | st.integers(8, 16), min_size=2, max_size=2),  # right answers, per seed
    min_size=1,
)


@settings(max_examples=12, deadline=None)
@given(curve=CURVES, delta=st.sampled_from([0, 5, 10]), percent=st.booleans())
def test_the_rule_is_that_of_the_view(curve: Any, delta: float, percent: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeSweep(folder)
        for k, seeds in curve.items():
            for seed, n_right in enumerate(seeds):
                if n_right is None:
                    fake.cell(k=k, seed=seed, depth=6)
                else:
                    network(fake, right(n_right, N), k=k, seed=seed, depth=6)
        unit = "percent" if percent else "points"
        (row,) = long(fake, min_layers_interval, deltas=(delta,), unit=unit)
    if 0 not in curve or any(None in seeds for seeds in curve.values()):
        assert row["reason"]
        assert row["credible"] is None
        return
    ks = tuple(sorted(curve))
    points = np.array([[curve[k][seed] * 100 / N for k in ks] for seed in (0, 1)])
    as_they_are = Curve(ks, points[None], np.full((1, 2), 0.5), N)
    assert answers(as_they_are, delta, unit)[0] == row["max_dropped"]
    assert sum(item["share"] for item in row["shares"]) == pytest.approx(1)
    shares = {item["k"]: item["share"] for item in row["shares"]}
    assert sum(shares[k] for k in row["credible"]) >= 0.9 - 1e-9


def test_a_loss_of_exactly_delta_is_within_it() -> None:
    points = np.array([[[85.5, 76.8], [92.9, 84.1], [83.5, 92.0]]])
    curve = Curve((0, 3), points, np.full((1, 3), 1 / 3), 9)
    assert answers(curve, 3, "points")[0] == 3, "a loss of 3.000000000000005, as floats add up"
    assert answers(curve, 2.999, "points")[0] == 0


def test_percent_of_a_score_that_is_not_positive() -> None:
    curve = Curve((0, 1, 2), np.array([[[-5.0, -5, -6]], [[0, 0, -1]]]), np.ones((2, 1)), 9)
    assert answers(curve, 50, "percent").tolist() == [1, 1]


def test_seeds_that_disagree_leave_the_answer_open(fake: FakeSweep) -> None:
    for seed, n_right in enumerate((990, 990, 910)):  # a mean loss of 1.33 points
        network(fake, right(950, n=1000), k=0, seed=seed)
        network(fake, right(n_right - 53, n=1000), k=2, seed=seed)
    (row,) = long(fake, min_layers_interval, deltas=(2,))
    assert row["credible"] == [0, 2]


def test_impossible_cells_alone_are_no_curve(fake: FakeSweep) -> None:
    network(fake, right(90), k=0, seed=1)
    impossible = {"strategy": "contribution", "threshold": 0.1, "state": "pending"}
    fake.cell(**impossible, dropped=range(1, 13), seed=9)
    rows = {row["strategy"]: row for row in long(fake, min_layers_interval)}
    assert (rows["top"]["credible"], rows["contribution"]["reason"]) == ([0], "no K=0")
