"""`lp-sweep status --watch` as a process: piped, on a terminal, and how it ends."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_records import FakeSweep
from tests.support.liveprocess import Terminal, piped
from tests.support.program import command

CURSOR_SHOWN = "\x1b[?25h"


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0, 6: 88.0})
    fake.cell(k=8, state="failed")
    fake.cell(k=9)
    fake.publish()
    return fake


def another(fake: FakeSweep, k: int = 4) -> None:
    fake.cell(k=k, score=89.0)
    fake.publish()


def words(fake: FakeSweep, *more: str) -> list[str]:
    return ["status", "--watch", "--every", "0.1s", "--store", fake.store.location, *more]


def rows_of(output: str) -> list[list[str]]:
    """The line of the sweep in each table."""
    return [line.split() for line in output.splitlines() if line.startswith("demo ")]


@pytest.mark.slow  # every day: `status --json`, and in test_cli.py a reader that leaves
def test_json_is_an_object_for_each_change_until_nobody_reads(fake: FakeSweep) -> None:
    with piped(*command(*words(fake, "--json"))) as process:
        first = json.loads(process.stdout.readline())
        another(fake)
        second = json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.wait(20) == 0
    assert [(s["sweep"], s["cells"]) for s in first] == [("demo", 4)]
    assert [seen[0]["trials_done"] for seen in (first, second)] == [2, 3]


def test_piped_it_is_a_table_for_each_change_also_where_the_store_goes_away_until_ctrl_c(
    fake: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it is not there yet."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # of a build: its logs are no terminals
    place = Path(fake.store.location)
    place.rename(place.with_name("away"))
    with piped(*command(*words(fake))) as process:
        assert f"tried again: no store at {place}" in process.stderr.readline()
        place.with_name("away").rename(place)
        assert process.stderr.readline() == "the store can be read\n"
        first = [process.stdout.readline() for _ in range(4)]
        place.rename(place.with_name("away"))
        warning = process.stderr.readline()
        place.with_name("away").rename(place)
        another(fake)
        second = [process.stdout.readline() for _ in range(4)]
        end = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=20)
    assert first[0].endswith(" UTC\n")
    assert first[3].startswith("demo: failed: out_of_memory 1.")
    assert rows_of("".join(first + second)) == [
        ["demo", "4", "2", "1", "1"],
        ["demo", "5", "3", "1", "1"],
    ]
    assert warning.startswith("warning: the store can't be read, and is tried again: ")
    assert end == "the store can be read\n"
    assert (rest, process.returncode) == (("", ""), 0)


@pytest.fixture
def terminal(fake: FakeSweep) -> Iterator[Terminal]:
    made = Terminal(*words(fake), size=(100, 30))
    yield made
    made.close()


def test_a_terminal_is_followed_resized_and_left_as_it_was(
    fake: FakeSweep, terminal: Terminal
) -> None:
    terminal.wait_for("3/4  75%")  # the failed one has ended, too
    another(fake)
    terminal.wait_for("4/5  80%")
    terminal.resize(60, 15)
    seen = len(terminal.text)
    another(fake, k=2)
    terminal.wait_for("5/6  83%", after=seen)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text[terminal.text.index("5/6") :])
    assert max(map(len, re.split(r"[\r\n]+", plain))) <= 60
    terminal.process.send_signal(signal.SIGTERM)  # SIGINT: above
    terminal.ended()
    assert CURSOR_SHOWN in terminal.text
    assert "Traceback" not in terminal.text
