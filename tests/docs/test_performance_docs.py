"""The figures in the README and in docs are those that the benchmarks wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from benchmarks import parity, report

ROOT = Path(__file__).parents[2]


def test_every_table_is_made_of_figures_that_are_there() -> None:
    """A table without one would say `Not measured yet.`, or leave a row out."""
    for name in {name for names, _ in report.TABLES.values() for name in names}:
        assert (report.RESULTS / f"{name}.json").exists(), name
    texts = [doc.read_text(encoding="utf-8") for doc in report.DOCS]
    assert [report.filled(text) for text in texts] == texts
    assert all(f"<!-- {name} -->" in "".join(texts) for name in report.TABLES)


def figures(name: str) -> Any:
    return json.loads((report.RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_the_readme_states_baselines_and_bf16_of_the_seven_tasks() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found, names = figures("trial-cpu"), {"stsb": "STS-B", "sst2": "SST-2"}
    for ratio in ("vs_padded_trainer", "vs_plain_loop", "of_bf16"):
        ratios = found[f"ratio_{ratio}"]
        assert set(ratios) == {"sst2", "qqp", "stsb", "mnli", "mrpc", "qnli", "rte"}
        assert all(one["min"] <= one["median"] <= one["max"] for one in ratios.values())
        medians = {task: one["median"] for task, one in ratios.items()}
        for task in (min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)):
            name = names.get(task, task.upper())
            assert f"{medians[task]:.2f} times ({name})" in readme


def test_equivalence_is_what_statsmodels_finds() -> None:
    draw = np.random.default_rng(1)
    for shift, seeds in ((0.0, 5), (0.7, 8), (3.0, 5)):
        a, b = draw.normal(80 + shift, 0.5, seeds), draw.normal(80, 1.5, seeds + 2)
        found = parity.tost(a.tolist(), b.tolist())
        means = CompareMeans(DescrStatsW(a), DescrStatsW(b))
        assert found.p == pytest.approx(means.ttost_ind(-1, 1, usevar="unequal")[0])
        interval = means.tconfint_diff(alpha=0.1, usevar="unequal")
        assert (found.low, found.high) == pytest.approx(interval)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([80.1, 80.0, 79.9], "equivalent"),
        ([83.1, 83.0, 82.9], "differs"),
        ([78.0, 80.0, 82.0], "cannot tell"),
        ([80.0, 80.0, 80.0], "equivalent"),  # no spread at all, as where every seed scores 100
        ([82.0, 82.0, 82.0], "differs"),
    ],
)
def test_the_verdict_on_a_margin_of_one_point(other: list[float], verdict: str) -> None:
    assert parity.tost([80.0, 80.0, 80.0], other).verdict == verdict


def test_parity_is_shown_of_networks_that_learned() -> None:
    """Each task has at least five seeds on each side, none on both; verdicts follow from them."""
    found = figures("parity")
    rows = found["rows"]
    assert {*(row["task"] for row in rows), *found["not_measured"]} == set(parity.TASKS)
    for row in rows:
        sides = [row[side]["points"] for side in ("lp_sweep", "trainer")]
        assert min(map(len, sides)) >= 5
        assert min(map(min, sides)) > row["chance"] + 10
        assert parity.tost(*sides).verdict == row["verdict"]
