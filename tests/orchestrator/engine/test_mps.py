"""MPS on the nodes, with a program of its name in place of NVIDIA's."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from lp_sweep.orchestrator.engine import opening
from lp_sweep.orchestrator.engine.opening import FOUND, STARTED, share_gpus, shared_note


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program's text is the test's; what it is given goes to `asked`."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(opening, "_TRY", "")
    return tmp_path / opening._CONTROL


def program(control: Path, text: str) -> None:
    asked = control.parent / "asked"
    control.write_text(f'#!/bin/sh\nif [ "$1" != -d ]; then cat >> {asked}; exit; fi\n{text}\n')
    control.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exit 0", STARTED),
        ("echo 'An instance of this daemon is already running'; exit 1", FOUND),
        ("echo 'Cannot find MPS control daemon' >&2; exit 1", "Cannot find MPS control daemon"),
        ("exit 3", "nvidia-cuda-mps-control ended with 3"),
    ],
    ids=["starts", "runs", "refuses", "says nothing"],
)
def test_mps_is_started_or_found(control: Path, text: str, expected: str) -> None:
    program(control, text)
    assert share_gpus() == (socket.gethostname(), expected)


def test_a_daemon_that_nobody_can_use_is_stopped(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(control, "exit 0")
    monkeypatch.setattr(opening, "_TRY", "raise SystemExit(1)")
    assert "stopped again" in share_gpus()[1]
    assert (control.parent / "asked").read_text() == "quit\n"


def test_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert share_gpus()[1] == "nvidia-cuda-mps-control is not installed"


def test_a_note_names_the_nodes_and_the_reason() -> None:
    told = [("a", STARTED), ("b", STARTED), ("c", FOUND), ("d", "it is not installed")]
    note = shared_note(told)
    assert "running on c" in note
    assert "started on 2 nodes" in note
    assert "echo quit" in note
    assert "not used on d: it is not installed" in note
