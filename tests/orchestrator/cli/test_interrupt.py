"""Ctrl-C before the first trial prints the command that goes on; later: test_driver_signals.py."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.inputs import checks
from lp_sweep.orchestrator.service import run as running
from tests.support.program import sweep
from tests.support.toyworld import save_world


def ctrl_c(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Any:
    """A shell's background job inherits an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("room", "step"),
    [
        pytest.param(running, "planned", id="while inputs are looked up"),
        pytest.param(checks, "check", id="while rows are read"),
    ],
)
def test_nothing_was_trained_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Any, step: str
) -> None:
    save_world(tmp_path)
    monkeypatch.setattr(room, step, ctrl_c)
    told = sweep("run", "sweep.yaml", "seed=4", "--store", "a b", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (130, "")
    assert told.stderr == (
        "stopped by Ctrl-C: nothing was trained yet. "
        "Go on: lp-sweep run sweep.yaml seed=4 --store 'a b'\n"
    )


def test_of_a_run_that_has_begun_that_is_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_world(tmp_path)
    monkeypatch.setattr(running, "run_sweep", ctrl_c)
    told = sweep("run", "sweep.yaml", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (130, "")
