"""Prints the end of a run: its result and the next command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.orchestrator.plan.naming import not_needed
from lp_sweep.orchestrator.plan.selection import failed_work, policy, retry_selection
from lp_sweep.orchestrator.sweepfile.axes import WITHIN, searched_losses
from lp_sweep.storage.errors import LpSweepError, SpecError
from lp_sweep.storage.printable import said_if_slow

if TYPE_CHECKING:
    from lp_sweep.orchestrator.engine.runoptions import RunOptions
    from lp_sweep.orchestrator.plan.plan import Plan
    from lp_sweep.orchestrator.service.run import RunResult
    from lp_sweep.orchestrator.sweepfile.axes import StrategyEntry

_FAILURES_SHOWN = 10
_TOO_FEW = 0.01  # hours, in which nothing begins


def farewell(result: RunResult, options: RunOptions, *, as_json: bool, same: str = "") -> int:
    """Prints the result on stderr, and JSON on stdout if asked. Returns the exit code. `same`: the
    command that continues, if the one that was typed does more than a run."""
    for line in _lines(result, options, same):
        say(line)
    for sentence in () if same else result.held_out:  # last: it is no choice made on the dev set
        say(sentence)
    if as_json:
        emit(json.dumps(result.summary()))
    return result.exit_code


def _lines(result: RunResult, options: RunOptions, same: str) -> Iterator[str]:
    options = replace(options, store=result.store.location)
    again = same or options.again("run")
    retry = options.again("retry", trials=(), error_type=None)
    where = shlex.quote(result.store.location)
    if result.stopped_by == "max-hours":
        yield f"this run has used {result.hours:.2f} hours; the next one starts counting at 0."
        yield "An interrupted trial continues from its last checkpoint."
    yield from _failures(result.failed, where)
    if result.unkept:
        yield (
            f"networks that could not be kept: {result.unkept}, although their trials are done. "
            f"Train one again: lp-sweep export TRIAL --out FOLDER --store {where}"
        )
    if result.stopped_by:
        yield from _stopped(result, _again(result, options, same), retry)
    elif left := result.left_failed:
        kinds = "trials and measurements"
        yield f"{result.done} done in this run; {left} of the sweep's {kinds} failed."
        what = "Retry them" if _may_work(result.plan) else "They would probably fail again. Retry"
        yield f"{what}: {retry}"
    elif pending := len(result.plan.missing()):
        yield f"{result.done} done in this run, {pending} pending. Go on: {again}"
    else:
        yield from _answer(result, goes_on=bool(same))
        yield f"complete: {_done(result)}. Records: {result.store.location}"
        if skipped := result.plan.totals()["cells_not_needed"]:
            yield not_needed(skipped)
        yield f"next: {answer_command(result.plan.sweep.spec.strategies, where)}"


def _may_work(plan: Plan) -> bool:
    """Whether some failure of the plan's work may be over."""
    failed = plan.known.failed
    return any(policy(failed[id_]).by_itself for id_ in failed_work(plan) if id_ in failed)


def _answer(result: RunResult, *, goes_on: bool) -> Iterator[str]:
    """Layers needed for each task, and what to do with them; a note if they can't be read."""
    from lp_sweep.analysis.report.answer import closing_lines

    losses = searched_losses(result.plan.sweep.spec.strategies)
    loss = losses[0] if losses else WITHIN[0]
    try:
        with said_if_slow(say, "reading the results for the answer ..."):
            lines = closing_lines(result.store, result.plan.sweep.name, loss, goes_on=goes_on)
        yield from lines
    except LpSweepError as error:
        yield f"note: no answer could be read from the store: {error}"


def _again(result: RunResult, options: RunOptions, same: str) -> str:
    """The command that goes on with what was stopped. After a `retry` of named trials it names
    those that are left."""
    if same:
        return same + " --even-if-not-learned" * (result.stopped_by == "nothing-learned")
    changed: dict[str, object] = {}
    if result.stopped_by == "nothing-learned":
        changed = {"even_if_not_learned": True}
    elif result.stopped_by == "max-hours" and result.hours < _TOO_FEW:
        changed = {"max_hours": None}
    left = [name for name in options.trials if _is_left(name, result)]
    if options.retry and (left or not options.trials):
        return options.again("retry", trials=left, **changed)
    return options.again("run", **changed)


def _is_left(name: str, result: RunResult) -> bool:
    """Whether a trial that `retry` named failed before this run, and has not been done since."""
    try:
        ids = retry_selection(None, [name], result.plan).ids
    except SpecError:
        return False
    return not ids & result.failed.keys()


def _failures(failed: dict[str, str], where: str) -> Iterator[str]:
    for id_, error_type in list(failed.items())[:_FAILURES_SHOWN]:
        yield f"failed: {id_} ({error_type}). Why: lp-sweep logs {id_} --store {where}"
    if len(failed) > _FAILURES_SHOWN:
        yield f"... and {len(failed) - _FAILURES_SHOWN} more: lp-sweep status --store {where}"


def _stopped(result: RunResult, again: str, retry: str) -> Iterator[str]:
    if result.stopped_by == "store":
        yield f"stopped: the store was unreachable for too long: {result.stop_detail}"
        waiting = f"{len(result.spooled)} finished trials wait in their nodes' spools"
        stored = "All finished trials are in the store."
        yield f"{waiting}; the next run stores them." if result.spooled else stored
        yield f"Fix the store, then go on: {again}"
    elif result.stopped_by == "ray":
        yield f"stopped: Ray was lost: {result.stop_detail}."
        yield f"{result.done} done in this run. Go on: {again}"
    elif result.stopped_by == "failures":
        yield f"stopped after {len(result.failed)} failures. Go on with the rest: {again}"
        yield f"Retry the failed trials: {retry}"
    elif result.stopped_by == "nothing-learned":
        those = "trial was" if result.stop_detail == "1" else "trials were"
        yield (
            f"stopped: {result.stop_detail} {those} not started, since the full model did "
            f"not learn (see above). {result.done} done in this run."
        )
        yield f"Change the recipe, or train them all the same: {again}"
    else:
        by = "Ctrl-C" if result.stopped_by == "SIGINT" else result.stopped_by
        yield f"stopped by {by}: {result.done} done in this run. Go on: {again}"


def _done(result: RunResult) -> str:
    what = f"{result.done} done in this run" if result.done else "nothing was missing"
    if result.done_elsewhere:
        what += f", {result.done_elsewhere} by another run"
    return what


def answer_command(strategies: Iterable[StrategyEntry], where: str) -> str:
    """The command that prints a sweep's answers, for the losses that it searched for."""
    losses = searched_losses(strategies)
    named = f" --within {','.join(f'{loss:g}' for loss in losses)}"
    return (
        f"lp-sweep table min-layers{named if losses not in ([], [*WITHIN]) else ''} --store {where}"
    )
