"""An exported folder appears whole or not at all, and overwrites nothing but an earlier export."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.export.folder import ABOUT, staged
from lp_sweep.storage.errors import LpSweepError, SpecError

# a process that has made a folder in the place of another, and is killed at a step of its end
_DYING = """
import os, pathlib, shutil, sys
from lp_sweep.orchestrator.export.folder import staged

real, calls = os.rename, []

def die(*_, **__):
    os.kill(os.getpid(), 9)

def once(*names):
    calls.append(names)
    return real(*names) if len(calls) == 1 else die()

with staged(pathlib.Path("made"), force=True) as coming:
    (coming / "lp_sweep.json").write_text("after")
    {step}
"""


def make(out: Path, content: str = "{}", *, force: bool = False) -> None:
    with staged(out, force=force) as coming:
        (coming / ABOUT).write_text(content)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_export_overwrites_only_an_export(tmp_path: Path) -> None:
    out, home = tmp_path / "out", tmp_path / "home"
    out.mkdir()
    make(out)  # an empty folder is free
    with pytest.raises(SpecError, match=r"exists\. Name another with --out, or overwrite"):
        make(out)
    (out / "old.txt").write_text("of before")
    make(out, force=True)
    assert names(out) == {ABOUT}
    home.mkdir()
    (home / "letter.txt").write_text("mine")
    with pytest.raises(SpecError, match="not an export"):
        make(home, force=True)
    assert (home / "letter.txt").read_text() == "mine"
    assert names(tmp_path) == {"out", "home"}


@pytest.mark.parametrize("mine", ["out", "out/thesis.tex", f"out/{ABOUT}"])
def test_what_came_in_the_way_meanwhile_stays(tmp_path: Path, mine: str) -> None:
    """Training again takes hours, in which somebody may have made something of that name."""

    def publish() -> None:
        with staged(tmp_path / "out", force=False):
            (tmp_path / mine).parent.mkdir(exist_ok=True)
            (tmp_path / mine).write_text("mine")

    with pytest.raises(SpecError, match="exists"):
        publish()
    assert (tmp_path / mine).read_text() == "mine"
    assert names(tmp_path) == {"out"}


def killed(folder: Path, step: str) -> None:
    program = [sys.executable, "-c", _DYING.format(step=step)]
    assert subprocess.run(program, cwd=folder).returncode == -9


def test_what_a_killed_export_left_goes_with_the_next_and_what_is_being_made_stays(
    tmp_path: Path,
) -> None:
    killed(tmp_path, "die()")
    with staged(tmp_path / "made", force=True) as busy:
        with pytest.raises(SpecError, match="another export writes"):
            make(tmp_path / "made", force=True)
        assert not [*busy.iterdir()], "what the killed one had made is gone"
        make(tmp_path / "other")
        (busy / ABOUT).write_text("{}")
    assert names(tmp_path) == {"made", "other"}


@pytest.mark.parametrize(
    ("step", "there", "stays"),
    [
        ("os.rename = once", set(), "before"),
        ("shutil.rmtree = die", {"made"}, "after"),
    ],
    ids=["between two names", "before the old one is deleted"],
)
def test_what_was_there_is_there_after_a_kill_at_any_step(
    tmp_path: Path, step: str, there: set[str], stays: str
) -> None:
    """The one or the other, and no third folder once the next export is over."""
    make(tmp_path / "made", "before")
    killed(tmp_path, step)
    assert {name for name in names(tmp_path) if name[0] != "."} == there
    with pytest.raises(SpecError, match="overwrite it with --force"):
        make(tmp_path / "made")
    assert (tmp_path / "made" / ABOUT).read_text() == stays
    assert names(tmp_path) == {"made"}


@pytest.mark.parametrize(("ended", "at"), [(OSError, 1), (KeyboardInterrupt, 2)])
def test_what_was_there_is_there_when_the_last_step_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: type[BaseException], at: int
) -> None:
    made, real, calls = tmp_path / "made", os.rename, []
    make(made, "before")

    def rename(*names: Any) -> None:
        calls.append(names)
        if len(calls) == at:
            raise ended
        real(*names)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises((KeyboardInterrupt, LpSweepError)):
        make(made, "after", force=True)
    assert (made / ABOUT).read_text() == "before"
    assert names(tmp_path) == {"made"}
