"""`lp-sweep status --watch` as a process: piped, on a terminal, and how it ends."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.everyday import few
from tests.support.fake_records import FakeSweep
from tests.support.liveprocess import Terminal, piped
from tests.support.program import command

CURSOR_SHOWN, CLEARED = "\x1b[?25h", "\x1b[2J"


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0, 6: 88.0})
    fake.cell(k=8, state="failed")
    fake.cell(k=9)
    fake.publish()
    return fake


def another(fake: FakeSweep) -> None:
    fake.cell(k=4, score=89.0)
    fake.publish()


def words(fake: FakeSweep, *more: str) -> list[str]:
    return ["status", "--watch", "--every", "0.1s", "--store", fake.store.location, *more]


def test_piped_it_is_a_line_for_each_change_until_ctrl_c(
    fake: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # of a build: its logs are no terminals
    with piped(*command(*words(fake))) as process:
        first = process.stdout.readline()
        another(fake)
        second = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, stderr = process.communicate(timeout=20)
    assert "UTC  demo: 2 of 4 trials done, 1 failed (out_of_memory 1), no run is at work" in first
    assert "demo: 3 of 5 trials done" in second
    assert (rest, stderr, process.returncode) == ("", "", 0)


@pytest.mark.slow
def test_it_may_be_started_before_the_run_that_makes_the_store(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    watch = ("status", "--watch", "--every", "0.1s", "--store", place)
    with piped(*command(*watch)) as process:
        waiting = process.stderr.readline()
        fake = FakeSweep(tmp_path / "store")
        fake.curve({0: 90.0})
        fake.publish()
        lines = iter(process.stdout.readline, "")
        seen = next(line for line in lines if "demo: 1 of 1 trials done" in line)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert f"no store at {place}" in waiting
    assert seen
    assert process.returncode == 0


def test_json_is_an_object_for_each_change_until_nobody_reads(fake: FakeSweep) -> None:
    with piped(*command(*words(fake, "--json"))) as process:
        first = json.loads(process.stdout.readline())
        another(fake)
        second = json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.wait(20) == 0
    assert (first["schema"], first["sweep"], first["done"], second["done"]) == (1, "demo", 2, 3)
    assert first["counts"]["cells"] == 4


def test_a_store_that_goes_away_is_said_so_and_followed_again(fake: FakeSweep) -> None:
    place = Path(fake.store.location)
    with piped(*command(*words(fake))) as process:
        process.stdout.readline()
        place.rename(place.with_name("away"))
        warning = process.stderr.readline()
        place.with_name("away").rename(place)
        another(fake)
        assert "3 of 5" in process.stdout.readline()
        end = process.stderr.readline()
    assert warning.startswith("warning: the store can't be read, and is tried again: ")
    assert end == "the store can be read again\n"


@pytest.fixture
def terminal(fake: FakeSweep, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    settings = getattr(request, "param", {})
    made = Terminal(*words(fake), size=(100, 30), **settings)
    yield made
    made.close()


def test_a_terminal_is_followed_resized_and_left_as_it_was(
    fake: FakeSweep, terminal: Terminal
) -> None:
    terminal.wait_for("SST-2 top")
    assert "2/4" not in terminal.text  # the failed one has ended, too
    assert "3/4  75%" in terminal.text
    another(fake)
    terminal.wait_for("4/5  80%")
    terminal.resize(60, 15)
    seen = len(terminal.text)
    terminal.wait_for(CLEARED, after=seen)
    terminal.wait_for("SST-2 top", after=terminal.text.index(CLEARED, seen))
    drawn = terminal.text[terminal.text.index(CLEARED, seen) :]
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn))
    assert max(map(len, lines)) <= 60
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == 0
    assert CURSOR_SHOWN in terminal.text
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize(
    ("terminal", "colour", "moves"),
    few(
        [
            pytest.param({"TERM": "dumb"}, False, False, id="dumb"),
            pytest.param({"NO_COLOR": "1"}, False, True, id="NO_COLOR"),
            pytest.param({"TERM": "screen"}, True, True, id="screen"),
        ],
        1,
    ),
    indirect=["terminal"],
)
def test_terminals_of_other_kinds(terminal: Terminal, colour: bool, moves: bool) -> None:
    terminal.wait_for("no run is at work")
    terminal.process.send_signal(signal.SIGTERM)
    terminal.ended()
    assert bool(re.search(r"\x1b\[(?:[0-9]+;)*3[0-9](?:;[0-9]+)*m", terminal.text)) is colour
    assert ("\x1b[?25l" in terminal.text) is moves
    assert (CURSOR_SHOWN in terminal.text) is moves, "also when it is terminated"
