"""The figures in docs/performance.md and docs/cluster.md are those that the benchmarks wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.sweep_cpu import Side, summary

ROOT = Path(__file__).parent.parent


def test_every_table_is_made_of_the_figures() -> None:
    texts = [doc.read_text(encoding="utf-8") for doc in report.DOCS]
    assert [report.filled(text) for text in texts] == texts
    assert all(f"<!-- {name} -->" in "".join(texts) for name in report.TABLES)


def test_figures_that_are_missing_are_told(tmp_path: Path) -> None:
    text = "<!-- driver -->\nold\n<!-- end -->\n"
    assert "Not measured yet." in report.filled(text, tmp_path)


def test_a_changed_figure_changes_its_table(tmp_path: Path) -> None:
    figures = {"driver": [{"trials": 1000, "cpu_ms_a_trial": 12.34, "memory_mb": 200.4}]}
    (tmp_path / "driver-overhead.json").write_text(json.dumps(figures), encoding="utf-8")
    told = report.filled("<!-- driver -->\nold\n<!-- end -->\n", tmp_path)
    assert "| 1,000 | 12.3 ms | 200 MB |" in told


def sweep_table(folder: Path, figures: dict[str, Any]) -> str:
    recipe = {"limit_train": 320, "limit_dev": 160, "epochs": 1}
    all_figures = {"cells": 24, "networks": 24, "cores": 2, "recipe": recipe, **figures}
    (folder / "sweep-cpu.json").write_text(json.dumps(all_figures), encoding="utf-8")
    return report.filled("<!-- sweep -->\nold\n<!-- end -->\n", folder)


def test_turns_are_told_by_median_and_range_and_scores_by_task(tmp_path: Path) -> None:
    taken = [
        {"lp-sweep": Side(10.0, [0.9, 0.8, 0.5]), "loop": Side(seconds, [0.8, 0.8, 0.6])}
        for seconds in (40.0, 80.0, 50.0)
    ]
    found = summary(["rte", "rte", "stsb"], taken)
    assert (found["ratio"], found["ratio_min"], found["ratio_max"]) == (5.0, 4.0, 8.0)
    assert found["seconds"] == {"lp-sweep": 10.0, "loop": 50.0}
    told = sweep_table(tmp_path, found)
    assert "| 50 s | 10 s | **5.0x** | 4.0 to 8.0 in 3 turns | 73.3 | 73.3 |" in told
    assert "| MiniLM on GLUE | rte | 80.0 | 85.0 |" in told
    assert "| MiniLM on GLUE | stsb | 60.0 | 50.0 |" in told


def test_older_figures_are_of_one_turn(tmp_path: Path) -> None:
    once = {"seconds": {"lp-sweep": 100.0, "loop": 500.0}, "ratio": 5.0}
    scores = {"mean_score": {"lp-sweep": 0.5, "loop": 0.5}}
    told = sweep_table(tmp_path, once | scores)
    assert "| **5.0x** | one turn | 50.0 | 50.0 |" in told


def test_the_start_of_a_command_is_told_beside_it(tmp_path: Path) -> None:
    one = {"command": "status", "wall": 2.5, "cpu": 2.1, "start": 0.6, "start_cpu": 0.5}
    figures = {"cells": 100_050, "records": 100_050, "cores": 2, "commands": [one]}
    (tmp_path / "at-scale.json").write_text(json.dumps(figures), encoding="utf-8")
    told = report.filled("<!-- scale -->\nold\n<!-- end -->\n", tmp_path)
    assert "| `lp-sweep status` | 2.5 s | 0.6 s | 2.1 s | 0.5 s |" in told


FIGURES = {name for names, _ in report.TABLES.values() for name in names}


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_every_figure_is_there(name: str) -> None:
    """A table without one would say `Not measured yet.`, or leave a row out, and nothing fails."""
    assert (report.RESULTS / f"{name}.json").exists()


def test_the_seven_tasks_are_measured() -> None:
    path = ROOT / "benchmarks" / "results" / "trial-cpu.json"
    found = json.loads(path.read_text(encoding="utf-8"))["ratio_vs_padded_trainer"]
    assert set(found) == {"sst2", "qqp", "stsb", "mnli", "mrpc", "qnli", "rte"}
    assert all(one["min"] <= one["median"] <= one["max"] for one in found.values())
