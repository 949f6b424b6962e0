"""The figures in docs/performance.md are those that the benchmarks wrote."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_table_is_made_of_the_figures(report: ModuleType) -> None:
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert report.filled(text) == text
    assert all(f"<!-- {name} -->" in text for name in report.TABLES)


def test_figures_that_are_missing_are_told(report: ModuleType, tmp_path: Path) -> None:
    text = "<!-- driver -->\nold\n<!-- end -->\n"
    assert "Not measured yet." in report.filled(text, tmp_path)


def test_a_changed_figure_changes_its_table(report: ModuleType, tmp_path: Path) -> None:
    figures = {"driver": [{"trials": 1000, "cpu_ms_a_trial": 12.34, "memory_mb": 200.4}]}
    (tmp_path / "driver-overhead.json").write_text(json.dumps(figures), encoding="utf-8")
    told = report.filled("<!-- driver -->\nold\n<!-- end -->\n", tmp_path)
    assert "| 1,000 | 12.3 ms | 200 MB |" in told


def test_the_seven_tasks_are_measured() -> None:
    path = ROOT / "benchmarks" / "results" / "trial-cpu.json"
    found = json.loads(path.read_text(encoding="utf-8"))["ratio_vs_padded_trainer"]
    assert set(found) == {"sst2", "qqp", "stsb", "mnli", "mrpc", "qnli", "rte"}
    assert all(one["min"] <= one["median"] <= one["max"] for one in found.values())
