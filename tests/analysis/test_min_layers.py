"""The question the project answers: how many layers a task needs, and how sure that is."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lp_sweep.analysis.needed import answer_line, layers_needed
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.errors import SpecError
from tests.support.fake_records import FakeSweep


def answers(fake: FakeSweep, delta: float = 1, **where: Any) -> list[dict[str, Any]]:
    conditions = {"unit": "points", **where}
    clause = " AND ".join(f"{column} = ${column}" for column in conditions)
    with open_views(fake.publish(), deltas=(delta,), only=("min_layers_by_unit",)) as catalog:
        sql = f"FROM min_layers_by_unit WHERE {clause} ORDER BY position"
        return catalog.query(sql, conditions).to_pylist()


def answer(fake: FakeSweep, delta: float = 1, **where: Any) -> dict[str, Any]:
    (row,) = answers(fake, delta, **where)
    return row


def interval(row: dict[str, Any]) -> tuple[int | None, int, int]:
    return row["max_dropped"], row["max_dropped_low"], row["max_dropped_high"]


# score by K (None: no score yet) of each seed, and the answer within a point: its K, known or not,
# and the least and the most that it may be
FOUND: dict[str, tuple[list[dict[int, float | None]], tuple[int | None, int, int]]] = {
    "K=4 loses 1.14, K=5 less": ([{0: 93.92, 2: 93.35, 4: 92.78, 5: 93.0, 6: 92.2}], (5, 5, 5)),
    "paired by seed": ([{0: 90.0, 2: 89.5}, {0: 80.0, 2: 78.7}], (2, 2, 2)),
    "exactly 1, but for float noise": (
        [{0: 93.5, 3: 93.8}, {0: 90.0, 3: 85.8}, {0: 91.2, 3: 92.1}],
        (3, 3, 3),
    ),
    "a missing seed": ([{0: 90.0, 2: 89.5, 4: 89.4}, {0: 90.0, 2: 89.5, 4: None}], (None, 2, 4)),
    "missing, below the answer": ([{0: 90.0, 4: None, 6: 89.8}], (6, 6, 6)),
    "all layers missing": ([{0: None, 2: 89.5, 4: 80.0}], (None, 0, 4)),
    "all layers not listed": ([{2: 89.5}], (None, 0, 2)),
    "only all layers, missing": ([{0: None}], (None, 0, 0)),
}


def test_the_answer_and_what_missing_scores_leave_open(fake: FakeSweep) -> None:
    for task, (curves, _) in FOUND.items():
        for seed, curve in enumerate(curves):
            for k, score in curve.items():
                fake.cell(k=k, score=score, seed=seed, task=task)
    found = {row["task"]: row for row in answers(fake)}
    assert {task: interval(row) for task, row in found.items()} == {
        task: expected for task, (_, expected) in FOUND.items()
    }
    known, paired, exact, seed, *_ = found.values()
    assert (known["min_layers_kept"], known["kept_layers"]) == (7, [1, 2, 3, 4, 5, 6, 7])
    assert (known["score_full"], known["score_kept"]) == pytest.approx((93.92, 93.0))
    assert (known["n_seeds"], known["n_missing"]) == (1, 0)
    assert (paired["n_seeds"], paired["loss"]) == (2, pytest.approx(0.9))
    assert exact["loss"] > 1
    assert (seed["min_layers_kept"], seed["n_seeds"], seed["n_missing"]) == (None, 2, 1)
    assert seed["loss"] == pytest.approx(0.5), "of max_dropped_low, not of a mean over one seed"
    assert [found[task]["n_missing"] for task in list(FOUND)[4:6]] == [1, 3]


def test_a_full_model_little_better_than_guessing_is_a_doubt(fake: FakeSweep) -> None:
    for task, majority, metric in (("few", 0.5, "accuracy"), ("rare", 0.0, "f1")):
        for k, points in ((0, 51.8), (2, 51.5)):
            fake.cell(k=k, score=points, majority=majority, metric=metric, task=task)
    few, rare = (answer_line([row]) for row in answers(fake))
    assert "only 1.8 points above guessing" in few
    assert "guessing" not in rare


def test_a_full_model_far_below_a_smaller_one_is_a_doubt(fake: FakeSweep) -> None:
    for task, pruned in (("better", 64.9), ("far", 65.0)):
        fake.curve({0: 60.0, 2: pruned}, task=task)
    better, far = (answer_line([row]) for row in answers(fake))
    assert "full model" not in better
    assert "the full model scores 5.0 points less" in far


def test_percent_is_of_the_full_models_score(fake: FakeSweep) -> None:
    """Where that is not positive, no loss will do."""
    fake.curve({0: 50.0, 2: 49.2, 4: 48.8})  # 0.8 of 50 points are 1.6 percent
    small = {(0.0, 0.0): 2, (0.0, -1.0): 0, (-5.0, -5.0): 2, (-5.0, -6.0): 0}
    for full, pruned in small:
        fake.curve({0: full, 2: pruned}, task=f"{full} {pruned}", metric="mcc")
    largest = [row["max_dropped_low"] for row in answers(fake, unit="percent")]
    assert largest == [0, *small.values()]
    assert answers(fake)[0]["max_dropped_low"] == 2
    wider = answers(fake, delta=2, unit="percent")[0]
    assert (wider["max_dropped_low"], wider["loss"]) == (2, pytest.approx(1.6))


def test_strategies_share_the_full_network(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 80.0})
    fake.curve({2: 89.9}, strategy="bottom")
    fake.cell(strategy="contribution", threshold=0.95, dropped=(3, 5), score=89.8)
    fake.cell(strategy="contribution", threshold=0.9, dropped=(3, 5), score=89.8)  # one network
    found = {row["strategy"]: row["max_dropped_low"] for row in answers(fake)}
    assert found == {"top": 0, "bottom": 2, "contribution": 2}


def test_a_strategy_that_only_lists_full_depth_has_no_answer_of_its_own(fake: FakeSweep) -> None:
    fake.curve({0: 90.0})
    assert [row["strategy"] for row in answers(fake)] == ["top"], "nothing else was asked for"
    fake.curve({2: 89.9}, strategy="bottom")
    assert [row["strategy"] for row in answers(fake)] == ["bottom"]


def test_thresholds_by_what_they_came_to(fake: FakeSweep) -> None:
    axes = {"strategy": "contribution", "task": "full depth by its layers"}
    fake.cell(threshold=0.99, dropped=(), score=90.0, **axes)
    fake.curve({2: 89.5}, task=axes["task"])
    fake.curve({0: 90.0}, task="deferred")  # a deferred cell may drop all but one layer
    axes["task"] = "deferred"
    fake.cell(threshold=0.95, dropped=(3, 5), score=89.8, **axes)
    fake.cell(threshold=0.9, state="deferred", **axes)
    found = {(row["task"], row["strategy"]): interval(row) for row in answers(fake)}
    assert found["full depth by its layers", "top"] == (2, 2, 2)
    assert found["deferred", "contribution"] == (None, 2, 11)


def test_an_allowed_loss_is_a_number_of_zero_or_more(fake: FakeSweep) -> None:
    for delta in (-1, float("nan"), float("inf")):
        with pytest.raises(SpecError, match="an allowed loss of"):
            open_views(fake.publish(), deltas=(1, delta))


def test_a_k_that_nobody_trained_is_in_the_bounds_in_every_format(fake: FakeSweep) -> None:
    """As `4–6 of 12 [a]` and its footnote say it; over all strategies, K=7 was tried."""
    fake.curve({0: 90.0, 6: 89.5, 9: 80.0})
    fake.curve({6: 80.0, 7: 81.0}, strategy="bottom")
    top, bottom = answers(fake)
    assert layers_needed(top)[:2] == (
        "4–6 of 12 (−0.50)",
        ("4 or 5 layers were not tried and may be enough.",),
    )
    assert (*interval(top), top["untried"]) == (None, 6, 8, [7, 8])
    assert (*interval(bottom), bottom["untried"]) == (None, 0, 5, [1, 2, 3, 4, 5])
    assert top["caveats"] == bottom["caveats"] == ["not tried"]
    assert (top["rank"], bottom["rank"]) == (1, 2)
    for row in (top, bottom):
        overall = row["task_dropped_low"], row["task_dropped_high"], row["task_untried"]
        assert overall == (6, 6, None)
    assert answer_line([top, bottom]).startswith("needs 6 of 12 layers")


CAVEATS: dict[str, tuple[list[dict[int, float | None]], list[str]]] = {
    "all layers missing": ([{1: 89.0}], ["no K=0", "missing"]),
    "missing": ([{0: 90.0, 1: None}], ["missing"]),
    "K=1 not tried": ([{0: 90.0, 2: 80.0}], ["not tried"]),
    "nothing smaller tried": ([{0: 90.0, 2: 89.5}], ["not tried"]),
    "fewer seeds": ([{0: 90.0, 11: 89.5}, {0: 90.0}], ["fewer seeds"]),
    "did not learn": ([{0: 50.0, 11: 50.0}], ["did not learn"]),
    "near guessing": ([{0: 52.0, 11: 52.0}], ["near guessing"]),
    "unlearned": ([{0: 50.5, 11: 49.9}], ["near guessing", "no better than guessing"]),
    "none": ([{0: 90.0, 11: 89.9}], []),
}


def test_each_caveat_of_an_answer_is_in_its_row(fake: FakeSweep) -> None:
    for task, (curves, _) in CAVEATS.items():
        for seed, curve in enumerate(curves):
            for k, score in curve.items():
                fake.cell(k=k, score=score, seed=seed, task=task)
    found = {row["task"]: row["caveats"] for row in answers(fake)}
    alone = {task: [] if "missing" in task else ["one strategy"] for task in CAVEATS}
    assert found == {task: [*caveats, *alone[task]] for task, (_, caveats) in CAVEATS.items()}


def test_an_answer_that_rests_on_one_strategy_names_it(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 1: 80.0}, task="kept")
    fake.curve({0: 90.0, 1: 89.5}, task="less")
    fake.cell(k=0, score=90.0, task="kept", strategy="bottom")  # drops nothing
    rows = answers(fake)
    for task in ("kept", "less"):
        of_task = [row for row in rows if row["task"] == task]
        assert "only top was tried" in answer_line(of_task)
    fake.cell(k=1, score=80.0, task="kept", strategy="bottom")
    assert "only" not in answer_line([row for row in answers(fake) if row["task"] == "kept"])


def test_points_are_shown_unless_percent_is_asked_for(fake: FakeSweep) -> None:
    fake.curve({0: 50.0, 1: 49.2})
    shown = {"min_layers": ["points"], "min_layers_by_unit": ["percent", "points"]}
    with open_views(fake.publish(), deltas=(1,), only=shown) as catalog:
        for view, units in shown.items():
            assert catalog.query(f"SELECT unit FROM {view} ORDER BY 1")["unit"].to_pylist() == units


SCORES = st.integers(0, 40).map(lambda tenths: 80 + tenths / 10)
Curve = dict[int, dict[int, float | None]]  # K, seed -> score or missing
CURVES = st.dictionaries(
    st.integers(0, 5),  # K
    st.dictionaries(st.integers(1, 3), st.none() | SCORES, min_size=1),  # seed -> score or missing
    min_size=1,
)


@settings(max_examples=settings.default.max_examples // 8)
@given(
    curves=st.lists(CURVES, min_size=6, max_size=6),  # of a task each
    delta=st.sampled_from([0.5, 1, 2]),
    percent=st.booleans(),
)
def test_the_view_says_what_the_definition_says(
    curves: list[Curve], delta: float, percent: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fake = FakeSweep(Path(folder))
        for task, curve in enumerate(curves):
            for k, seeds in curve.items():
                for seed, score in seeds.items():
                    fake.cell(k=k, seed=seed, score=score, depth=6, task=str(task))
        rows = answers(fake, delta, unit="percent" if percent else "points")
    found = {row["task"]: row for row in rows}
    for task, curve in enumerate(curves):
        assert_is_defined_so(found[str(task)], curve, delta, percent)


def assert_is_defined_so(row: dict[str, Any], curve: Curve, delta: float, percent: bool) -> None:
    full = {seed: score for seed, score in curve.get(0, {}).items() if score is not None}
    low, high = 0, 0
    for k, seeds in curve.items():
        pairs = [(full.get(seed), score) for seed, score in seeds.items()]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if k and len(known) == len(pairs):
            loss = mean(a - b for a, b in known)
            if percent:
                loss *= 100 / mean(a for a, _ in known)
            if loss <= delta + 1e-9:
                low, high = max(low, k), max(high, k)
        else:
            high = max(high, k)
    tried = {
        k for k, seeds in curve.items() if any(seeds[s] is not None for s in seeds.keys() & full)
    }
    above = min((k for k in tried if k > low), default=6)
    untried = [*range(low + 1, above)] if full and low == high else []
    if untried and above < 6:
        high = untried[-1]
    assert row["untried"] == (untried or None)
    assert interval(row) == (low if full and low == high else None, low, high)
    assert {name: row[f"task_{name}"] for name in ("dropped_low", "dropped_high", "untried")} == {
        "dropped_low": low,
        "dropped_high": high,
        "untried": untried or None,
    }, "there is one strategy"


# --- a full network that learned nothing


# scores of the full network by seed, its record, how many there are and how many learned nothing
NOT_LEARNED: dict[str, tuple[tuple[float, ...], dict[str, Any], tuple[int, int]]] = {
    "each is better": ((90.0, 50.01), {}, (2, 0)),
    "none, as two decimals show it": ((90.0, 50.0, 50.004), {}, (3, 2)),
    "the share of its own task": ((60.0,), {"majority": 0.6}, (1, 1)),
    "no majority class": ((60.0, 40.0), {"majority": None}, (2, 0)),
    "MCC": ((0.0, 3.0, -2.0), {"majority": 0.0, "metric": "mcc"}, (3, 2)),
    "Pearson": ((80.0, 0.0), {"metric": "pearson", "majority": None}, (2, 1)),
}


def test_seeds_that_learned_nothing_are_counted(fake: FakeSweep) -> None:
    for task, (scores, record, _) in NOT_LEARNED.items():
        for seed, score in enumerate(scores):
            fake.cell(k=0, task=task, seed=seed, score=score, **record)
            fake.cell(k=2, task=task, seed=seed, score=40.0, **record)  # counts for nothing
    found = {row["task"]: (row["n_full"], row["n_learned_nothing"]) for row in answers(fake)}
    assert found == {task: counted for task, (*_, counted) in NOT_LEARNED.items()}


def test_what_learned_is_told_of_each_full_network_alone(fake: FakeSweep) -> None:
    """By model, procedure, task and sweep; whichever strategy lists it, and once."""
    fake.curve({0: 50.0, 2: 50.0})
    fake.curve({0: 50.0, 4: 50.0}, strategy="bottom")
    fake.curve({0: 80.0, 2: 50.0}, model="xlnet")
    fake.curve({0: 80.0, 2: 50.0}, procedure="iterative")
    fake.curve({0: 80.0, 2: 50.0}, task="RTE")
    other = FakeSweep(fake.store.location, name="other")
    other.curve({0: 80.0, 2: 50.0}, seed=43)
    other.publish()
    counted = [(row["n_full"], row["n_learned_nothing"]) for row in answers(fake, sweep="demo")]
    assert counted == [(1, 1), (1, 1), (1, 0), (1, 0), (1, 0)]
    (elsewhere,) = answers(fake, sweep="other")
    assert (elsewhere["n_full"], elsewhere["n_learned_nothing"]) == (1, 0)


def test_an_answer_of_fewer_seeds_than_the_sweep_lists_says_so(fake: FakeSweep) -> None:
    """Beside K=0 with two seeds K=2 is listed with one: nothing is missing."""
    for seed in (1, 2):
        fake.cell(k=0, score=90.0, seed=seed)
    fake.cell(k=2, score=89.5, seed=1)
    row = answer(fake)
    assert (row["max_dropped"], row["n_seeds"], row["n_seeds_asked"]) == (2, 1, 2)
    with open_views(fake.publish(), deltas=[1]) as catalog:
        for name in ("min-layers", "min-layers-interval", "tasks", "strategies"):
            table = TABLES[name](catalog)
            shown = [cell for row in table.rows for cell in row]
            assert "1 of 2" in shown, name


def test_a_set_of_layers_and_symmetric_have_no_k_between(fake: FakeSweep) -> None:
    fake.curve({0: 90.0})
    fake.curve({2: 89.9, 4: 80.0}, strategy="symmetric")
    fake.cell(k=2, strategy="drop 2+4", dropped=(2, 4), score=89.9)
    fake.cell(k=2, strategy="drop 2+5", dropped=(2, 5), score=80.0)
    assert {row["strategy"]: layers_needed(row).text for row in answers(fake)} == {
        "symmetric": "10 of 12 (−0.10)",
        "drop 2+4": "10 of 12 (−0.10)",
        "drop 2+5": "12 of 12",
    }
