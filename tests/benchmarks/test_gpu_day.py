"""The first half hour on a GPU: a process that outlives its step is ended, and time
is kept."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_day


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    for name in ("tokens", "wheels"):
        (folder / name).mkdir(parents=True)
    return folder


def line_of(bundle: Path, tmp_path: Path, step: gpu_day.Step) -> dict[str, Any]:
    environment = gpu_day.packages(bundle, tmp_path / "packages")
    options = Namespace(device="cpu", bundle=bundle, out=tmp_path)
    return gpu_day.run(step, options, environment, step.seconds)


def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A program in place of each step."""
    script = tmp_path / "step.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("after", "status"),
    [("wait", "timeout"), ("exit 0", "done"), ("exit 1", "failed")],
    ids=["a hanging step", "a step that leaves it behind", "a failing step"],
)
def test_no_process_outlives_its_step(
    after: str, status: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "pid"
    part = """echo '{"part": 1}'"""
    shell(tmp_path, monkeypatch, f"sleep 60 &\necho $! > {started}\n{part}\n{after}")
    begun = time.monotonic()
    line = line_of(bundle, tmp_path, gpu_day.Step(1, 2, "machine"))
    assert time.monotonic() - begun < 30, "a pipe that the child holds is not waited for"
    assert (line["status"], line["found"]) == (status, {"part": 1})
    deadline = time.monotonic() + 10
    while alive(int(started.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(started.read_text()))


class Day:
    """gpu_day.py with three steps that take 50 seconds of a clock without waiting."""

    def __init__(self, bundle: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bundle, self.out, self.patch = bundle, out, monkeypatch
        self.now, self.status, self.ran = 0.0, {"b": "failed"}, [""]
        steps = tuple(gpu_day.Step(1, limit, name) for limit, name in ((60, "a"), (90, "b")))
        monkeypatch.setattr(gpu_day, "STEPS", (*steps, gpu_day.Step(2, 20, "c", ("d",))))
        monkeypatch.setattr(gpu_day, "run", self.run)
        monkeypatch.setattr(gpu_day.time, "monotonic", lambda: self.now)

    def run(self, step: gpu_day.Step, *_: Any) -> dict[str, Any]:
        self.ran.append(step.name)
        self.now += 50
        status = self.status.get(step.name, "done")
        found = {"step": step.name, "arguments": step.arguments, "stage": step.stage}
        return found | {"status": status, "seconds": 50}

    def __call__(self, *options: str) -> list[str]:
        self.ran = []
        places = ["--out", str(self.out), "--bundle", str(self.bundle)]
        self.patch.setattr(sys, "argv", ["gpu_day.py", *places, *options])
        gpu_day.main()
        return self.ran


def test_a_step_starts_only_within_the_budget(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day(bundle, tmp_path / "out", monkeypatch)
    assert day("--budget", "70") == ["a", "c"], "b is over the budget, and c is not"
    assert day("--budget", "139") == ["b"], "the rest"
    assert Day(bundle, tmp_path / "other", monkeypatch)("--budget", "59") == ["c"]


def test_the_same_command_again_skips_what_is_done(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = Day(bundle, tmp_path / "out", monkeypatch)
    assert day() == ["a", "b", "c"]
    assert day() == ["b"], "it failed"
    day.status = {}
    assert (day("--stage", "2"), day("--stage", "1"), day()) == ([], ["b"], [])
    assert day("--only", "a", "c") == ["a", "c"], "those that are named are repeated"
    assert len((tmp_path / "out" / "results.jsonl").read_text().splitlines()) == 7
    assert day("--device", "cpu") == ["a", "b", "c"], "a rehearsal is no measurement"
