"""Handles the events of a run, and writes the driver's own records. Every engine reports here;
nothing here knows Ray."""

from __future__ import annotations

import datetime as dt
import math
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.analysis.notes import learned_nothing
from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.progress import Facts, Note, Reporter
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.inputs.data import FEWEST_STEPS
from lp_sweep.orchestrator.plan.listing import relisted, with_earlier
from lp_sweep.orchestrator.plan.plan import ModelTask, Plan, Work
from lp_sweep.storage import underway
from lp_sweep.storage.errors import DivergedError, StoreError
from lp_sweep.storage.printable import guess_name, listed, short_model
from lp_sweep.storage.runs import Announcement, Presence
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.setups import EARLIER
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.fetch import announce
from lp_sweep.trials.worker.job import Answer, Failure, Place, attempt_row

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 2.0  # between two looks at the work of other runs
_SHORT_SECONDS = 0.02  # a claim that takes no longer needs no rest
_LONGEST_REST = 10.0  # seconds: a claim may have waited for minutes until the store was back
_GRACE_SECONDS = 25.0  # for trials to end, or to write their checkpoints, before the run leaves


class StopSignals:
    """Notes SIGTERM and SIGHUP in `received`, by name. Only after `arm` do they interrupt the run:
    there is no clean way out of an import, or of Ray's start. SIGUSR1, which a batch system sends
    some time before it ends a job, uses up the `budget`: trials write their checkpoints."""

    def __init__(self, budget: Budget) -> None:
        self.received: list[str] = []
        self._armed, self._budget = False, budget
        self._numbers: list[signal.Signals] = []

    @contextmanager
    def caught(self) -> Iterator[StopSignals]:
        """Main thread only."""
        # under nohup a closed terminal stays ignored
        self._numbers = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._stop) for number in self._numbers}
        before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, lambda *_: self._budget.leave())
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def arm(self) -> None:
        """From now on a signal raises KeyboardInterrupt; at once, if one has come before. Sets the
        handlers again, since `ray.init` replaces the one of SIGTERM."""
        for number in self._numbers:
            signal.signal(number, self._stop)
        self._armed = True
        if self.received:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: object) -> None:
        del frame
        self.received.append(signal.Signals(number).name)
        # before `arm` Ray's own handler runs first; its alarm would abort the process in 3 s
        signal.alarm(0)
        if self._armed:
            raise KeyboardInterrupt


class Budget:
    """Counts the hours by the clock that a run has used. `max_hours`: None is no limit; the clock
    starts here."""

    def __init__(
        self, max_hours: float | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_hours, self.now, self._begun = max_hours, now, now()
        self._end: float | None = None  # of the grace period
        self._why = "max-hours"

    def leave(self) -> None:
        """From now on the limit is reached."""
        self._max_hours, self._why = 0.0, "SIGUSR1"

    @property
    def hours(self) -> float:
        """Used until now."""
        return (self.now() - self._begun) / 3600

    def seconds_left(self) -> float:
        hours = math.inf if self._max_hours is None else self._max_hours
        return max(0.0, 3600 * (hours - self.hours))

    def reached(self, queue: WorkQueue, warn: Callable[[], object]) -> bool:
        """Whether live trials must end now. At the limit nothing more is handed out, and `warn`
        tells live trials, which have half a minute."""
        if self._end is None:
            if self._max_hours is None or self.hours < self._max_hours:
                return False
            queue.stop(self._why)
            if queue.live:
                warn()
            self._end = self.now() + _GRACE_SECONDS
        return not queue.live or self.now() >= self._end


class Loss(NamedTuple):
    """How a worker was lost: `message` is a line, `details` Ray's whole text."""

    error_type: str
    message: str
    details: str


def blocked_by(need: str) -> Loss:
    """The loss of a trial that never began because the trial it continues from failed."""
    message = f"it needs the network of {need}, which failed: see `lp-sweep logs {need}`"
    return Loss("missing_input", message, message)


class Recorder:
    """`part`: the run covers a part of its sweep, so the other cells stay listed. `overrides`: the
    run's, quoted for a shell, for the command that continues it."""

    def __init__(self, store: Store, *, part: bool, command: str, overrides: str = "") -> None:
        self.store, self.part, self.command = store, part, command
        self.overrides = overrides
        self._as_run: str | None = None  # the store's copy of the sweep file, when the run began

    def cells(self, plan: Plan) -> None:
        """Writes the sweep's cells, for the views, unless the store has them. Once a later run has
        begun with another sweep file, it writes only what it knows of that run's cells."""
        name = plan.sweep.name
        listed = self.store.find("sweeps", name) or []
        listing = relisted(plan, listed, part=self.part, overrides=self.overrides)
        # the first line says where the file was
        as_run = (self.store.read_text("sweeps", f"{name}.yaml") or "").partition("\n")[2]
        if self._as_run is None:
            self._as_run = as_run
        elif self._as_run != as_run:
            listing = listing.within(listed)
        if listing.replaced:  # written first, so that no cell is ever missing from both tables
            earlier = with_earlier(self.store.find(EARLIER, name) or [], listing)
            self.store.put(EARLIER, name, pa.Table.from_pylist(earlier, TABLES[EARLIER]))
        rows = pa.Table.from_pylist(listing.cells, TABLES["sweeps"])
        if rows.to_pylist() != listed:
            self.store.put("sweeps", name, rows)

    def lost(self, work: Work, loss: Loss, *, final: bool) -> None:
        """Writes the attempt of a worker that could not do so itself."""
        row = attempt_row(
            work.id,
            work.job(),
            Failure(loss.error_type, loss.message, loss.details),
            final=final,
            command=self.command,
            host=socket.gethostname(),
            ended_at=dt.datetime.now(dt.UTC),
        )
        self.store.put("attempts", row["attempt_id"], [row])


class Course:
    """Gives work to an engine, and handles what the engine reports, in one thread at a time.
    Once `must_end` is true, the engine drops its live work and returns."""

    def __init__(
        self,
        queue: WorkQueue,
        recorder: Recorder,
        reporter: Reporter,
        options: RunOptions,
        presence: Presence,
        budget: Budget,
    ) -> None:
        self.queue, self.recorder, self.reporter = queue, recorder, reporter
        self.options, self.presence, self.budget = options, presence, budget
        queue.pace.most = budget.seconds_left
        # the engine's: runs a plain function on each node; returns node -> its result
        self.everywhere: Callable[..., Mapping[str, Any]] = lambda function, *arguments: {}
        self.full_models = FullModels(queue)
        self.must_end = False
        self._looked = self._rests_until = -math.inf
        self._met: dict[str, Announcement] = {}  # other runs with a note

    def meet_others(self) -> None:
        """Notes the other runs on the store, once this one is announced."""
        others = self.presence.others()
        if not others:
            underway.forget(self.queue.store)
        for run in others:
            shared = f"another run uses this store, and this one shares the work: {run.sentence()}"
            self.meet(run, shared)

    def meet(self, run: Announcement, text: str) -> None:
        """Shows a note about another run, until that run ends."""
        self._met[run.run_id] = run
        self.reporter.note(text, run.run_id)

    def tick(self) -> None:
        """Called every few seconds, so that the display moves on between events."""
        for id_ in self._met.keys() - self.presence.alive:
            run = self._met.pop(id_)
            ended = f"the other run has ended: sweep {run.sweep!r} on {run.host} (pid {run.pid})"
            self.reporter.note(ended, id_, ends=True)
            self.judge_full_models()
        self.reporter.tick()

    def judge_full_models(self) -> None:
        """Judges those that are done already, by an earlier run or by another one."""
        if self.goes_on:
            return
        for work in [work for work in self.queue.plan.trials.values() if work.is_full_model]:
            self._judge(work)

    def _judge(self, work: Work) -> None:
        """Notes a full model that did not learn, and leaves out its other trials: their scores
        would say nothing about their layers."""
        if note := self.full_models.note(work):
            self.reporter.note(*note)
            if not self.goes_on:
                self.queue.leave_out(work.pair, out=not note.ends)

    @property
    def goes_on(self) -> bool:
        """Whether pruned networks are trained although their full model did not learn."""
        return self.options.even_if_not_learned or self.options.retry

    def check(self) -> bool:
        """Called often: whether the run must end now."""
        if self.budget.reached(self.queue, self._warn):
            self.must_end = True
        return self.must_end

    def _warn(self) -> None:
        """Tells the live trials of every node that the run ends soon."""
        self.everywhere(announce, self.options.node_folder, _GRACE_SECONDS)

    def take(self, slots: int = 1) -> Work | None:
        """Returns the next piece of work, if there is one now, for the first of so many idle slots.
        A store that stays unreachable stops the run without losing anything.

        An engine asks after each trial that ends. With a claim for each, a distant store would keep
        the driver busy and its slots idle, so claims take at most a quarter of the time: the slots
        that become idle meanwhile are claimed for together."""
        now, live = self.budget.now, self.queue.live
        began = now()
        if live and not self.queue.claimed and began < self._rests_until:
            return None
        work = None
        with self._store_errors_kept():
            work = self.queue.take(slots)
            if work is None and now() - self._looked > _LOOK_SECONDS:
                self._looked = now()
                self.queue.look_elsewhere()
                work = self.queue.take(slots)
        if (ended := now()) - began > _SHORT_SECONDS:
            self._rests_until = ended + min(3 * (ended - began), _LONGEST_REST)
        return work

    def place(self, slots: Slots) -> Place:
        """Returns where and how workers run. Without `slots.cpus` they have the process's own
        number of threads."""
        store, spec = self.recorder.store, self.queue.plan.sweep.spec
        return Place(
            store=store.location,
            store_patience=store.patience,
            cache_dir=self.options.node_folder,
            offline=self.options.offline,
            threads=int(slots.cpus) if slots.cpus and not slots.gpus else None,
            device="auto" if slots.gpus else "cpu",  # a slot without a GPU must not use one
            checkpoint_every=spec.checkpoint_every,
            keep=spec.keep,
            command=self.recorder.command,
        )

    def job(self, work: Work, place: Place) -> dict[str, Any]:
        """Returns all that a worker must know, as plain data."""
        return replace(self.queue.job(work), place=place).to_plain()

    def ended(self, work: Work, answer: Mapping[str, Any]) -> None:
        """Handles a worker's answer."""
        told = Answer.from_plain(answer)
        if told.unkept:
            if not self.queue.unkept:  # the others are counted at the end
                self.reporter.note(f"the network of {work.id} could not be kept: {told.unkept}")
            self.queue.unkept.add(work.id)
        if told.status == "failed":
            with self._store_errors_kept():
                self.queue.ended(work.id, told.error_type)
            self._failed(work, told.error_type, told.message)
        elif told.status == "done":
            with self._store_errors_kept():
                self.queue.ended(work.id, None, told.measures_failed)
            self.reporter.ended(work.id, "done", *_outcome(told))
            self._judge(work)
        else:
            self.queue.not_stored(work.id, told.message, spooled=told.status == "spooled")
            self.reporter.ended(work.id, told.status, told.message)

    def lost(self, work: Work, loss: Loss) -> None:
        """Handles a worker that could not answer: its work is retried as often as the type of
        failure allows."""
        again = False
        with self._store_errors_kept():  # from work that waited for it
            again = self.queue.lost(work.id, loss.error_type)
        with self._store_errors_kept():
            self.recorder.lost(work, loss, final=not again)
        if again:
            told = f"{loss.error_type}; it is tried again"
            self.reporter.ended(work.id, "lost", told, {"type": loss.error_type})
        else:
            self._failed(work, loss.error_type, loss.message)

    def _failed(self, work: Work, error_type: str, message: str) -> None:
        self.reporter.ended(work.id, "failed", f"{error_type}: {message}", {"type": error_type})
        self._judge(work)
        if self.options.too_many(len(self.queue.failed)):
            self.queue.stop("failures")
            self.must_end = self.must_end or self.options.fail_fast

    @contextmanager
    def _store_errors_kept(self) -> Iterator[None]:
        """An unreachable store ends the run cleanly, whatever the engine does with exceptions."""
        try:
            yield
        except StoreError as error:
            self.queue.stop("store", str(error))


def _outcome(told: Answer) -> tuple[str, Facts]:
    """In words and in numbers: without a score for a measurement, and for a metric that is not
    finite."""
    score = 100 * told.last if math.isfinite(told.last) else None
    facts = {"score": score, "metric": told.metric, "seconds": told.seconds}
    if told.metric is None:
        return f"{told.seconds:.0f} s", facts
    failed = [f"; measurement {id_} failed: {kind}" for id_, kind in told.measures_failed.items()]
    words = f"{told.metric} {100 * told.last:.2f}, {told.seconds:.0f} s{''.join(failed)}"
    return words, facts


_COLUMNS = ("trial_id", "last", "majority", "dev_blind", "steps", "learning_rate")


class FullModels:
    """Notices full models that did not learn their task: no pruned network can be judged by them.

    All seeds that the sweep asks for count, not the first alone: of a small data set some seeds of
    a large model often fail while the others learn."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._plan: Plan | None = None
        self._seeds: dict[ModelTask, list[str]] = defaultdict(list)  # of the plan's full models
        self._judged: dict[ModelTask, tuple[list[str], bool]] = {}  # seeds, and whether they failed

    def note(self, work: Work) -> Note | None:
        """Returns a note once all seeds of a full model have ended, and each scores no better than
        guessing, or diverged; and a second one if a later seed, which a search asked for, does."""
        pair, plan = work.pair, self._queue.plan
        known, before = self._judged.get(pair, ([], None))
        if before is False or not work.is_full_model or not (seeds := self._ended_seeds(pair)):
            return None
        if seeds == known:
            return None
        scored = [id_ for id_ in seeds if not self._diverged(id_)]
        rows = self._records(scored)
        if rows is None:
            return None
        failed = all(map(learned_nothing, rows))
        self._judged[pair] = seeds, failed
        if failed == bool(before):
            return None
        name = f"the full {short_model(pair[0])}"
        points = ("nothing" if row["last"] is None else f"{100 * row['last']:.2f}" for row in rows)
        scores, about = listed(points, 5), f"{pair[1]}, {pair[0]}"
        if not failed:
            learned = f"{name} learned {pair[1]} with a later seed: it scores {scores}"
            return Note(learned, about, ends=True)
        if len(scored) < len(seeds):
            why = "it diverged" + f", or scores {scores}" * bool(rows)
            advice = "Lower recipe.learning_rate"
        else:
            guess = 100 * max(row["majority"] for row in rows)
            named = guess_name(work.task.definition.kind)
            why = f"it scores {scores}, and {named} scores {guess:.2f}"
            advice = _advice(rows[0], auto=bool(plan.sweep.spec.recipe.automatic))
        said = f"{name} did not learn {pair[1]}: {why}"
        return Note(f"{said}. No pruned network can be judged by it. {advice}", about)

    def _records(self, trials: list[str]) -> list[dict[str, Any]] | None:
        """None if the store does not give them all now."""
        try:
            found = self._queue.store.asked_once().read_all("trials", trials, _COLUMNS).rows
        except StoreError:
            return None
        return found.to_pylist() if len(found) == len(trials) else None

    def _diverged(self, id_: str) -> bool:
        """Whether it failed for good, in this run or before."""
        queue, known = self._queue, self._queue.plan.known
        if id_ in queue.done | known.trials or queue.state.get(id_) == "pending":
            return False
        return (queue.failed.get(id_) or known.failed.get(id_)) == DivergedError.kind

    def _ended_seeds(self, pair: ModelTask) -> list[str]:
        """The trials of a full model; none while one of them is neither done nor diverged."""
        done, plan = self._queue.done, self._queue.plan
        if plan is not self._plan:  # it grows; to go through it at each end would take too long
            self._plan = plan
            self._seeds.clear()
            for work in plan.trials.values():
                if work.is_full_model:
                    self._seeds[work.pair].append(work.id)
        seeds = self._seeds[pair]
        ended = (id_ in done or id_ in plan.known.trials or self._diverged(id_) for id_ in seeds)
        return seeds if all(ended) else []


def _advice(record: Mapping[str, Any], *, auto: bool) -> str:
    """Says what to try. `record`: of a full model that did not learn; `auto`: as `recipe: auto`."""
    if blind := record["dev_blind"]:
        return f"The cause may be the data: {blind}. Give other or more dev rows"
    steps, rate = record["steps"], record["learning_rate"]
    few = f" ({steps} optimiser steps are few)" if steps < FEWEST_STEPS else ""
    first = "" if auto else "`recipe: auto`, or by hand "
    higher = f"a higher recipe.learning_rate (it is {rate:g})"
    return f"Try {first}{higher}, more recipe.epochs{few}, more rows"
