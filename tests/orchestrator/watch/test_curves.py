"""Scores against K: as they come in, and as text."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from lp_sweep.orchestrator.watch.picture import Curve, Curves, Point
from lp_sweep.orchestrator.watch.screen import curve_lines, with_scores


def cell(trial: str | None, k: int = 0, **changes: Any) -> dict[str, Any]:
    row = {"model": "m", "task": "rte", "strategy": "top", "procedure": "direct"}
    row |= {"feed_forward": "none", "depth": 6, "kept_layers": [1] * (6 - k), "search": None}
    return row | {"trial_id": trial} | changes


def points(curves: Curves, line: int = 0) -> dict[int, tuple[int, int, float | None]]:
    return {p.k: (p.n, p.asked, p.mean) for p in curves.curves()[line].points}


def test_mean_and_spread_of_the_seeds_that_are_done() -> None:
    curves = Curves([cell(f"t{seed}") for seed in range(5)])
    for seed, score in enumerate([61.0, 64.5, 60.25]):
        curves.add(f"t{seed}", score)
    curves.add("t0", 61.0)  # told twice
    curves.add("t3", None)
    curves.add("t4", float("nan"))
    curves.add("of another sweep", 1.0)
    [point] = curves.curves()[0].points
    assert (point.n, point.asked) == (3, 5)
    assert point.mean == pytest.approx(statistics.fmean([61.0, 64.5, 60.25]))
    assert point.sd == pytest.approx(statistics.stdev([61.0, 64.5, 60.25]))


def test_a_trial_counts_in_each_curve_that_lists_it_and_once_in_each() -> None:
    both = [cell("t", 1), cell("t", 1, strategy="even-alternate"), cell("t", 1)]
    curves = Curves(both)
    curves.add("t", 70.0)
    assert [(c.strategy, c.points[0].n) for c in curves.curves()] == [
        ("top", 1),
        ("even-alternate", 1),
    ]


def test_k_of_a_threshold_is_what_it_came_to_and_deferred_cells_are_left_out() -> None:
    rows = [cell("t", 2, strategy="contribution"), cell(None, strategy="contribution")]
    assert points(Curves([*rows[1:], rows[0] | {"k": None}])) == {2: (0, 1, None)}


def test_cells_of_a_search_that_nobody_is_asked_for_make_no_point() -> None:
    rows = [cell("a"), cell("b", 2, search="waiting"), cell("c", 4, search="asked")]
    curves = Curves(rows)
    assert points(curves) == {0: (0, 1, None), 4: (0, 1, None)}
    curves.add("b", 80.0)  # another sweep has run it
    assert points(curves)[2] == (1, 1, 80.0)


def test_what_is_not_usual_makes_a_curve_of_its_own() -> None:
    rows = [cell("a"), cell("b", procedure="iterative"), cell("c", feed_forward="top 3")]
    rows.append(cell("d", procedure=None, feed_forward=None))  # of an older file
    names = [curve.strategy for curve in Curves(rows).curves()]
    assert names == ["top", "top, iterative", "top, feed-forward top 3"]


def curve(*means: float | None, strategy: str = "top", task: str = "rte") -> Curve:
    made = [
        Point(k=k, n=2 if mean is not None else 0, asked=2, mean=mean, sd=mean and 0.5)
        for k, mean in enumerate(means)
    ]
    return Curve(model="m", task=task, strategy=strategy, points=tuple(made))


def text(*curves: Curve, width: int, ascii_only: bool = False) -> list[str]:
    lines = curve_lines(with_scores(curves), width=width, most=99, ascii_only=ascii_only)
    return [line.plain.rstrip() for line in lines]


def test_with_room_there_are_numbers_with_their_spread() -> None:
    assert text(curve(90.0, 80.0, None), width=60) == [
        "score at K       0            1            2",
        "rte top     █ 90.0±0.5   ▁ 80.0±0.5        .",
    ]


def test_with_less_room_means_and_then_blocks_alone() -> None:
    given = curve(90.0, 87.0, 80.0)
    assert text(given, width=35)[1] == "rte top     █ 90.0 ▆ 87.0 ▁ 80.0"
    assert text(given, width=30) == [
        "score at K  0 to 2, a block each",
        "rte top     █▆▁ 90.0 to 80.0",
    ]
    assert text(given, width=30, ascii_only=True)[1] == "rte top     750 90.0 to 80.0"


@pytest.mark.parametrize("ks", [1, 25])
def test_a_long_name_is_one_line(ks: int) -> None:
    for width in (20, 80, 200):
        lines = text(curve(*[50.0] * ks, task="a-task-with-a-long-name" * 4), width=width)
        assert lines[1].startswith("a-t")
        assert len(lines) == 2
