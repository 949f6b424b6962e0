"""The live view on terminals of many sizes."""

from __future__ import annotations

import datetime as dt
import io
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from lp_sweep.orchestrator.estimate.pace import Eta
from lp_sweep.orchestrator.watch.follower import Follower
from lp_sweep.orchestrator.watch.picture import (
    Curve,
    Curves,
    Picture,
    Point,
    Slot,
    Waiting,
    picture_json,
)
from lp_sweep.orchestrator.watch.screen import Screen, curve_lines, screen_lines, with_scores
from lp_sweep.storage.store import Store
from lp_sweep.storage.underway import Underway

ROOT = Path(__file__).resolve().parents[3]
SIZES = [(20, 3), (40, 10), (60, 15), (80, 24), (120, 40), (250, 70)]
HOSTILE = "\x1b[31mred\x1b[0m\n\x9b2J\u202e"


def curve(task: str, strategy: str) -> Curve:
    points = tuple(Point(k=k, n=2, asked=2, mean=90.0 - k, sd=0.4) for k in (0, 2, 4, 6, 9))
    return Curve(model="bert", task=task, strategy=strategy, points=points)


PICTURE = Picture(
    sweep="glue",
    at=dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC),
    done=24,
    failed=3,
    left=39,
    slots=(
        *(
            Slot(
                place=f"slot {i}", work=f"bert layers 1-{i + 1} of 12 rte seed 4", seconds=61.0 * i
            )
            for i in range(8)
        ),
        Slot(place="slot 8", work="", seconds=None),
    ),
    waiting=(
        Waiting(model="bert", task="rte", pieces=20),
        Waiting(model="bert", task="mrpc", pieces=11),
    ),
    failures={"out_of_memory": 2, "bug": 1},
    slot_hours=2.314,
    elapsed=3723.0,
    eta=Eta(3903.0, 3012.0, 5060.0),
    curves=tuple(curve(t, s) for t in ("rte", "mrpc", "stsb") for s in ("top", "bottom", "even")),
    counts={"cells_deferred": 4},
    notes=("another run works on this store",),
)
RECENT = [Text(f"✓ bert all 12 layers rte seed {i}  accuracy 66.10") for i in range(6)]


def shown(picture: Picture, width: int, height: int, *, ascii_only: bool = False) -> list[str]:
    lines = screen_lines(picture, RECENT, width=width, height=height, ascii_only=ascii_only)
    assert len(lines) <= height
    assert max(line.cell_len for line in lines) <= width
    return [line.plain for line in lines]


def test_the_docs_show_what_a_store_shows() -> None:
    page = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    picture = Follower(Store(ROOT / "docs" / "results" / "records")).look("minilm-glue")
    assert picture
    lines = screen_lines(picture, [], width=60, height=14, ascii_only=False)
    assert "\n".join(line.plain.rstrip() for line in lines) in page


def test_it_fits_every_size_also_in_ascii() -> None:
    for width, height in SIZES:
        lines = shown(PICTURE, width, height)
        assert lines[0].startswith("glue")
        assert "27/66  40%" in lines[0] or width < 40

    recent_is_the_callers = replace(PICTURE, notes=())
    for width, height in SIZES:
        lines = screen_lines(recent_is_the_callers, [], width=width, height=height, ascii_only=True)
        "".join(line.plain for line in lines).encode("ascii")


def test_a_large_screen_shows_all_and_a_small_one_folds_what_is_not_the_answer() -> None:
    page = "\n".join(shown(PICTURE, 120, 40))
    for told in (
        "done 24  running 8  failed 3  waiting 31  deferred 4 cells",
        "1:02:03 elapsed  ETA 1:05:03 (50:12 to 1:24:20)  2.31 slot-hours used",
        "failures: out_of_memory 2  bug 1",
        "waiting: rte 20  mrpc 11",
        "slot 7  bert layers 1-8 of 12 rte seed 4  7:07",
        "slot 8  idle",
        "stsb even    █ 90.0±0.4",
        "another run works on this store",
    ):
        assert told in page
    assert page.count("accuracy 66.10") == 6

    page = shown(PICTURE, 60, 15)
    assert "slots: 8 of 9 busy, the longest 7:07 bert layers 1-8 of 12 …" in page
    assert sum("accuracy" in line for line in page) == 1
    assert any(line.startswith("rte top") for line in page)
    assert any("more: lp-sweep table tasks" in line for line in page)
    assert "1:02:03 elapsed  ETA 1:05:03 (50:12 to 1:24:20)" in page


def test_no_name_reaches_the_screen_raw() -> None:
    hostile = replace(
        PICTURE,
        sweep=HOSTILE,
        slots=(Slot(place=HOSTILE, work=HOSTILE, seconds=1.0),) * 9,
        waiting=(Waiting(model=HOSTILE, task=HOSTILE, pieces=1),),
        failures={HOSTILE: 1},
        curves=(replace(curve(HOSTILE, HOSTILE), model=HOSTILE), curve("rte", "top")),
        notes=(HOSTILE,),
    )
    for width, height in SIZES:
        assert all(line.isprintable() for line in shown(hostile, width, height))


def test_a_store_without_a_run_says_so() -> None:
    page = "\n".join(shown(replace(PICTURE, elapsed=None, slots=(), unread=7), 80, 24))
    assert "no run is at work" in page
    over = replace(PICTURE, elapsed=None, left=0, failed=0, counts={})
    assert "complete" in "\n".join(shown(over, 80, 24))
    assert "ETA" not in page
    assert "7 records are still to be read" in page


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {}], ids=["no colour", "colour"])
def test_colour_only_says_once_more(settings: dict[str, str]) -> None:
    screen = io.StringIO()
    console = Console(
        file=screen, width=80, height=24, force_terminal=True, color_system="256",
        _environ={"TERM": "xterm-256color"} | settings,
    )  # fmt: skip
    console.print(Screen(PICTURE, RECENT))
    coloured = any(f"\x1b[{code}m" in screen.getvalue() for code in (31, 33, 36))
    assert coloured is not bool(settings)
    assert len(screen.getvalue().splitlines()) <= 23


def test_the_picture_as_json() -> None:
    told = picture_json(PICTURE)
    assert told["schema"] == 1
    assert told["at"] == "2026-01-05T12:00:00+00:00"
    assert told["eta"] == {"seconds": 3903.0, "low": 3012.0, "high": 5060.0}
    assert told["curves"][0]["points"][1] == {"k": 2, "n": 2, "asked": 2, "mean": 88.0, "sd": 0.4}
    assert told["slots"][8] == {"place": "slot 8", "work": "", "seconds": None, "underway": None}
    page = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    nested = (told, told["slots"][0], told["waiting"][0], told["eta"], told["curves"][0])
    for keys in (*nested, told["curves"][0]["points"][0]):
        assert all(f"`{key}`" in page for key in keys)


def test_how_far_a_long_trial_is() -> None:
    """Without room the loss goes before the name, and the model before the layers."""
    slot = Slot(
        place="vm",
        work="a/long-model-of-many-letters, layers 1-4 of 6, reviews, seed 42",
        seconds=36.0,
        underway=Underway(step=35, steps=1200, loss=0.689, seconds_left=25.0),
    )
    picture = replace(PICTURE, slots=(slot,))
    narrow, wide = ("\n".join(shown(picture, width, 24)) for width in (80, 140))
    assert "layers 1-4 of 6, reviews, seed 42  0:36  step 35 of 1,200, 0:25 left" in narrow
    assert "loss" not in narrow
    assert "vm  a/long-model" in wide
    assert "step 35 of 1,200, loss 0.689, 0:25 left" in wide
    assert slot.underway
    told = picture_json(picture)
    assert told["slots"][0]["underway"] == slot.underway._asdict()


def test_the_end_of_a_search_is_the_latest_one() -> None:
    assert Eta(61.0, high=61.0).text() == "at most 1:01"


# -- scores against K: as they come in, and as text


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


def test_which_cells_make_a_point_and_which_a_curve_of_their_own() -> None:
    rows = [cell("t", 2, strategy="contribution"), cell(None, strategy="contribution")]
    assert points(Curves([*rows[1:], rows[0] | {"k": None}])) == {2: (0, 1, None)}

    # cells of a search that nobody is asked for make none
    rows = [cell("a"), cell("b", 2, search="waiting"), cell("c", 4, search="asked")]
    curves = Curves(rows)
    assert points(curves) == {0: (0, 1, None), 4: (0, 1, None)}
    curves.add("b", 80.0)  # another sweep has run it
    assert points(curves)[2] == (1, 1, 80.0)

    rows = [cell("a"), cell("b", procedure="iterative"), cell("c", feed_forward="top 3")]
    rows.append(cell("d", procedure=None, feed_forward=None))  # of an older file
    names = [curve.strategy for curve in Curves(rows).curves()]
    assert names == ["top", "top, iterative", "top, feed-forward top 3"]


def line_of(*means: float | None, strategy: str = "top", task: str = "rte") -> Curve:
    made = [
        Point(k=k, n=2 if mean is not None else 0, asked=2, mean=mean, sd=mean and 0.5)
        for k, mean in enumerate(means)
    ]
    return Curve(model="m", task=task, strategy=strategy, points=tuple(made))


def text(*curves: Curve, width: int, ascii_only: bool = False) -> list[str]:
    lines = curve_lines(with_scores(curves), width=width, most=99, ascii_only=ascii_only)
    return [line.plain.rstrip() for line in lines]


def test_numbers_with_their_spread_or_means_or_blocks_as_there_is_room() -> None:
    assert text(line_of(90.0, 80.0, None), width=60) == [
        "score at K       0            1            2",
        "rte top     █ 90.0±0.5   ▁ 80.0±0.5        .",
    ]

    given = line_of(90.0, 87.0, 80.0)
    assert text(given, width=35)[1] == "rte top     █ 90.0 ▆ 87.0 ▁ 80.0"
    assert text(given, width=30) == [
        "score at K  0 to 2, a block each",
        "rte top     █▆▁ 90.0 to 80.0",
    ]
    assert text(given, width=30, ascii_only=True)[1] == "rte top     750 90.0 to 80.0"


@pytest.mark.parametrize("ks", [1, 25])
def test_a_long_name_is_one_line(ks: int) -> None:
    for width in (20, 80, 200):
        lines = text(line_of(*[50.0] * ks, task="a-task-with-a-long-name" * 4), width=width)
        assert lines[1].startswith("a-t")
        assert len(lines) == 2
