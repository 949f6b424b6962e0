"""The 90% set of the minimum-layers answer: what it has to contain, and how often it does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.answerset import (
    OWN,
    WEIGHT,
    ScoredCurve,
    SeedSpread,
    answer_set,
    excess,
    left_over,
    moderated,
    near,
    spread_of,
)
from lp_sweep.analysis.statistics.estimates import Estimate, scores_of
from lp_sweep.analysis.statistics.minimum import ASSUMED, pools_of, seed_spread
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from tests.support.answered import long, network, right
from tests.support.fake_records import FakeSweep


def test_which_answers_the_scores_do_not_rule_out(fake: FakeSweep) -> None:
    for seed in (1, 2, 3):
        for k, n_right in ((0, 900), (1, 890), (2, 900), (3, 700)):
            network(fake, right(n_right + (seed * k) % 3, 1000), k=k, seed=seed, task="clear")
    for k, n_right in ((0, 900), (1, 896)):
        for procedure in ("direct", "untrained bridge linear"):
            network(fake, right(n_right, 1000), k=k, procedure=procedure, task="untrained")
    for seed, luck in enumerate((0, 1)):
        for k in (0, 2):
            of = {"metric": "f1", "positive": "fraud", "positive_label": 1, "task": "F1"}
            network(fake, right(80 - k * luck), k=k, seed=seed, **of)
    network(fake, right(90), k=0, task="impossible")
    network(fake, right(10), k=1, task="impossible")
    of = {"strategy": "contribution", "threshold": 0.1, "task": "impossible"}
    fake.cell(dropped=range(1, 13), seed=9, **of)
    clear, direct, bare, f1, top, threshold = long(fake, TABLES["min-layers-interval"])
    assert (clear["max_dropped"], clear["credible"]) == (2, [2])
    assert (clear["n_seeds"], clear["n_examples"]) == (3, 1000)
    assert clear["seed_sd_from"] == f1["seed_sd_from"] == OWN
    assert (direct["seed_sd_from"], direct["credible"]) == ("assumed", [0, 1])
    assert (bare["seed_sd"], bare["seed_sd_from"], bare["credible"]) == (0.0, "untrained", [1])
    assert (top["credible"], threshold["reason"]) == ([0], "no K=0"), "no curve without a network"


def test_what_was_not_run_or_lies_at_the_limit_can_be_the_answer(fake: FakeSweep) -> None:
    for k, n_right in ((0, 2700), (2, 2700), (5, 1500)):
        network(fake, right(n_right, n=3000), k=k)
        network(fake, right(n_right, n=3000), k=k, strategy="symmetric" if k != 5 else "top")
        network(fake, right(n_right, n=3000), k=k, task="failed")
    fake.cell(k=1, state="failed", task="failed")
    fake.cell(k=4, state="pending", task="failed")
    network(fake, right(900, n=1000), k=0, task="limit")
    network(fake, right(820, n=1000), k=2, task="limit")
    rows = long(fake, TABLES["min-layers-interval"], deltas=(8,))
    found = {(row["task"], row["strategy"]): row for row in rows}
    assert found["SST-2", "top"]["credible"] == [2, 3, 4], "beyond K=5 nothing is said"
    assert found["SST-2", "symmetric"]["credible"] == [2], "it has no K=3"
    assert found["failed", "top"]["max_dropped"] is None
    assert found["failed", "top"]["credible"] == [2, 3, 4], "K=2 surely is within 8 points"
    limit = found["limit", "top"]
    assert (limit["max_dropped"], limit["credible"]) == (2, [0, 1, 2])
    assert (limit["seed_sd"], limit["seed_sd_from"]) == (1.0, "assumed")


def test_the_spread_of_one_seed_comes_from_other_networks_of_the_task(fake: FakeSweep) -> None:
    for seed, luck in enumerate((0, 4, 8)):
        network(fake, right(900, n=1000), k=0, seed=seed, model="other")
        network(fake, right(888 + luck, n=1000), k=2, seed=seed, model="other")
    network(fake, right(900, n=1000), k=0)
    network(fake, right(890, n=1000), k=2)
    found = {row["model"]: row for row in long(fake, TABLES["min-layers-interval"])}
    assert found["other"]["seed_sd_from"] == "model and task"
    (alone,) = (row for name, row in found.items() if name != "other")
    assert alone["seed_sd_from"] == "task"
    assert alone["seed_sd"] == found["other"]["seed_sd"] == pytest.approx(0.28, rel=0.5)


# --- the rule


def loss(beyond: float, sd: float = 0.1) -> Estimate:
    return Estimate(beyond, 0.0, 0, sd**2)


def test_a_larger_k_that_is_surely_within_rules_out_the_smaller_ones() -> None:
    assert answer_set({1: loss(-5), 2: loss(0), 3: loss(5)}) == [1, 2]
    assert answer_set({1: loss(5), 2: loss(-5), 3: loss(5)}) == [2], "a smaller K may lose more"
    assert answer_set({1: loss(5), 2: loss(5), 3: loss(5)}) == [0]
    assert answer_set({1: loss(-5), 2: None, 3: loss(5)}) == [1, 2], "never run"
    assert answer_set({}) == [0]


def test_more_candidates_need_more_evidence() -> None:
    just = {9: loss(-0.18)}  # 1.8 standard errors within the limit: enough for one test
    assert answer_set(just) == [9]
    crowd = {k: loss(0.0) for k in range(10, 20)}
    assert 0 in answer_set(just | crowd)
    far = {k: loss(50.0) for k in range(10, 20)}
    assert answer_set(just | far) == [9], "those surely beyond the limit cost nothing"


# --- the spread over seeds


def test_own_seeds_outweigh_the_pool_as_they_grow() -> None:
    pool = SeedSpread(1.0, 50, "task")
    for seeds, expected in ((1, 2.0), (3, (2 * 8 + WEIGHT * 2) / (2 + WEIGHT)), (1000, 8.0)):
        own = 8.0 / seeds if seeds > 1 else 0.0
        found = moderated(Estimate(1.0, own, seeds - 1, 0.1), seeds, pool)
        assert found.seeds * seeds == pytest.approx(expected, rel=0.01)
        assert found.freedom == seeds - 1 + WEIGHT


def test_what_a_change_brought_into_the_pool_counts_once() -> None:
    """Two networks with two seeds are their own pool: it adds nothing."""
    own = Estimate(1.0, 0.5, 1, 0.1)
    assert moderated(own, 2, SeedSpread(0.5, 1, OWN)) == own
    assert moderated(own, 2, SeedSpread(0.5, 3, OWN)).freedom == 3


def test_equal_scores_are_no_spread() -> None:
    same = {(k, s): 250 / 2.77 + k + 0.1 * s for k in range(2) for s in range(2)}
    assert spread_of([left_over(same)], OWN) is None


def test_sweeps_that_share_trials_count_them_once(fake: FakeSweep) -> None:
    other = FakeSweep(fake.store.location, "other")
    for sweep in (fake, other):
        for seed, luck in enumerate((0, 4, 9)):
            network(sweep, right(900, n=1000), k=0, seed=seed)
            network(sweep, right(888 + luck, n=1000), k=2, seed=seed)
    other.publish()
    with open_views(fake.publish(), only=("cells", "trials", "predictions")) as catalog:
        cells = networks.cells(catalog, (), ())
    assert len({cell["sweep"] for cell in cells}) == 2
    place = (cells[0][name] for name in ("model", "task", "metric"))
    assert seed_spread(pools_of(cells), *place).freedom == 2


# --- simulated studies


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_set_holds_the_truth_when_two_losses_lie_at_the_limit(seeds: int) -> None:
    """The most frequent answers of resamples held it in .50 and .62 of such studies."""
    losses, n, sd, studies = np.array([0, 0.6, 0.9, 1.1, 1.4, 6]), 872, 0.4, 300
    ks = len(losses)
    places = {(k, s): s * ks + k for s in range(seeds) for k in range(ks)}
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(studies):
        chance = 0.9 - (losses + rng.normal(0, sd, (seeds, ks))) / 100
        hard = rng.normal(0, 0.8**0.5, (n, 1, 1)) + rng.normal(0, 0.2**0.5, (n, seeds, ks))
        right = (hard < ndtri(chance)).reshape(n, -1)
        scores = scores_of("accuracy", np.ones(n), right, 100 * right.mean(axis=0))
        named = {place: float(scores.points[at]) for place, at in places.items()}
        spread = spread_of([left_over(near(named))], OWN) or ASSUMED
        curve = ScoredCurve(scores, places, tuple(range(ks)), spread)
        held += 2 in answer_set(excess(curve, 1.0, "points"))
    assert held / studies >= 0.9
    assert seeds == 1 or held < studies, "no wider than needed"


def test_a_broken_network_does_not_count_and_one_weak_seed_breaks_none() -> None:
    whole, weak, broken = {("a", 1): 90.0}, {("b", 1): 86.0, ("b", 2): 84.0}, {("c", 1): 84.9}
    assert near({**whole, **weak, **broken}) == {**whole, **weak}


@given(
    st.dictionaries(st.tuples(st.integers(0, 6), st.integers(0, 8)), st.floats(0, 100), max_size=40)
)
def test_the_residuals_are_those_of_the_whole_design(scores: dict[tuple[int, int], float]) -> None:
    """One mean per network and one per seed, as a matrix of indicators."""
    found = left_over(scores)
    if not scores:
        assert found == (0.0, 0)
        return
    columns = [(part, name) for part in (0, 1) for name in {key[part] for key in scores}]
    design = np.array([[key[part] == name for part, name in columns] for key in scores], float)
    points = np.array(list(scores.values()))
    fitted, _, rank, _ = np.linalg.lstsq(design, points, rcond=None)
    rest = points - design @ fitted
    assert found.freedom == len(points) - rank
    assert found.total == pytest.approx(rest @ rest, abs=1e-6)
