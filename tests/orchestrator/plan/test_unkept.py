"""With `keep:`, `run` reports trials that are done but have no kept network."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import Known
from lp_sweep.orchestrator.plan.listing import unkept_note
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.networks import CONFIG, WEIGHTS
from lp_sweep.storage.store import Store
from tests.support.program import sweep
from tests.support.sweepfiles import make_inputs, planned
from tests.support.toyworld import save_world


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A finished sweep of one task: two networks of two seeds each."""
    file = make_inputs(tmp_path)
    trials = planned(file, "task=rte").trials
    return planned(file, "task=rte", known=Known(frozenset(trials), {}, {}))


def keep(store: Store, *trials: str) -> None:
    for trial in trials:
        store.put_text(f"{WEIGHTS}/{trial}", CONFIG, "{}")


def test_only_those_that_lack_their_network_are_counted(plan: Plan, store: Store) -> None:
    kept, torn, *_ = plan.trials
    keep(store, kept, "t1-of-another-sweep")
    store.put_text(f"{WEIGHTS}/{torn}", "model.safetensors", "half of it")
    note = unkept_note(plan, store, "all")
    assert note is not None
    assert "not to 3 done trials whose networks were not kept. `lp-sweep export TRIAL`" in note
    assert unkept_note(plan, store, "none") is None
    keep(store, *plan.trials)
    assert unkept_note(plan, store, "all") is None


@pytest.mark.parametrize(("kept", "count"), [([], 2), ([1], 1), ([1, 2], 0), ([0, 1], 1)])
def test_of_the_seeds_one_is_enough_for_a_best(
    plan: Plan, store: Store, kept: list[int], count: int
) -> None:
    keep(store, *([*plan.trials][index] for index in kept))
    note = unkept_note(plan, store, "best")
    text = f"not to {count} done networks without a kept seed. `lp-sweep export"
    assert text in note if note else count == 0


def test_a_run_says_it_before_it_begins(tmp_path: Path) -> None:
    """The sweep is finished, so that nothing but the words is left to do."""
    file = save_world(tmp_path, seeds=[1, 2], strategies=[{"name": "top", "k": [0]}], keep="all")
    store = Store(tmp_path / "store", create=True)
    first, second = make_plan(resolve(load_sweep(file)), Known.nothing()).trials
    for trial in (first, second):
        store.put("trials", trial, [{"trial_id": trial}])
    keep(store, first)
    ended = sweep("run", file.name, "--store", "store", cwd=tmp_path)
    assert ended.returncode == 0
    assert "note: keep: all applies from now on, not to 1 done trials" in ended.stderr
