"""The simulated machines of benchmarks/scale.py: what they do to a real driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.at_scale import planned, write_sweep
from benchmarks.scale import simulated
from benchmarks.simulation import Setting
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan of 230 trials."""
    return planned(write_sweep(tmp_path, 0, 1))


def test_every_trial_is_done_and_every_preemption_is_an_attempt(plan: Plan, tmp_path: Path) -> None:
    found = simulated(plan, tmp_path / "run", Setting(16, 600.0, 0.0, 14.1), records=True)
    store = Store(tmp_path / "run" / "store")
    assert store.names("trials") == set(plan.trials)
    attempts = store.read_all("attempts").rows.to_pylist()
    assert len(attempts) == found["preempted"] > 0
    assert {(row["error_type"], row["final"]) for row in attempts} == {("node_lost", False)}
    assert 0.8 < found["utilisation"] < 1
    assert found["driver_busy"] < 0.01


def test_a_driver_that_is_too_slow_leaves_slots_idle(plan: Plan, tmp_path: Path) -> None:
    """It could serve half of them."""
    half = Setting(16, 600.0, 0.0, 1000 * 600 / 8)
    found = simulated(plan, tmp_path / "run", half, records=False)
    assert found["driver_busy"] > 0.9
    assert found["utilisation"] < 0.55
