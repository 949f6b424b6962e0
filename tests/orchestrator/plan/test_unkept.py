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
from tests.support.sweepfiles import PLAIN, make_inputs, planned
from tests.support.toyworld import save_world


def plan_of(folder: Path, lines: str = "", done: int = 4) -> Plan:
    """A plan of one task: two networks of two seeds each, the first `done` of them done."""
    file = make_inputs(folder, PLAIN + lines)
    trials = list(planned(file, "task=rte").trials)[:done]
    return planned(file, "task=rte", known=Known(frozenset(trials), {}, {}))


def keep(store: Store, *trials: str) -> None:
    for trial in trials:
        store.put_text(f"{WEIGHTS}/{trial}", CONFIG, "{}")


@pytest.mark.parametrize(("mode", "kept"), [("none", 0), ("all", 4), ("best", 4)])
def test_nothing_to_say(tmp_path: Path, store: Store, mode: str, kept: int) -> None:
    plan = plan_of(tmp_path)
    keep(store, *[*plan.trials][:kept])
    assert unkept_note(plan, store, mode) is None


def test_only_those_that_lack_their_network_are_counted(tmp_path: Path, store: Store) -> None:
    plan = plan_of(tmp_path)
    kept, torn, *_ = plan.trials
    keep(store, kept, "t1-of-another-sweep")
    store.put_text(f"{WEIGHTS}/{torn}", "model.safetensors", "half of it")
    assert unkept_note(plan, store, "all") == (
        "keep: all applies from now on, not to 3 done trials whose networks "
        "were not kept. `lp-sweep export TRIAL` trains one of them again; a run with another "
        "--store trains all"
    )


@pytest.mark.parametrize(("kept", "count"), [([], 2), ([1], 1), ([1, 2], 0), ([0, 1], 1)])
def test_of_the_seeds_one_is_enough_for_a_best(
    tmp_path: Path, store: Store, kept: list[int], count: int
) -> None:
    plan = plan_of(tmp_path)
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
    words = "note: keep: all applies from now on, not to 1 done trials"
    assert words in sweep("run", file.name, "--store", "store", cwd=tmp_path).stderr
    keep(store, second)
    again = sweep("run", file.name, "--store", "store", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "keep: all" not in again.stderr
