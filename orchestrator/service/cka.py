"""`cka`: linear CKA between two networks that a store kept, without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.inputs.resolve import Sweep
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import profile_spec
from lp_sweep.orchestrator.service.plan import planned
from lp_sweep.orchestrator.service.store import existing
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.identity import profile_id
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.job import Answer, Measure, Place

PRETRAINED = "pretrained"


def compare(request: Request, names: tuple[str, str], cache_dir: Path) -> dict[str, Any]:
    """Returns the row of PROFILES, after measuring and storing it if the store lacks it.

    names: two trials of the sweep; the second may be `pretrained`. Raises SpecError, StoreError.
    """
    made = planned(request)
    store = existing(made.location)
    first = _work(made.plan, names[0])
    second = None if names[1] == PRETRAINED else _work(made.plan, names[1])
    for work in filter(None, (first, second)):
        if not has_network(store, work.id):
            raise SpecError(
                f"the network of {work.id} is not in {store.location}. `keep: all` keeps networks "
                "trained from then on; `measure: {cka: pruned}` in the sweep file also measures "
                "those trained before."
            )
    measure = _measure(made.plan.sweep, first, second)
    rows = store.find("profiles", measure.id) or _measured(
        store, first, measure, cache_dir, request.offline
    )
    return rows[0]


def _work(plan: Plan, name: str) -> Work:
    """The only trial of the sweep whose identifier begins with `name`."""
    found = [work for id_, work in plan.trials.items() if id_.startswith(name)]
    if len(found) == 1:
        return found[0]
    what = f"{len(found)} trials begin with" if found else "there is no trial"
    raise SpecError(
        f'{what} {name!r} in this sweep. `lp-sweep query "SELECT trial_id, strategy, k, task, seed '
        f'FROM cells"` lists them; the second may be {PRETRAINED!r}.'
    )


def _measure(sweep: Sweep, first: Work, second: Work | None) -> Measure:
    if second is not None and (second.task.fingerprint, second.trial.task) != (
        first.task.fingerprint,
        first.trial.task,
    ):
        raise SpecError(f"{first.id} and {second.id} are of different tasks: choose two of one.")
    against = second.id if second else ""
    spec = profile_spec(sweep, first.model, first.task.name, "cka", trial=first.id, against=against)
    return Measure(profile_id(spec), spec)


def _measured(
    store: Store, work: Work, measure: Measure, cache_dir: Path, offline: bool
) -> list[dict[str, Any]]:
    from lp_sweep.trials.worker.run import execute

    place = Place(cache_dir=cache_dir, store=store.location, offline=offline)
    job = replace(work.job(), measures=(measure,), place=place)
    told = Answer.from_plain(execute(job.to_plain()))
    rows = store.find("profiles", measure.id)
    if rows is None:
        why = dict(told.measures_failed) or told.message
        raise StoreError(f"no CKA of {work.id}: {why}. Details: lp-sweep logs {measure.id}")
    return rows
