"""How optimistic the best network is, by cross-fitting: where its luck is known, and in a store."""

from __future__ import annotations

import numpy as np
import pytest

from lp_sweep.analysis.statistics.networks import reader
from lp_sweep.analysis.statistics.selection import (
    Candidate,
    ChoicePlace,
    Optimism,
    Splits,
    load,
    optimism,
    sentence,
    split,
)
from lp_sweep.analysis.views import open_views
from tests.support.fake_records import FakeSweep

ROWS = 872
EQUAL = 0.9  # share right of every strategy, on rows that nobody has seen


def simulated(seed: int, shares: list[float], metric: str = "accuracy") -> Optimism:
    """Networks of K=6 that are right on their share of rows, each on its own, beside K=0."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, ROWS)
    right = rng.random((ROWS, len(shares) + 1)) < [*shares, 1.0]
    predicted = np.where(right, labels[:, None], 1 - labels[:, None])
    full = (len(shares),)
    candidates = [Candidate(0, full, full)]
    candidates += [Candidate(6, (own,), full) for own in range(len(shares))]
    found = split(metric, labels, predicted, candidates, len(shares), repeats=10)
    return optimism(found, within=50, unit="points")


def naive(seed: int, strategies: int) -> float:
    """Points of the best of equal strategies above what each scores on new rows."""
    rng = np.random.default_rng(seed)
    rng.integers(0, 2, ROWS)
    right = rng.random((ROWS, strategies + 1)) < [*[EQUAL] * strategies, 1.0]
    return 100 * (float(right[:, :-1].mean(axis=0).max()) - EQUAL)


def test_of_equal_strategies_the_luck_of_the_best_is_found() -> None:
    """The best of ten scores about 1.5 points too high."""
    strategies = 10
    found = [simulated(seed, [EQUAL] * strategies).score for seed in range(60)]
    luck = [naive(seed, strategies) for seed in range(60)]
    error = np.std(np.subtract(luck, found)) / 60**0.5
    assert np.mean(luck) > 0.4
    assert np.mean(found) == pytest.approx(np.mean(luck), abs=3 * error)
    assert error < 0.2


@pytest.mark.parametrize("metric", ["accuracy", "mcc"])  # mcc is lower on few rows: that is no luck
def test_a_clear_winner_owes_nothing_to_luck(metric: str) -> None:
    found = [simulated(seed, [0.95, 0.7, 0.6], metric=metric).score for seed in range(10)]
    assert all(abs(value) < 1e-9 for value in found)


def test_the_luck_of_a_loss_near_the_limit_is_found() -> None:
    """K=6 is taken where its loss happens to be within the limit, which is what it truly loses."""
    losses = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        labels = np.zeros(ROWS)
        right = rng.random((ROWS, 8)) < [0.9, *[0.88] * 7]
        candidates = [Candidate(0, (0,), (0,))]
        candidates += [Candidate(k, (k,), (0,)) for k in range(1, 8)]
        predicted = np.where(right, 0.0, 1.0)
        found = split("accuracy", labels, predicted, candidates, 1, repeats=10)
        losses.append(optimism(found, within=2, unit="points").loss)
    assert 0.3 < np.mean(losses) < 2


def loaded(fake: FakeSweep) -> Splits | str | None:
    with open_views(fake.publish(), only=("cells", "trials", "predictions")) as catalog:
        return load(catalog, ChoicePlace("demo", "bert", "SST-2"), reader(catalog))


@pytest.mark.parametrize("whole", [True, False])
def test_a_store_says_how_much_less_to_expect_or_why_not(fake: FakeSweep, whole: bool) -> None:
    rng = np.random.default_rng(1)
    for seed in (1, 2):
        for strategy, k in (("top", 0), ("top", 6), ("bottom", 6), ("symmetric", 6)):
            right = rng.random(400) < 0.85 + 0.05 * (k == 0)
            row = fake.cell(strategy=strategy, k=k, score=100 * float(right.mean()), seed=seed)
            if whole or k == 0:
                fake.predictions(row["trial_id"], right.tolist())
    text = sentence(loaded(fake), 20, "points")
    told = ["3 strategies (4 networks)", "400 dev rows", "points less"]
    assert all(part in text for part in (told if whole else ["estimated: no predictions"]))


def test_too_little_to_choose_from(fake: FakeSweep) -> None:
    for k, said in ((0, ""), (6, "only 10 rows")):
        row = fake.cell(k=k, score=90.0)
        fake.predictions(row["trial_id"], [True] * 9 + [False])
        text = sentence(loaded(fake), 20, "points")
        assert said in text if said else text == ""


def test_a_student_of_another_model_is_chosen_against_the_plain_full_model(fake: FakeSweep) -> None:
    for procedure, k, right in (
        ("direct", 0, 360),
        ("direct distill logits of large", 0, 400),
        ("direct distill logits of large", 6, 352),
    ):
        row = fake.cell(procedure=procedure, k=k, score=right / 4)
        fake.predictions(row["trial_id"], [n < right for n in range(400)])
    found = loaded(fake)
    assert isinstance(found, Splits)
    assert found.ks.tolist() == [0, 6]
    assert found.whole.losses.tolist() == [[0, 2]]


def test_a_strategy_with_several_procedures_is_one_strategy(fake: FakeSweep) -> None:
    fake.predictions(fake.cell(k=0, score=90.0)["trial_id"], [n < 360 for n in range(400)])
    for procedure in ("direct", "iterative"):
        for strategy in ("top", "bottom"):
            row = fake.cell(procedure=procedure, strategy=strategy, k=6, score=85.0)
            fake.predictions(row["trial_id"], [n < 340 for n in range(400)])
    assert "Chosen from 2 strategies (" in sentence(loaded(fake), 20, "points")
