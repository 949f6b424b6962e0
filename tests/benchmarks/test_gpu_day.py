"""The first half hour on a GPU, rehearsed: a step that fails is a line, and the tables are those of
the lines."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import BertConfig

from benchmarks import gpu_day, gpu_report


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    for name in ("tokens", "configs", "wheels"):
        (folder / name).mkdir(parents=True)
    draw = np.random.default_rng(0)
    lengths = draw.integers(3, 30, 300)
    np.savez(
        folder / "tokens" / "sst2.npz",
        tokens=draw.integers(1, 40, lengths.sum()).astype(np.uint16),
        types=np.zeros(lengths.sum(), np.uint8),
        offsets=np.cumsum([0, *lengths]),
        labels=draw.integers(0, 2, 300).astype(np.int8),
    )
    text = json.dumps(BertConfig(vocab_size=40).to_diff_dict() | {"model_type": "bert"})
    (folder / "configs" / "bert-base.json").write_text(text)
    return folder


def line_of(bundle: Path, tmp_path: Path, step: gpu_day.Step) -> dict[str, Any]:
    environment = gpu_day.packages(bundle, tmp_path / "packages")
    return gpu_day.run(step, Namespace(device="cpu", bundle=bundle), environment)


@pytest.mark.slow
def test_a_step_that_fails_or_hangs_is_a_line(bundle: Path, tmp_path: Path) -> None:
    line = line_of(bundle, tmp_path, gpu_day.Step(1, 60, "speed", ("no such task",)))
    assert line["status"] == "failed"
    assert "no such task" in line["error"]
    line = line_of(bundle, tmp_path / "again", gpu_day.Step(1, 0, "machine"))
    assert (line["step"], line["status"]) == ("machine", "timeout")


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["fast", "graphs"])
def test_a_rehearsed_step(compute: str, bundle: Path, tmp_path: Path) -> None:
    line = line_of(bundle, tmp_path, gpu_day.Step(1, 120, "smoke", (compute,)))
    assert line["status"] == "done", line["error"]
    assert line["found"]["waits"] == 0


@pytest.mark.slow
def test_a_rehearsed_race(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate: pip install accelerate")
    line = line_of(bundle, tmp_path, gpu_day.Step(1, 120, "speed", ("sst2",)))
    assert line["status"] == "done", line["error"]
    assert [*line["found"]["sides"]] == ["trainer", "fast", "graphs"]


def lines() -> list[dict[str, Any]]:
    """A machine, a race on it, and a wish that it does not fulfil."""
    sides = {
        name: [{"ms_a_step": ms, "wall_seconds": seconds, "steps": 60}]
        for name, ms, seconds in (("trainer", 20, 12.0), ("fast", 15, 9.0), ("graphs", 4, 2.0))
    }
    versions = {"torch": "2.11.0"}
    machine = {"device": "H100", "tflops": 800.0, "copy_gb_per_second": 3e3, "versions": versions}
    found = {
        ("machine",): machine,
        ("speed", "sst2"): {"sides": sides, "tokens_a_row": 13.0},
        ("determinism", "graphs"): {"equal": False},
    }
    common = {"stage": 1, "status": "done", "at": "2026-11-24T10:00:00Z", "device": "cuda"}
    return [
        {**common, "step": step, "arguments": arguments, "found": of_it}
        for (step, *arguments), of_it in found.items()
    ]


def written(folder: Path, rows: list[dict[str, Any]], end: str = "") -> Path:
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    return path


def test_the_tables_are_those_of_the_lines(tmp_path: Path) -> None:
    failed = {**lines()[1], "arguments": ["rte"], "status": "failed", "error": "broken"}
    repeated = {**lines()[1], "status": "timeout"}
    path = written(tmp_path, [failed, repeated, *lines()], end='{"step": "cut o')
    found, broken = gpu_report.read(path)
    text = gpu_report.text_of(found, broken)
    assert "| SST-2 | bert-base | 20.0 | 15.0 | 4.0 | 6.0x |" in text
    assert "H100: 800 TFLOP/s" in text
    assert "**no**" in text
    assert [line["arguments"] for line in broken] == [["rte"]]
    gpu_report.roofline(found, tmp_path / "roofline.svg")
    assert "<svg" in (tmp_path / "roofline.svg").read_text()


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
