"""`run` and `retry`: plan, preflight, run. `farewell` says how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.cli.interrupt import after_the_start
from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.orchestrator.cluster.clusterfile import read_cluster_file
from lp_sweep.orchestrator.engine.budget import Budget, Used
from lp_sweep.orchestrator.engine.capacity import file_on_head
from lp_sweep.orchestrator.engine.driver import Outcome, run_sweep
from lp_sweep.orchestrator.engine.runoptions import STORE_PATIENCE, Options, PerTrial
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind, check_installed
from lp_sweep.orchestrator.plan.policy import Limits
from lp_sweep.orchestrator.plan.selection import Selection, retry_selection
from lp_sweep.orchestrator.plan.unkept import unkept_note
from lp_sweep.orchestrator.service.request import Planned, Request, planned
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.orchestrator.watch.eventreporter import EventReporter
from lp_sweep.storage.errors import LpSweepError, SpecError
from lp_sweep.storage.places import node_folder, run_with
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.store import Store, is_store


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
    """The options of `run` that don't say what is trained. `command`: what the records tell of how
    they came to be; None: the command line."""

    address: str | None
    cache_dir: Path | None
    limits: Limits
    as_json: bool
    may_use: MayUse = MayUse()
    events: bool = False
    mirrors: Sequence[MirrorKind] = ()
    command: Sequence[str] | None = None

    @property
    def node_folder(self) -> Path:
        """On each node: tokens, and finished records on their way to the store."""
        return node_folder(self.cache_dir)


class Ended(NamedTuple):
    """A run that came to its end, in whatever way. `events`: where that is still to be told."""

    outcome: Outcome
    store: Store
    used: Used
    events: EventReporter | None = None

    @property
    def exit_code(self) -> int:
        """Of the command: 0 where the sweep is complete."""
        outcome = self.outcome
        if outcome.stopped_by:
            return {"failures": 1, "SIGINT": 130}.get(outcome.stopped_by, 3)
        if self.left_failed:
            return 1
        return 3 if outcome.plan.missing() else 0  # after a retry, which leaves what is not tried

    @property
    def left_failed(self) -> int:
        """Trials and measurements of the sweep that have failed, in this run or before."""
        plan = self.outcome.plan
        measures = (item.id for items in plan.measures.values() for item in items)
        others = {*plan.profiles, *plan.speeds, *measures} & plan.known.failed.keys()
        failed: int = plan.totals()["trials_failed"]
        return failed + len(others - plan.known.profiles.keys())


def run(request: Request, how: How) -> Ended:
    """Do what is missing."""
    budget = how.may_use.budget()
    return _run(request, how, _planned(request, how), Selection(), budget)


def retry(request: Request, how: How, names: list[str], error_type: str | None) -> Ended:
    """Try again what has failed: all of it, what failed with one type, or the trials named."""
    budget = how.may_use.budget()
    _check_failures(request)
    first = _planned(request, how)
    selection = retry_selection(error_type, names, first.plan)
    return _run(request, how, first, selection, budget)


def _check_failures(request: Request) -> None:
    """Before anything is looked up: a retry needs a store with failures in it."""
    location = request.location(request.sweep_file())
    if not is_store(location) or not Store(location).names("attempts"):
        raise SpecError(f"nothing has failed in {location}: there is nothing to try again.")


def _planned(request: Request, how: How) -> Planned:
    check_installed(how.mirrors)
    return planned(request, patience=_patience(), cache_dir=how.node_folder)


def _run(request: Request, how: How, first: Planned, selection: Selection, budget: Budget) -> Ended:
    from lp_sweep.orchestrator.inputs import checks
    from lp_sweep.orchestrator.watch.livereporter import make_display
    from lp_sweep.orchestrator.watch.mirroring import mirrored

    for note in first.sweep.notes:
        say(f"note: {note}")
    wanted = first.plan.inputs_needed()
    for note in checks.check(
        first.sweep, wanted, first.location, how.node_folder, offline=request.offline
    ):
        say(f"note: {note}")
    store = Store(first.location, create=True, patience=_patience())
    places = redact_text(run_with(request.file, request.data_dir))
    as_run = places + _as_run(first.file)
    if store.read_text("sweeps", f"{first.sweep.name}.yaml") != as_run:
        store.put_text("sweeps", f"{first.sweep.name}.yaml", as_run)
    spec = first.sweep.spec
    if unkept := unkept_note(first.plan, store, spec.keep):
        say(f"note: {unkept}")
    options = _options(first, request, how, selection, budget)
    rates = Rates(first.ledger.timings, first.sweep.recipe)
    display = make_display(first.ledger.timings)
    events = EventReporter(display, emit) if how.events else None
    mirrors = mirrored(events or display, how.mirrors, store.location, first.sweep.name)
    with after_the_start(), _errors_told(events), mirrors as reporter:
        outcome = run_sweep(first.plan, rates, store, options, reporter)
    return Ended(outcome, store, budget.used(), events)


@contextmanager
def _errors_told(events: EventReporter | None) -> Iterator[None]:
    """A stream of events has an end, too, where there is no outcome."""
    try:
        yield
    except LpSweepError as error:
        if events:
            events.event("ended", exit_code=error.exit_code, error=str(error))
        raise


def _options(
    first: Planned, request: Request, how: How, selection: Selection, budget: Budget
) -> Options:
    from lp_sweep.orchestrator.sweepfile.overrides import is_part
    from lp_sweep.storage.redact import redact_command

    spec = first.sweep.spec
    return Options(
        cache_dir=how.node_folder,
        address=how.address,
        per_trial=PerTrial.of(spec),
        offline=request.offline,
        part=is_part(request.overrides),
        overrides=redact_command(request.overrides),
        checkpoint_every=spec.checkpoint_every,
        keep=spec.keep,
        command=redact_command(how.command or ["lp-sweep", *sys.argv[1:]]),
        store_patience=_patience(),
        limits=how.limits,
        budget=budget,
        selection=selection,
    )


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
