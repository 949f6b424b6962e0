"""The control: what K layers dropped at random score, and each strategy beside it."""

from __future__ import annotations

from typing import Any

import pytest

from lp_sweep.analysis.render import render
from lp_sweep.analysis.tabledef import Table
from tests.support.answered import lines, made
from tests.support.fake_records import FakeSweep

DRAWN = {0: (3, 5), 1: (2, 8), 2: (1, 9)}


def draws(fake: FakeSweep, scores: list[float | None], **axes: Any) -> None:
    """A draw for each score; None: it is not done."""
    for draw, score in enumerate(scores):
        fake.cell(strategy=f"random {draw}", k=2, dropped=DRAWN[draw], score=score, **axes)


def table(fake: FakeSweep) -> Table:
    return made(fake, "random-control")


def test_a_strategy_minus_the_mean_of_the_draws(fake: FakeSweep) -> None:
    for task, off in (("SST-2", 0.0), ("QQP", -10.0)):
        fake.curve({0: 90.0 + off, 2: 84.0 + off}, task=task)
        fake.cell(strategy="bottom", k=2, score=79.0 + off, task=task)
        draws(fake, [78.0 + off, 80.0 + off, 82.0 + off], task=task)
    made = table(fake)
    top, bottom = made.long.to_pylist()
    assert (top["strategy"], top["k"], top["tasks"]) == ("top", 2, "all")
    assert (top["random_mean"], top["random_sd"]) == (pytest.approx(75), pytest.approx(2))
    assert (top["mean"], top["difference"]) == (pytest.approx(79), pytest.approx(4))
    assert (top["n_draws"], top["n_draws_expected"], top["n_below"]) == (3, 3, 3)
    assert (bottom["difference"], bottom["n_below"]) == (pytest.approx(-1), 1)
    first, second = lines(made)
    assert (first["random"], first["mean"]) == ("75.00 ±2.00", "79.00")
    assert (first["difference"], first["above"]) == ("+4.00", "3")
    assert (second["difference"], second["layers"]) == ("−1.00", "10 of 12")


def test_stable_tasks_stand_apart_where_there_are_others(fake: FakeSweep) -> None:
    for task, off in (("SST-2", 0.0), ("RTE", -20.0)):
        fake.curve({2: 84.0 + off}, task=task)
        draws(fake, [80.0 + 2 * off], task=task)
    rows = table(fake).long.to_pylist()
    assert [(row["tasks"], row["difference"]) for row in rows] == [("all", 14), ("stable", 4)]


def test_a_draw_that_is_not_complete_is_not_in_the_mean(fake: FakeSweep) -> None:
    fake.curve({2: 84.0})
    draws(fake, [78.0, 80.0, None])
    (line,) = lines(table(fake))
    told = (line["random"], line["draws"], line["above"])
    assert told == ("79.00 ±1.41", "2 of 3", "2")


def test_without_one_side_there_is_no_difference(fake: FakeSweep) -> None:
    fake.cell(k=2, score=84.0)
    draws(fake, [None])
    fake.cell(k=2, model="xlnet")
    draws(fake, [80.0], model="xlnet")
    sides = [(line["random"], line["mean"], line["difference"]) for line in lines(table(fake))]
    assert sides == [("missing", "84.00", ""), ("80.00", "missing", "")]


def test_what_stands_beside_the_control(fake: FakeSweep) -> None:
    """Not K=0, not another K, and not a network that kept all its feed-forwards."""
    fake.cell(strategy="random 0", k=0, dropped=(), score=90.0)
    fake.curve({0: 90.0, 4: 80.0})
    draws(fake, [78.0])
    fake.cell(strategy="contribution", threshold=0.9, dropped=(4, 5), score=85.0, model="xlnet")
    draws(fake, [78.0], model="xlnet")
    fake.curve({2: 84.0}, model="other")
    draws(fake, [78.0], model="other")
    fake.cells[-1]["feed_forward"] = "top 3"
    names = ("model", "layers", "strategy", "difference")
    assert {tuple(line[name] for name in names) for line in lines(table(fake))} == {
        ("bert", "10 of 12", "–", ""),
        ("xlnet", "10 of 12", "contribution t=0.9", "+7.00"),
        ("other", "10 of 12", "–", ""),
    }


def test_without_a_draw_it_says_what_to_add(fake: FakeSweep) -> None:
    fake.curve({2: 84.0})
    for terminal in (True, False):
        text = render(table(fake), terminal=terminal, width=200)
        assert "(no rows)" in text
        assert "needs `{name: random, k: [2, 4], draws: 0-4}` in the strategies" in text
