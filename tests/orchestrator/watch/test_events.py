"""A run as a stream of events, as plain lines, and as a display that keeps its state."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lp_sweep.orchestrator.engine.progress import Display, PlainReporter
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.watch import reporters
from lp_sweep.orchestrator.watch.reporters import EventReporter, LiveReporter, has_screen
from lp_sweep.storage.store import Store
from tests.support.courses import new_queue, queue_of, taken
from tests.support.program import Terminal, run
from tests.support.sweepfiles import make_inputs, planned
from tests.support.toyworld import save_world

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def queue(tmp_path: Path) -> WorkQueue:
    """Eight trials: two tasks, two seeds, K of 0 and 2."""
    plan = planned(make_inputs(tmp_path))
    return queue_of(plan, Store(tmp_path / "s", create=True))


class Stream:
    """An EventReporter over plain lines, and what it wrote."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.reporter = EventReporter(PlainReporter(), self.lines.append)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def test_each_event_is_one_line_that_says_what_it_is_of(
    queue: WorkQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream()
    reporter = stream.reporter
    reporter.planned(queue.plan)
    reporter.opened(queue, 2)
    first, second = taken(queue), taken(queue)
    for work in (first, second):
        reporter.started(work)
    queue.ended(first.id, None)
    scored = {"score": 66.1, "metric": "accuracy", "seconds": 12.5}
    reporter.ended(first.id, "done", "accuracy 66.10, 12 s", scored)
    queue.ended(second.id, "bug")
    reporter.ended(second.id, "failed", "bug: broke\nat line 3", {"type": "bug"})
    reporter.note("a\nnote")
    reporter.closed()
    assert all("\n" not in line for line in stream.lines)
    names = ["planned", "opened", "started", "started", "done", "failed", "note"]
    assert [event["event"] for event in stream.events] == names
    assert {event["schema"] for event in stream.events} == {1}
    made, opened, started, _, done, failed, note = stream.events
    assert made["totals"]["trials"] == 8
    assert (opened["slots"], opened["left"]) == (2, 8)
    assert started["id"] == first.id
    assert (started["task"], started["seed"]) == (first.task.name, first.trial.seed)
    assert started["kept_layers"] == list(range(1, 13))
    assert done.items() >= {"id": first.id, **scored}.items()
    assert (failed["type"], failed["message"]) == ("bug", "bug: broke\nat line 3")
    assert note["message"] == "a\nnote"
    told = capsys.readouterr()
    assert told.out == ""
    assert "accuracy 66.10, 12 s" in told.err, "people see it, too"
    page = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    for event in stream.events:
        [line] = [line for line in page.splitlines() if line.startswith(f"| `{event['event']}` |")]
        keys = event.keys() - {"schema", "event", "at"}
        assert all(f"`{key}`" in line for key in keys), event


def test_progress_is_told_now_and_then(queue: WorkQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    stream.reporter.opened(queue, 1)
    stream.reporter.tick()
    assert [event["event"] for event in stream.events] == ["opened"]
    monkeypatch.setattr(reporters, "_PROGRESS_SECONDS", 0.0)
    work = taken(queue)
    stream.reporter.started(work)
    queue.ended(work.id, None)
    stream.reporter.ended(work.id, "done", "")
    stream.reporter.tick()
    told = stream.events[-1]
    assert (told["event"], told["done"], told["failed"], told["left"]) == ("progress", 1, 0, 7)
    assert told["low_seconds"] < told["seconds_left"] < told["high_seconds"]
    assert told["slot_hours"] >= 0


# -- the screen of a terminal


def drawn(reporter: LiveReporter, width: int = 100, **more: Any) -> list[str]:
    """The lines that it draws on a terminal of this width."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=more.pop("encoding", "utf-8"))
    console = Console(file=file, width=width, height=24, force_terminal=True, **more)
    console.print(reporter._draw())
    file.seek(0)
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in file.read().splitlines()]


def live(queue: WorkQueue, **more: Any) -> LiveReporter:
    reporter = LiveReporter(Console(file=io.StringIO(), width=100, **more))
    reporter.planned(queue.plan)
    Display.opened(reporter, queue, 2)  # draws nothing
    return reporter


def test_a_screen_has_progress_latest_ends_and_slots(queue: WorkQueue) -> None:
    reporter = live(queue)
    first, second, third = taken(queue), taken(queue), taken(queue)
    for work in (first, second):
        reporter.started(work)
    queue.ended(first.id, None)
    reporter.ended(first.id, "done", "accuracy 66.10")
    queue.ended(second.id, "bug")
    reporter.ended(second.id, "failed", "bug: broke\nat line 3")
    reporter.started(third)
    lines = drawn(reporter)
    assert lines[0].endswith("2/8  25%")
    assert lines[1] == "done 1  running 1  failed 1  waiting 5"
    assert "elapsed  ETA" in lines[2]
    assert lines[3] == "failures: bug 1"
    assert lines[4] == f"✓ {describe(first)}  accuracy 66.10"
    assert lines[5] == f"✗ {describe(second)}  bug: broke"
    assert lines[6] == f"slot 0  0:00  {describe(third)}"


def test_it_fits_every_width_also_in_ascii_and_cuts_what_is_too_long(queue: WorkQueue) -> None:
    reporter = live(queue)
    work = taken(queue)
    reporter.started(work)
    reporter.note("\x1b[31mred\n\x9b2J\u202e", "a state")
    for width in (20, 60, 250):
        lines = drawn(reporter, width)
        assert len(lines) == (6 if width == 20 else 5)  # the note wraps
        assert max(map(len, lines)) <= width
        assert all(line.isprintable() for line in lines)
    for line in drawn(reporter, encoding="ascii"):
        line.encode("ascii")


@pytest.mark.parametrize(("term", "draws"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_lines(
    term: str, draws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert has_screen(Console(file=Terminal())) is draws


# -- real runs


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_tells_its_events_and_how_it_ended(tmp_path: Path) -> None:
    save_world(tmp_path)

    def told(*arguments: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
        """The events on stdout and the text on stderr."""
        done = run("run", "sweep.yaml", "--events", *arguments, cwd=tmp_path, code=code)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    events, stderr = told()
    beside = ("note", "phase", "progress")
    names = [event["event"] for event in events if event["event"] not in beside]
    assert names[:2] == ["planned", "opened"]
    assert sorted(names[2:-1]) == ["done", "done", "started", "started"]
    last = events[-1]
    assert (last["event"], last["exit_code"], last["done"]) == ("ended", 0, 2)
    assert last["totals"]["trials_done"] == 2
    assert all(0 <= e["score"] <= 100 for e in events if e["event"] == "done")
    assert "2 done in this run" in stderr
    events, _ = told()  # nothing is left to do
    assert [(e["event"], e["exit_code"]) for e in events] == [("ended", 0)]
    events, stderr = told("k=0,1", "--address", "127.0.0.1:1", code=4)
    assert events[-1]["exit_code"] == 4
    assert "no Ray at 127.0.0.1:1" in events[-1]["error"]


# -- words of the display, and the plain lines


@pytest.fixture
def staged(tmp_path: Path) -> WorkQueue:
    """Four trials and a profile."""
    return new_queue(tmp_path)


def test_a_note_about_a_state_goes_away_with_it(
    staged: WorkQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = io.StringIO()
    live, log = LiveReporter(Console(file=screen, width=100)), PlainReporter()
    for reporter in (live, log):
        reporter.opened(staged, 1)
        reporter.note("node [bold]abc[/] is set aside")
        reporter.note("trackio is away", "trackio")
        reporter.note("rte was not learned", "rte")
    assert {"trackio is away", "rte was not learned"} <= {*drawn(live)}
    for reporter in (live, log):
        reporter.note("trackio is back", "trackio", ends=True)
    assert "rte was not learned" in drawn(live)
    assert "trackio is away" not in drawn(live)
    assert "note: node [bold]abc[/] is set aside" in screen.getvalue()
    live.closed()
    assert "note: rte was not learned" in screen.getvalue(), "it still holds"
    assert "note: trackio" not in screen.getvalue()
    assert "note    trackio is back" in capsys.readouterr().err


def test_plain_lines(staged: WorkQueue, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = PlainReporter()
    reporter.planned(staged.plan)
    reporter.opened(staged, 1)
    work = taken(staged)
    reporter.started(work)
    staged.ended(work.id, "missing_input")
    reporter.ended(work.id, "failed", "no such file\nand more")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0].endswith("5 to do (trainings and measurements) and at most 2 more on 1 slot")
    assert lines[1].endswith("slot 0  start   model, contribution measurement, mood")
    assert "failed  model, contribution measurement, mood: no such file  [4 left" in lines[2]
