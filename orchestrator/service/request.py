"""The plan of a sweep file over its store, for the commands that read both."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.inputs.resolve import Sweep
from lp_sweep.orchestrator.plan.known import (
    Known,
    Ledger,
    read_ledger,
    timing_columns,
    with_networks,
)
from lp_sweep.orchestrator.plan.listing import hidden_by, leftover, trained_otherwise
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan, missing_baselines
from lp_sweep.orchestrator.sweepfile.load import SweepFile, is_part
from lp_sweep.storage.spool import flush
from lp_sweep.storage.store import Store, is_store


class Planned(NamedTuple):
    """A plan that knows what the store has. The store at `location` may not exist yet."""

    file: SweepFile
    sweep: Sweep
    location: str
    ledger: Ledger
    plan: Plan


def planned(request: Request, *, patience: float = 0.0, cache_dir: Path | None = None) -> Planned:
    """Reads the file, its inputs and its store. With `cache_dir`, also sends records to the store
    that an earlier run on this machine could not send; otherwise writes nothing."""
    file = request.sweep_file()
    sweep = request.resolved(file)
    location = request.location(file)
    ledger = Ledger(Known.nothing(), timing_columns(), [])
    store = None
    if is_store(location):
        store = Store(location, patience=patience)
        if cache_dir is not None:
            flush(store, cache_dir)
        ledger = read_ledger(store)
    plan = make_plan(sweep, ledger.known)
    part = is_part(request.overrides)
    left = leftover(store, plan) if store is not None and part else []
    sweep.notes.extend(missing_baselines(plan, left))
    sweep.notes.extend(trained_otherwise(plan, left))
    if store is not None:
        sweep.notes.extend(hidden_by(store, plan, part=part))
        wanted = plan.needed_networks() | plan.trained_again()
        plan.known = with_networks(plan.known, store, wanted)
    return Planned(file, sweep, location, ledger, plan)
