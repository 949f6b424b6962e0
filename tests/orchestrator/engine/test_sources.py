"""Networks that work goes on from: held while they are needed, released by their last user."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp_sweep.orchestrator.engine.driver import Sources
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage.networks import CONFIG, KEPT_BY, WEIGHTS, has_network, kept_by
from lp_sweep.storage.store import Store
from tests.support.courses import presence_of
from tests.support.stagedplans import STAGED, cell_trial, plan_of, the_full
from tests.support.stores import trial
from tests.support.sweepfiles import CPU


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return plan_of(tmp_path, STAGED)


def keep(store: Store, plan: Plan, by: str) -> str:
    """The full network, recorded and there."""
    full = the_full(plan)
    store.put("trials", full, [trial(full)])
    store.put_text(f"{WEIGHTS}/{full}", KEPT_BY, f"{by}\n")
    store.put_text(f"{WEIGHTS}/{full}", CONFIG, "{}")
    plan.known = plan.known._replace(trials=frozenset({full}), networks=frozenset({full}))
    return full


def sources(store: Store) -> Sources:
    return Sources(store, presence_of(store), keep_best=False)


def test_a_network_that_a_best_kept_is_held_and_given_back(store: Store, plan: Plan) -> None:
    full = keep(store, plan, "best")
    sources(store).hold(plan)
    assert kept_by(store, full) == "need, best"  # no better seed deletes it now
    sources(store).release([full])
    assert kept_by(store, full) == "best"


def test_the_last_run_releases_what_nothing_needs(store: Store, plan: Plan) -> None:
    full = keep(store, plan, "need")
    sources(store).release_idle(plan)
    assert has_network(store, full)
    plan.known = plan.known._replace(trials=frozenset(plan.trials))
    with presence_of(store).announced():
        sources(store).release_idle(plan)
        assert has_network(store, full)
    sources(store).release_idle(plan)
    assert not has_network(store, full)


def test_the_queue_tells_when_the_last_user_of_a_network_has_ended(
    store: Store, plan: Plan
) -> None:
    full = keep(store, plan, "need")
    idle: list[str] = []
    queue = WorkQueue(plan, store, CPU, lambda plan: None, on_idle=idle.append)
    users = {id_ for id_ in plan.trials if full in plan.needs(id_)}
    assert cell_trial(plan, procedure="finetune_then_drop", k=2) in users
    while work := queue.take():
        assert not idle or not users
        queue.ended(work.id, None)
        users.discard(work.id)
    assert (users, idle) == (set(), [full])
