"""`run`, `resume` and `retry`: plan, check the inputs, run. Notes go to stderr."""

from __future__ import annotations

import html
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.engine.course import Budget
from lp_sweep.orchestrator.engine.driver import run_sweep
from lp_sweep.orchestrator.engine.runoptions import GPUS, RunOptions
from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.inputs import checks
from lp_sweep.orchestrator.mirrors.copying import check_installed
from lp_sweep.orchestrator.options import ExportOptions, MeasureOptions, Request, from_environment
from lp_sweep.orchestrator.plan.listing import unkept_note
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import Selection, retry_selection
from lp_sweep.orchestrator.service.plan import PreparedPlan, planned, rates_of
from lp_sweep.orchestrator.service.store import store_patience
from lp_sweep.orchestrator.service.tables import html_table
from lp_sweep.orchestrator.sweepfile.axes import WITHIN, searched_losses
from lp_sweep.orchestrator.sweepfile.yamlfile import yaml_text
from lp_sweep.orchestrator.watch.mirroring import mirrored
from lp_sweep.orchestrator.watch.reporters import EventReporter, make_display
from lp_sweep.storage.errors import LpSweepError, SpecError, StoreError
from lp_sweep.storage.files import SET_ASIDE
from lp_sweep.storage.places import run_with
from lp_sweep.storage.printable import said_if_slow, say
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.runs import Observer
from lp_sweep.storage.store import Store, Unreadable, is_store
from lp_sweep.storage.upkeep import compact, set_aside

MANY_FILES = 1000  # reading them takes about two seconds
_STORE_PATIENCE = 600.0  # seconds for which an unreachable store is retried


class RunResult(NamedTuple):
    """How a run ended: complete, with failures, or stopped. `failed`: identifier -> error type;
    `spooled`: identifier -> why the store did not take its record, which waits on a node."""

    plan: Plan  # with what the run did
    store: Store
    hours: float  # by the clock
    done: int  # trials and measurements that this run did
    failed: dict[str, str]
    # SIGINT, SIGTERM, SIGHUP, SIGUSR1, failures, nothing-learned, store, ray, device, max-hours
    stopped_by: str | None
    stop_detail: str = ""  # the store's answer, or how Ray was lost
    done_elsewhere: int = 0  # by other runs in the meantime
    spooled: Mapping[str, str] = MappingProxyType({})
    unkept: int = 0  # trials whose networks could not be kept
    held_out: tuple[str, ...] = ()  # sentences on rows that tasks set aside

    @property
    def totals(self) -> dict[str, int]:
        return self.plan.totals()

    @property
    def exit_code(self) -> int:
        """The exit code of `lp-sweep run`: 0 if the sweep is complete."""
        if self.stopped_by:
            return {"failures": 1, "SIGINT": 130}.get(self.stopped_by, 3)
        if self.left_failed:
            return 1
        return 3 if self.plan.missing() else 0  # a retry may leave work undone

    @property
    def left_failed(self) -> int:
        """How many trials and measurements of the sweep have failed, in this run or before."""
        totals = self.totals
        return sum(totals[f"{of}_failed"] for of in ("trials", "profiles", "measures", "speeds"))

    def summary(self) -> dict[str, Any]:
        """The object that `run --json` prints."""
        return {
            "totals": self.totals,
            "done": self.done,
            "failed": self.failed,
            "stopped_by": self.stopped_by,
            "used": {"hours": self.hours},
        }

    def _repr_html_(self) -> str:
        ended = f"stopped by {self.stopped_by}; " if self.stopped_by else ""
        of = f"{self.totals['trials_done']} of {self.totals['trials']}"
        told = html.escape(f"{ended}{of} trials done, {self.done} now")
        failed = html_table("Failed", ["trial", "error"], [*self.failed.items()])
        return f"<p>{told}</p>{failed if self.failed else ''}"


class PreparedRun(NamedTuple):
    """A run that is ready: everything was checked, and nothing was trained yet."""

    options: RunOptions
    planned: PreparedPlan
    store: Store
    selection: Selection
    budget: Budget
    rates: Rates

    def run(
        self,
        events: Callable[[str], object] | None = None,
        told: Callable[[RunResult], object] = lambda result: None,
    ) -> RunResult:
        """Runs the missing work, or retries failures. Call it in the main thread. `events` gets
        each event as a line of JSON; `told` the result before Ray is left, which may fail."""
        options, store, sweep = self.options, self.store, self.planned.sweep
        display = make_display()
        stream = EventReporter(display, events) if events else None
        to = (options.mirrors, store.location, sweep.name)
        with ExitStack() as at_the_end:
            try:
                with mirrored(stream or display, *to) as reporter:
                    queue = run_sweep(
                        self.planned.plan,
                        self.rates,
                        store,
                        options,
                        reporter,
                        budget=self.budget,
                        at_the_end=at_the_end,
                        selection=self.selection,
                    )
            except LpSweepError as error:
                if stream:
                    stream.event("ended", exit_code=error.exit_code, error=str(error))
                raise
            result = RunResult(
                queue.plan,
                store,
                self.budget.hours,
                len(queue.done - queue.done_elsewhere),
                queue.failed,
                queue.stopped,
                queue.stop_detail,
                len(queue.done_elsewhere),
                queue.spooled,
                len(queue.unkept),
            )
            if result.exit_code == 0:
                told_of = _measure_as_shipped(self.planned, store, options)
                result = result._replace(held_out=tuple(told_of))
            if stream:
                stream.event("ended", exit_code=result.exit_code, **result.summary())
            told(result)
        compact_many(store)
        return result


_PLACES = ("file", "data_dir", "offline", "manifest", "cache_dir")  # of a run's options


def _measure_as_shipped(made: PreparedPlan, store: Store, options: RunOptions) -> Iterator[str]:
    """Measures the networks of `deploy:`, now that no trial computes beside them. What can't be
    measured costs no sweep its exit code: the records are complete, and `measure` goes on. Yields
    a sentence on the rows that a task set aside, for the artefact to ship."""
    sweep = made.sweep
    losses = searched_losses(sweep.spec.strategies) or WITHIN
    for task, model in itertools.product(sweep.tasks, sweep.models if sweep.spec.deploy else ()):
        place: dict[str, Any] = {
            **{"task": task, "model": model.name, "sweep": sweep.name, "store": store.location},
            **{name: getattr(options, name) for name in _PLACES},
        }
        spec = sweep.spec
        asked = MeasureOptions(
            **place, formats=spec.deploy, vocabularies=spec.vocabulary, within=losses[-1]
        )
        try:
            if failed := service.export.measure_task(asked).failed:
                say(f"note: {task}: {failed} forms failed. Why: lp-sweep table candidates")
        except LpSweepError as error:
            say(f"note: {task} was not measured as shipped: {error}")
            continue
        chosen = ExportOptions(**place, out=Path(), best=True, fastest=True, within=losses[0])
        try:
            if sweep.tasks[task].test and (found := service.export.test_chosen(chosen)):
                yield f"{task}: {found.sentence()}"
        except LpSweepError as error:
            say(f"note: the test rows of {task} were not scored: {error}")


def compact_many(store: Store) -> None:
    """Merges small files after the last run on a store, if they are so many that readers are slow.
    Without a word if the store refuses: `lp-sweep compact` does the same later."""
    with suppress(StoreError):
        if len(store.singles("trials")) >= MANY_FILES and not Observer(store).living():
            compact(store)


def prepare(options: RunOptions) -> PreparedRun:
    """Reads the sweep file, its inputs and its store, and checks what a run needs. Raises
    SpecError, PreflightError and StoreError."""
    _check_engine(options)
    budget = Budget(options.max_hours)  # its clock starts here
    patience = store_patience(_STORE_PATIENCE)
    if options.retry:
        _check_failures(options, patience)
    check_installed(options.mirrors)
    first = planned(options, patience=patience, cache_dir=options.node_folder)
    selection = Selection()
    if options.retry:
        selection = retry_selection(options.error_type, list(options.trials), first.plan)
    for note in first.sweep.notes:
        say(f"note: {note}")
    with said_if_slow(say, "checking models, data and the room for them ..."):
        checked, data = checks.check(
            first.sweep,
            first.plan.inputs_needed(),
            first.location,
            options.node_folder,
            offline=options.offline,
        )
    for note in checked:
        say(f"note: {note}")
    refused = f"the store does not take the sweep file yet: trying for {patience:g} s"
    with said_if_slow(say, f"{refused} (LP_SWEEP_STORE_PATIENCE) ...", after=5.0, in_logs=True):
        store = Store(first.location, create=True, patience=patience)
        _set_aside(store, first.ledger.unreadable)
        _keep_file(first, options, store)
    if unkept := unkept_note(first.plan, store, first.sweep.spec.keep):
        say(f"note: {unkept}")
    return PreparedRun(options, first, store, selection, budget, rates_of(first, data))


def _check_engine(options: RunOptions) -> None:
    """Raises SpecError for options that name more than one place to train in, or no hours."""
    places = {
        "--inline (in this process)": options.inline,
        "--processes (of this machine)": options.processes,
        "--address (on a cluster)": options.address
        not in (None, from_environment(RunOptions).address),
    }
    named = [place for place, given in places.items() if given]
    if len(named) > 1:
        raise SpecError(
            f"{' and '.join(named)} exclude each other. Keep one of them; LP_SWEEP_INLINE and "
            "LP_SWEEP_PROCESSES count as well."
        )
    number = options.processes
    if number not in (None, GPUS) and not (number.isdecimal() and int(number) > 0):
        raise SpecError(f"--processes {number}: a number from 1, or {GPUS} for one on each GPU.")
    hours = options.max_hours
    if hours is not None and not (isinstance(hours, int | float) and hours >= 0):
        raise SpecError(f"--max-hours {hours!r}: a number from 0, such as 0.5.")


def _check_failures(request: Request, patience: float) -> None:
    """Raises SpecError if the store has no failures, before any input is looked up."""
    location = request.location(request.sweep_file())
    there = is_store(location, patience)
    if not there or not Store(location, patience=patience).names("attempts"):
        raise SpecError(f"nothing has failed in {location}: there is nothing to try again.")


def _set_aside(store: Store, files: Sequence[Unreadable]) -> None:
    """Moves what can't be read out of the way of its new record."""
    for item in files:
        say(f"warning: {item.sentence}")
    damaged = [item for item in files if not item.lost]
    if damaged:
        set_aside(store, damaged)
        aside = store.files.where(SET_ASIDE)
        say(f"note: files that can't be read go to {aside}; what they held is done again")


def _keep_file(first: PreparedPlan, request: Request, store: Store) -> None:
    """Copies the sweep file and its plugins to the store, as it was run."""
    name, places = f"{first.sweep.name}.yaml", run_with(request.file, request.data_dir)
    as_run = redact_text(places) + yaml_text(first.file.document.content)
    if store.read_text("sweeps", name) != as_run:
        store.put_text("sweeps", name, as_run)
    for plugin, text in first.file.plugins.items():  # to read: nothing runs it
        store.put_text("sweeps", f"{first.sweep.name}.{Path(plugin).name}", redact_text(text))
