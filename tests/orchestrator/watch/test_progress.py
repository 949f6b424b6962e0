"""The words and figures of the progress display."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from lp_sweep.orchestrator.engine.progress import (
    PlainReporter,
    Run,
)
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate.pace import Pace
from lp_sweep.orchestrator.watch.reporters import LiveReporter
from tests.support.courses import Clock, new_queue, taken


@pytest.fixture
def queue(tmp_path: Path) -> WorkQueue:
    return new_queue(tmp_path)


def test_a_note_about_a_state_goes_away_with_it(
    queue: WorkQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    live, log = LiveReporter(Console(file=screen, width=100)), PlainReporter()
    for reporter in (live, log):
        reporter.opened(queue, 1)
        reporter.note("node [bold]abc[/] is set aside")
        reporter.note("trackio is away", "trackio")
        reporter.note("rte was not learned", "rte")
    assert live.picture(queue).notes == ("trackio is away", "rte was not learned")
    for reporter in (live, log):
        reporter.note("trackio is back", "trackio", ends=True)
    assert live.picture(queue).notes == ("rte was not learned",)
    assert "note: node [bold]abc[/] is set aside" in screen.getvalue()
    live.closed()
    assert "note: rte was not learned" in screen.getvalue(), "it still holds"
    assert "note: trackio" not in screen.getvalue()
    assert "note    trackio is back" in capsys.readouterr().err


def test_plain_lines(queue: WorkQueue, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = PlainReporter()
    reporter.planned(queue.plan)
    reporter.opened(queue, 1)
    work = taken(queue)
    reporter.started(work)
    queue.ended(work.id, "missing_input")
    reporter.ended(work.id, "failed", "no such file\nand more")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0].endswith("5 to do on 1 slot")
    assert lines[1].endswith("slot 0  start   ./model, contribution profile, mood")
    assert "failed  ./model, contribution profile, mood: no such file  [4 left" in lines[2]


def test_what_is_left_is_shared_by_the_slots() -> None:
    hands = Clock()
    pace = Pace(measured=True, now=hands)
    assert pace.seconds_left([], 600.0, 100.0) is None  # no slots yet
    pace.slots = 2
    assert pace.seconds_left([], 600.0, 100.0) == 300.0
    pace.started("c")
    hands.seconds += 5
    left = pace.seconds_left([("c", 10.0)], 100.0, 20.0, scale=3.5)
    assert left == pytest.approx((10 * 3.5 - 5 + 100 * 3.5) / 2)


def test_a_run_ends_no_sooner_than_its_longest_piece() -> None:
    pace = Pace(measured=True, now=Clock())
    pace.slots = 10
    assert pace.seconds_left([], 1000.0, 500.0) == 500.0
    pace.started("a")
    assert pace.seconds_left([("a", 700.0)], 0.0, 0.0) == 700.0
    assert pace.seconds_left([], 1000.0, 50.0, alone=300.0) == 400.0  # not shared by ten slots


def test_the_clock_goes_on_where_a_second_ray_follows(
    queue: WorkQueue,
) -> None:
    run = Run()
    run.open(queue, 2)
    run.started_at -= 100
    run.open(queue, 1)
    assert run.slots == [None]
    assert run.elapsed() >= 100
