"""MPS on the nodes, with a program of its name in place of NVIDIA's."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from lp_sweep.orchestrator.engine import opening
from lp_sweep.orchestrator.engine.opening import FOUND, STARTED, share_gpus, shared_note

CASES = {
    "exit 0": STARTED,
    "echo 'An instance of this daemon is already running'; exit 1": FOUND,
    "echo 'Cannot find MPS control daemon' >&2; exit 1": "Cannot find MPS control daemon",
    "exit 3": "nvidia-cuda-mps-control ended with 3",
}


def test_mps_is_started_or_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert share_gpus()[1] == "nvidia-cuda-mps-control is not installed"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(opening, "_TRY", "")
    asked = tmp_path / "asked"

    def answer(text: str) -> tuple[str, str]:
        """With a program that does this when it is asked to start."""
        program = tmp_path / "nvidia-cuda-mps-control"
        program.write_text(f'#!/bin/sh\n[ "$1" != -d ] && exec cat >> {asked}\n{text}\n')
        program.chmod(0o755)
        return share_gpus()

    for text, expected in CASES.items():
        assert answer(text) == (socket.gethostname(), expected)
    assert not asked.exists()
    monkeypatch.setattr(opening, "_TRY", "raise SystemExit(1)")  # no process can use the GPU
    assert "stopped again" in answer("exit 0")[1]
    assert asked.read_text() == "quit\n"


def test_a_daemon_that_keeps_its_output_open_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_SECONDS", 2)
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho here\nsleep 9 &\necho $! > {tmp_path / 'pid'}\n")
    program.chmod(0o755)
    try:
        done = opening._run([str(program)])
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (done.returncode, done.stdout) == (0, "here\n")


def test_a_note_names_the_nodes_and_the_reason() -> None:
    told = [("a", STARTED), ("b", STARTED), ("c", FOUND), ("d", "it is not installed")]
    note = shared_note(told)
    assert "running on c" in note
    assert "started on 2 nodes" in note
    assert "echo quit" in note
    assert "not used on d: it is not installed" in note
