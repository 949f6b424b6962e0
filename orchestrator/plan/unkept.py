"""What is done and has no network in the store, though the sweep now says `keep:`."""

from __future__ import annotations

from dataclasses import replace

from lp_sweep.orchestrator.plan.known import with_networks
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage.networks import BEST, WEIGHTS
from lp_sweep.storage.store import Store


def unkept_note(plan: Plan, store: Store, keep: str) -> str | None:
    """How many, and what to do; None where nothing lacks its network. Of the seeds that a `best`
    keeps one of, one is enough. Raises StoreError."""
    if keep == "none" or not (count := _unkept(plan, store, one_seed=keep == BEST)):
        return None
    what = (
        "networks of which no seed was kept"
        if keep == BEST
        else "trials whose networks were not kept"
    )
    return (
        f"keep: {keep} is for what is trained from now on, not for {count} done {what}. "
        "`lp-sweep export TRIAL` trains one of them again; a run with another --store trains all"
    )


def _unkept(plan: Plan, store: Store, *, one_seed: bool) -> int:
    done = (plan.trials.keys() & plan.known.trials) - plan.trained_again()
    kept = with_networks(plan.known, store, done & store.folders(WEIGHTS)).networks
    if not one_seed:
        return len(done - kept)
    networks = {id_: replace(plan.trials[id_].trial, seed=0) for id_ in done}
    return len({*networks.values()} - {networks[id_] for id_ in kept})
