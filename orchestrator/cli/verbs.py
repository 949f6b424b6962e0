"""What each command that only reads does, without parsing and printing: one function a verb."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lp_sweep.orchestrator.cli.options import BUILT_IN
from lp_sweep.orchestrator.cli.output import say
from lp_sweep.orchestrator.cli.startup import without_pandas
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.store import Store, is_store

if TYPE_CHECKING:
    from lp_sweep.analysis.report.writing import Written
    from lp_sweep.orchestrator.engine.capacity import Largest
    from lp_sweep.orchestrator.estimate.estimate import Cost, Estimate
    from lp_sweep.orchestrator.service.request import Request
    from lp_sweep.storage.catalog import Catalog


def plan(request: Request, as_json: bool, cluster_file: Path | None = None) -> str:
    """`cluster_file`: of the cluster that wall time and price are of."""
    from lp_sweep.orchestrator.plan.garbage import collector_paused

    with collector_paused():  # objects of every cell, and none of them garbage
        return _plan(request, as_json, cluster_file)


def _plan(request: Request, as_json: bool, cluster_file: Path | None) -> str:
    from lp_sweep.orchestrator.cli.planview import plan_json, plan_text
    from lp_sweep.orchestrator.cluster.clusterfile import read_cluster_file
    from lp_sweep.orchestrator.engine.capacity import at_its_largest
    from lp_sweep.orchestrator.engine.runoptions import PerTrial
    from lp_sweep.orchestrator.estimate.estimate import Rates, estimate
    from lp_sweep.orchestrator.inputs.checks import check_small_files
    from lp_sweep.orchestrator.service.request import planned

    file = read_cluster_file(cluster_file) if cluster_file else None
    made = planned(request)
    _warn_unreadable(made.ledger.unreadable)
    made.sweep.notes.extend(check_small_files(made.sweep, made.plan.inputs_needed()))
    largest = at_its_largest(file, PerTrial.of(made.sweep.spec)) if file else None
    gpu = bool(largest.slots.gpus) if largest else None  # what the rule of thumb is to be of
    rates = Rates(made.ledger.timings, made.sweep.recipe, gpu=gpu)
    hours = estimate(made.plan, rates)
    price = _cost(hours, largest) if largest else None
    slots = _slots_at_work(made.location, made.sweep.name)
    if as_json:
        return json.dumps(plan_json(made.plan, hours, slots, price))
    return plan_text(made.plan, hours, rates, slots, price)


def _cost(hours: Estimate, largest: Largest) -> Cost:
    from lp_sweep.orchestrator.estimate.estimate import cost

    return cost(
        hours,
        largest.file,
        largest.workers,
        slots=largest.slots.number,
        on_gpu=bool(largest.slots.gpus),
    )


def _slots_at_work(location: str, sweep: str) -> int:
    """Of the runs on this sweep; 0 where there is none."""
    from lp_sweep.storage.runs import Observer

    if not is_store(location):
        return 0
    return sum(run.slots for run in Observer(Store(location)).living() if run.sweep == sweep)


def audit(location: str, sweep: str, form: str) -> str:
    """Estimated against actual hours of a sweep's finished trials."""
    from lp_sweep.analysis.render import render
    from lp_sweep.orchestrator.estimate.audit import audit as compare

    found = compare(existing(location), sweep)
    _warn_unreadable(found.unreadable)
    return render(found.table, form)


def prefetch(request: Request, as_json: bool) -> str:
    from lp_sweep.orchestrator.inputs.prefetch import prefetch as fetch
    from lp_sweep.orchestrator.sweepfile.overrides import is_part

    if request.is_built_in:
        raise SpecError(f"{BUILT_IN} needs nothing fetched: it brings its model and its data.")
    fetched = fetch(
        request.sweep_file(),
        data_dir=request.data_dir,
        manifest=request.manifest,
        part=is_part(request.overrides),
    )
    return fetched.json() if as_json else fetched.text()


def existing(location: str) -> Store:
    """The store to read. Raises StoreError for a folder that is none: a wrong --store, mostly."""
    store = Store(location)
    if not is_store(location):
        raise StoreError(f"no store at {store.location}: the folder has no records of lp-sweep.")
    return store


def status(location: str, sweep: str | None, as_json: bool) -> str:
    without_pandas()
    from lp_sweep.orchestrator.cli.statusview import states_json, states_text, sweep_states

    states = sweep_states(existing(location), sweep)
    _warn_unreadable(states.unreadable)
    return json.dumps(states_json(states)) if as_json else states_text(states)


def query(location: str, sweep: str | None, sql: str, form: str, setup: int | None = None) -> str:
    from lp_sweep.analysis.render import render_rows
    from lp_sweep.analysis.views import open_views

    catalog = open_views(existing(location), sweep=sweep, setup=setup)
    with catalog.bounded_memory():
        rows = catalog.query(sql)
        _warn_unreadable(catalog.unreadable)  # predictions are read only when the query names them
        return render_rows(rows, form)


def opened(
    location: str,
    sweep: str | None,
    deltas: Sequence[float] = (1, 2, 3),
    only: Collection[str] = (),
    setup: int | None = None,
) -> Catalog:
    """The store in SQL, `only` and `setup` as for `open_views`; what can't be read is named."""
    without_pandas()
    from lp_sweep.analysis.views import open_views

    catalog = open_views(existing(location), sweep=sweep, setup=setup, deltas=deltas, only=only)
    _warn_unreadable(catalog.unreadable)
    return catalog


def report(
    location: str,
    out: Path,
    *,
    sweep: str | None,
    within: Sequence[float],
    figures: Path | None,
    setup: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Written:
    """The page of a store, written; what can't be read is named. `tell` hears what it is at."""
    without_pandas()
    from lp_sweep.analysis.report.writing import write_report

    store = existing(location)
    written = write_report(
        store, out, sweep=sweep, setup=setup, within=within, figures=figures, tell=tell
    )
    _warn_unreadable(written.unreadable)
    return written


def _warn_unreadable(files: Any) -> None:
    for item in files:
        say(f"warning: {item.location} is left out: {item.reason}")
    if files:
        say("warning: `lp-sweep doctor --fix` sets such files aside")
