"""`run` and `retry`: plan, preflight, run, and how it ended."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lp_sweep.orchestrator.cluster.clusterfile import read_cluster_file
from lp_sweep.orchestrator.commands.output import say
from lp_sweep.orchestrator.commands.request import Planned, Request, planned
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.plan.policy import Limits
from lp_sweep.orchestrator.plan.selection import Selection, retry_selection
from lp_sweep.orchestrator.plan.unkept import unkept_note
from lp_sweep.orchestrator.run.budget import Budget
from lp_sweep.orchestrator.run.capacity import file_on_head
from lp_sweep.orchestrator.run.driver import Outcome, run_sweep
from lp_sweep.orchestrator.run.runoptions import STORE_PATIENCE, Options, PerTrial
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.orchestrator.sweepfile.until import WITHIN, searched_losses
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import node_folder
from lp_sweep.storage.store import Store, is_store

if TYPE_CHECKING:
    from lp_sweep.orchestrator.sweepfile.axes import StrategyEntry

_FAILURES_SHOWN = 10


class MayUse(NamedTuple):
    """How much a run may use: hours, and money at the prices of `cluster`, a file of `ray up`."""

    max_hours: float | None = None
    max_cost: float | None = None
    cluster: Path | None = None

    def budget(self) -> Budget:
        """Its clock runs from here. Raises SpecError without the prices that it needs."""
        file = read_cluster_file(self.cluster) if self.cluster else file_on_head()
        return Budget(self.max_hours, self.max_cost, file)


class How(NamedTuple):
    """The options of `run` that don't say what is trained."""

    address: str | None
    cache_dir: Path | None
    limits: Limits
    as_json: bool
    may_use: MayUse = MayUse()
    detach: bool = False  # as a job of the cluster

    @property
    def node_folder(self) -> Path:
        """On each node: tokens, and finished records on their way to the store."""
        return node_folder(self.cache_dir)


def run(request: Request, how: How) -> int:
    """Do what is missing; gives the exit code."""
    if how.detach:
        return _detached(request, how)
    budget = how.may_use.budget()
    return _run(request, how, _planned(request, how), Selection(), budget)


def retry(request: Request, how: How, names: list[str], error_type: str | None) -> int:
    """Try again what has failed: all of it, what failed with one type, or the trials named."""
    if how.detach:
        return _detached(request, how)
    budget = how.may_use.budget()
    _check_failures(request)
    first = _planned(request, how)
    selection = retry_selection(error_type, names, first.plan)
    return _run(request, how, first, selection, budget)


def _detached(request: Request, how: How) -> int:
    from lp_sweep.orchestrator.commands.detach import detach

    return detach(request, how)


def _check_failures(request: Request) -> None:
    """Before anything is looked up: a retry needs a store with failures in it."""
    location = request.location(request.sweep_file())
    if not is_store(location) or not Store(location).names("attempts"):
        raise SpecError(f"nothing has failed in {location}: there is nothing to try again.")


def _planned(request: Request, how: How) -> Planned:
    return planned(request, patience=_patience(), cache_dir=how.node_folder)


def _run(request: Request, how: How, first: Planned, selection: Selection, budget: Budget) -> int:
    from lp_sweep.orchestrator.preflight import preflight
    from lp_sweep.orchestrator.run.progress import make_reporter
    from lp_sweep.orchestrator.sweepfile.overrides import is_part
    from lp_sweep.storage.redact import redact_command

    for note in first.sweep.notes:
        say(f"note: {note}")
    preflight.check(first.plan, first.location, how.node_folder, offline=request.offline)
    store = Store(first.location, create=True, patience=_patience())
    as_run = _as_run(first.file)
    if store.read_text("sweeps", f"{first.sweep.name}.yaml") != as_run:
        store.put_text("sweeps", f"{first.sweep.name}.yaml", as_run)
    spec = first.sweep.spec
    if unkept := unkept_note(first.plan, store, spec.keep):
        say(f"note: {unkept}")
    options = Options(
        cache_dir=how.node_folder,
        address=how.address,
        per_trial=PerTrial.of(spec),
        offline=request.offline,
        part=is_part(request.overrides),
        checkpoint_every=spec.checkpoint_every,
        keep=spec.keep,
        command=redact_command(["lp-sweep", *sys.argv[1:]]),
        store_patience=_patience(),
        limits=how.limits,
        budget=budget,
        selection=selection,
    )
    rates = Rates(first.ledger.timings, first.sweep.recipe)
    outcome = run_sweep(first.plan, rates, store, options, make_reporter())
    if how.as_json:
        told = {"totals": outcome.plan.totals(), "done": outcome.done, "failed": outcome.failed}
        used = budget.used()._asdict()
        print(json.dumps(told | {"stopped_by": outcome.stopped_by, "used": used}))
    if outcome.stopped_by in ("max-hours", "max-cost"):
        say(f"this run has used {budget.used().sentence()}; the next one counts anew.")
        say("What was under way goes on from its last checkpoint.")
    return _farewell(outcome, store, request, how)


def _patience() -> float:
    text = os.environ.get("LP_SWEEP_STORE_PATIENCE", str(STORE_PATIENCE))
    try:
        return float(text)
    except ValueError:
        raise SpecError(
            f"LP_SWEEP_STORE_PATIENCE is {text!r}: give seconds, such as 600."
        ) from None


def _as_run(file: SweepFile) -> str:
    import yaml

    return str(yaml.safe_dump(file.document.content, sort_keys=False, allow_unicode=True))


def _farewell(outcome: Outcome, store: Store, request: Request, how: How) -> int:
    """Says how the run ended and what to do next; gives the exit code."""
    options = {
        "--address": how.address,
        "--cache-dir": how.cache_dir,
        # a pasted command must not spend without a limit where this one had one
        "--cluster": how.may_use.cluster,
        "--max-hours": how.may_use.max_hours,
        "--max-cost": how.may_use.max_cost,
    }
    again = request.again("run", store, dict(options))
    where = shlex.quote(store.location)
    _tell_failures(outcome.failed, where)
    if outcome.stopped_by == "store":
        say(f"stopped: the store refused for too long: {outcome.store_error}")
        say(_spooled(outcome))
        say(f"Mend the store, then go on: {again}")
        return 3
    retry = request.again("retry", store, dict(options))
    if outcome.stopped_by == "failures":
        say(f"stopped after {len(outcome.failed)} failures. Go on with the rest: {again}")
        say(f"Try the failed again: {retry}")
        return 1
    if outcome.stopped_by:
        say(f"stopped by {outcome.stopped_by}: {outcome.done} done in this run. Go on: {again}")
        return 130 if outcome.stopped_by == "SIGINT" else 3
    left = _left_failed(outcome)
    if left:
        say(f"{outcome.done} done in this run; of the sweep {left} have failed.")
        say(f"Try the failed again: {retry}")
        return 1
    if pending := len(outcome.plan.missing()):  # after a retry, which leaves them
        say(f"{outcome.done} done in this run, {pending} not tried yet. Do them: {again}")
        return 3
    what = f"{outcome.done} done in this run" if outcome.done else "nothing was missing"
    if outcome.done_elsewhere:
        what += f", {outcome.done_elsewhere} by another run meanwhile"
    say(f"complete: {what}. Records: {store.location}")
    say(f"next: {answer_command(outcome.plan.sweep.spec.strategies, where)}")
    return 0


def answer_command(strategies: Iterable[StrategyEntry], where: str) -> str:
    """What prints the answers of a sweep, for the losses that it searched for."""
    losses = searched_losses(strategies)
    named = f" --within {','.join(f'{loss:g}' for loss in losses)}"
    return (
        f"lp-sweep table min-layers{named if losses not in ([], [*WITHIN]) else ''} --store {where}"
    )


def _left_failed(outcome: Outcome) -> int:
    totals = outcome.plan.totals()
    plan = outcome.plan
    measures = (item.id for items in plan.measures.values() for item in items)
    others = {*plan.profiles, *plan.speeds, *measures} & plan.known.failed.keys()
    return totals["trials_failed"] + len(others - plan.known.profiles.keys())


def _tell_failures(failed: dict[str, str], where: str) -> None:
    for id_, error_type in list(failed.items())[:_FAILURES_SHOWN]:
        say(f"failed: {id_} ({error_type}). Why: lp-sweep logs {id_} --store {where}")
    if len(failed) > _FAILURES_SHOWN:
        say(f"... and {len(failed) - _FAILURES_SHOWN} more: lp-sweep status --store {where}")


def _spooled(outcome: Outcome) -> str:
    if not outcome.spooled:
        return "No finished trial waits."
    return (
        f"{len(outcome.spooled)} finished trials wait in the spools of their nodes; the next run "
        "brings them to the store."
    )
