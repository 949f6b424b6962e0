"""The first half hour on a GPU: a process that outlives its step is ended, time is kept, and the
tables are those of what was measured."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_day, gpu_report


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


def race(trainer: float, graphs: float) -> dict[str, Any]:
    took = {"trainer": (20.0, trainer, []), "fast": (15.0, 4.5, [])}
    took |= {"graphs": (4.0, graphs, [0.5, 0.3])}
    sides = {
        name: [{"ms_a_step": ms, "wall_seconds": s, "steps": 300, "capture_seconds": seconds}]
        for name, (ms, s, seconds) in took.items()
    }
    return {"sides": sides, "tokens_a_row": 13.0}


def lines() -> list[dict[str, Any]]:
    versions = {"torch": "2.11.0"}
    machine = {"device": "H100", "tflops": 800.0, "copy_gb_per_second": 3e3, "versions": versions}
    timed = {"ms_a_step": 8.0, "wall_seconds": 2.0, "steps": 100, "capture_seconds": []}
    trials = [
        {"task": "rte", "k": k, "seed": seed, "last": score, "compute_used": "graphs"}
        for k, seed, score in ((0, 1, 0.6), (0, 2, 0.7), (3, 1, None), (3, 2, 0.5))
    ]
    found: list[tuple[str, list[str], dict[str, Any]]] = [
        ("machine", [], machine),
        ("whole", ["bert-base", "sst2", "rte"], {"sst2": race(6.0, 1.0), "rte": race(8.0, 2.0)}),
        ("whole", ["minilm", "sst2"], {"sst2": race(3.0, 3.0)}),
        ("compiled", ["sst2"], {f"sst2 {side}": {"sides": {side: [timed]}} for side in SIDES}),
        ("side_by_side", [], {"4 MPS": {"steps_a_second": 400.0}}),
        ("sweep", ["k=0"], {"seconds": 9.0, "trials": []}),
        ("sweep", [], {"seconds": 99.0, "trials": trials}),
        ("smoke", [], {"graphs": {"waits_a_step": 0.05}}),
        ("determinism", [], {"graphs": {"equal": False}}),
        ("profile", [], {"graphs": {"busy_share": 0.91, "calls_a_step": 700.0}}),
        ("precisions", [], {"fp32": {"losses": [0.5, 0.25]}, "bf16": {"losses": [0.5, 0.26]}}),
        ("depth_speed", [], {"speedups": {"inference": 1.98}}),
        ("out_of_memory", [], {"tried": [[32, "CUDA out of memory"], [16, "done"]]}),
    ]
    common = {"stage": 1, "status": "done", "at": "2026-11-24T10:00:00Z", "device": "cuda"}
    return [
        common | {"step": step, "arguments": arguments, "found": one}
        for step, arguments, one in found
    ]


SIDES = ("graphs", "dynamic", "compiled")


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


MEASURED = [
    "| SST-2 | bert-base | 20.0 | 15.0 | 4.0 | 6.0 | 4.5 | 1.0 | 6.0x | 2 of 0.40 s |",
    "Whole trials of BERT-base on 2 tasks: median 5.0x, least 4.0x.",
    "| SST-2 | 8.0 | 8.0 | 8.0 | 1.0x |",
    "| 4 MPS | 400 | 8.0x |",  # one Trainer: 300 steps in 6 s
    "4 trials in 99 s (`graphs`)",
    "| RTE | 65.0 (2) | 50.0 (1) |",
    "| inference | 1.98x |",
    "| `graphs`: waits of the host a step | 0.05 |",
    "| `graphs`: the same weights twice | **no** |",
    "| `graphs`: the GPU works | 91% of the time, 700 calls a step |",
    "fp32 0.2500, bf16 0.2600",
    "a batch of 32 does not fit, a batch of 16 fits",
    "H100: 800 TFLOP/s",
]


def test_the_tables_have_all_that_was_measured(tmp_path: Path) -> None:
    found, broken = gpu_report.read(written(tmp_path, lines()))
    text = gpu_report.text_of(found, broken)
    assert [row for row in MEASURED if row not in text] == []
    assert not broken


def test_a_rehearsal_reaches_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{gpu_report.BEGIN}old\n{gpu_report.END}after\n")
    monkeypatch.setattr(gpu_report, "DOC", page)
    monkeypatch.setattr(gpu_report, "FIGURE", tmp_path / "figure.svg")
    on_cpu = [{**line, "device": "cpu"} for line in lines()]
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(written(tmp_path, on_cpu))])
    with pytest.raises(SystemExit, match="no whole run on a GPU"):
        gpu_report.main()
    assert "old" in page.read_text()
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(written(tmp_path, lines()))])
    gpu_report.main()
    text = page.read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "6.0x" in text
    assert "old" not in text
