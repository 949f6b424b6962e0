"""The plan: cells, the trials they share, what the store has, and which work depends on which.

Plain data with queries over it; `planning.py` makes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import NeededInputs, SweepInputs, TaskInput
from lp_sweep.orchestrator.plan.cells import CellAxes
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.searching import SearchState
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.spec.specs import ProfileSpec, Recipe, SpeedSpec, TrialSpec
from lp_sweep.trials.worker.job import Job, Lesson, Measure, ModelPlace, TaskPlace

ModelTask = tuple[str, str]  # their names
State = Literal["done", "failed", "pending", "deferred", "impossible", "not_needed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell, and the trial that answers it."""

    asked: CellAxes
    depth: int
    kept: tuple[int, ...] | None = None  # None while deferred, () if no layer is left
    dropped: tuple[int, ...] | None = None
    trial_id: str | None = None
    profile_id: str | None = None
    state: State = "pending"
    search: SearchState | None = None  # of a strategy with `until: min_layers`

    def row(self) -> dict[str, Any]:
        """The columns of `plan --json`. `k` is the number of dropped layers once that is known."""
        k = len(self.dropped) if self.dropped is not None else self.asked.k
        return {
            **self.asked._asdict(),
            **self.asked.procedure.axes,
            "feed_forward": self.asked.feed_forward.label,
            "k": k,
            "depth": self.depth,
            "kept_layers": list(self.kept) if self.kept is not None else None,
            "dropped_layers": list(self.dropped) if self.dropped is not None else None,
            "trial_id": self.trial_id,
            "profile_id": self.profile_id,
            "search": self.search,
            "state": self.state,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A trial, a profile or a speed measurement, with the inputs that a worker needs."""

    id: str
    spec: TrialSpec | ProfileSpec | SpeedSpec
    model: ModelInput
    task: TaskInput
    start: str | None = None  # the trial whose network it continues from
    lesson: Lesson | None = None  # of a student

    @property
    def pair(self) -> ModelTask:
        return self.model.name, self.task.name

    @property
    def is_full_model(self) -> bool:
        """Whether it trains a network with all its layers, however it learns."""
        spec = self.spec
        return (
            spec.kind == "trial"
            and len(spec.kept_layers) == self.model.depth
            and not spec.removed_feed_forwards
        )

    @property
    def trial(self) -> TrialSpec:
        """The specification of a trial."""
        assert isinstance(self.spec, TrialSpec)
        return self.spec

    @property
    def teacher(self) -> str | None:
        """The trial whose network this one needs while it learns."""
        return self.lesson.watched(self.trial) if self.lesson else None

    def job(self) -> Job:
        """For `lp_sweep.trials.worker.run`; `Plan.job` adds what other work needs from it."""
        model, rows = self.model, self.spec.unlabelled
        return Job(
            id=self.id,
            spec=self.spec,
            model=ModelPlace(model.name, model.path, model.revision, model.depth),
            task=TaskPlace(self.task.name or None, self.task.source),
            start=self.start,
            lesson=self.lesson,
            unlabelled={rows: self.task.source.unlabelled} if rows else {},
            plugin=facts_of(self.task.definition.metric).file,
        )


@dataclass(slots=True, kw_only=True)
class Plan:
    """Cells in the file's order; trials and profiles by identifier, also finished ones."""

    sweep: SweepInputs
    cells: list[Cell] = field(default_factory=list)
    trials: dict[str, Work] = field(default_factory=dict)  # with those that no cell names: stages
    ahead: dict[str, Work] = field(default_factory=dict)  # full models that searches may ask for
    profiles: dict[str, Work] = field(default_factory=dict)  # of pre-trained networks
    measures: dict[str, list[Measure]] = field(default_factory=dict)  # of a trial's network
    speeds: dict[str, Work] = field(default_factory=dict)  # of networks, trained or not
    finders: dict[ModelTask, str] = field(default_factory=dict)  # measurements of `recipe: auto`
    known: WorkHistory = field(default_factory=WorkHistory.nothing)

    def recipe(self, pair: ModelTask) -> Recipe | None:
        """That of the trials of a model on a task; None until a measurement has found it."""
        recipe, finder = self.sweep.recipe, self.finders.get(pair)
        if finder is None:
            return recipe
        found = self.known.recipes.get(finder)
        keys = self.sweep.spec.recipe.automatic
        return found and replace(recipe, **{key: getattr(found, key) for key in keys})

    def deferred(self) -> list[Cell]:
        """Those that wait for a measurement or a search."""
        return [cell for cell in self.cells if cell.state == "deferred"]

    def missing(self) -> list[Work]:
        """All work that is left, with the finished trials of `missing_trials`."""
        profiles = [work for id_, work in self.profiles.items() if id_ not in self.known.profiles]
        return [*profiles, *self.missing_trials(), *self.missing_speeds()]

    def missing_speeds(self) -> list[Work]:
        return [work for id_, work in self.speeds.items() if id_ not in self.known.profiles]

    def work(self, id_: str) -> Work:
        """Raises KeyError for what is not in the plan."""
        return self.profiles.get(id_) or self.speeds.get(id_) or self.trials[id_]

    def is_measurement(self, id_: str) -> bool:
        """Whether it is a profile or a speed, which become rows of PROFILES."""
        return id_ in self.profiles or id_ in self.speeds

    def missing_trials(self) -> list[Work]:
        """Trials without a record, without a measurement, or without a network that others need."""
        lacking = self._unmeasured() | (self.needed_networks() - self.known.networks)
        lacking |= self.trials.keys() - self.known.trials
        return [work for id_, work in self.trials.items() if id_ in lacking]

    def incomplete(self, id_: str) -> bool:
        """Whether a trial lacks its record or a measurement."""
        return id_ not in self.known.trials or bool(self.missing_measures(id_))

    def _unmeasured(self) -> set[str]:
        return {id_ for id_ in self.measures if self.missing_measures(id_)}

    def missing_measures(self, id_: str) -> list[Measure]:
        return [item for item in self.measures.get(id_, ()) if item.id not in self.known.profiles]

    def needs(self, id_: str) -> Set[str]:
        """The trials whose networks, or logits as a teacher, this work needs."""
        return self._networks(id_) | self._missing_teacher(id_)

    def absent(self, id_: str) -> Set[str]:
        """The trials of `needs` that must be done before this work can begin."""
        return (self._networks(id_) - self.known.networks) | self._missing_teacher(id_)

    def _networks(self, id_: str) -> Set[str]:
        work = self.trials.get(id_)
        if work is None or not self.incomplete(id_):
            return frozenset()
        needed = {item.spec.against for item in self.missing_measures(id_)}
        if not self.has_network(id_):
            needed |= {work.start or "", work.teacher or ""}
        return needed - {""}

    def _missing_teacher(self, id_: str) -> Set[str]:
        """The work that makes the teacher's logits, where the store lacks them."""
        lesson = self.trials[id_].lesson if id_ in self.trials else None
        stored = lesson is None or lesson.logits in self.known.profiles
        if lesson is None or stored or self.has_network(id_) or not self.incomplete(id_):
            return frozenset()
        return {lesson.source}

    def has_network(self, id_: str) -> bool:
        """Whether a trial and its network are in the store, so that it can only be measured."""
        return id_ in self.known.trials and id_ in self.known.networks

    def trained_again(self) -> set[str]:
        """The trials with a record whose networks are needed and were not kept."""
        without = (self.trials.keys() & self.known.trials) - self.known.networks
        return without & (self.needed_networks() | self._unmeasured())

    def sources(self) -> set[str]:
        """The trials whose networks any work of the plan needs, done or not."""
        starts = {work.start or "" for work in self.trials.values()}
        starts |= {work.teacher or "" for work in self.trials.values()}
        against = {m.spec.against for items in self.measures.values() for m in items}
        return (starts | against) - {""}

    def needed_networks(self) -> set[str]:
        """The trials whose networks incomplete work needs."""
        return set().union(*map(self._networks, self._dependent()))

    def _dependent(self) -> list[str]:
        """The trials that may need a network of another; most trials need none."""
        return [
            id_
            for id_, work in self.trials.items()
            if work.start or work.lesson or id_ in self.measures
        ]

    def needed(self) -> set[str]:
        """The trials that incomplete work depends on."""
        return set().union(*map(self.needs, self._dependent()))

    def inputs_needed(self) -> NeededInputs:
        """The inputs of the missing work, and of cells that wait for a profile."""
        work = self.missing()
        asked = [cell.asked for cell in self.deferred()]
        models = {item.model.name for item in work} | {cell.model for cell in asked}
        tasks = {item.task.name for item in work} | {cell.task for cell in asked}
        return NeededInputs(
            [model for model in self.sweep.all_models if model.name in models],
            [task for task in self.sweep.tasks.values() if task.name in tasks],
        )

    def failed_with(self, id_: str) -> str | None:
        """The error type of failed work. A finished trial has failed if all its missing
        measurements have."""
        failed = self.known.failed
        if id_ in self.known.trials:
            types = [failed.get(item.id) for item in self.missing_measures(id_)]
            return types[0] if types and all(types) else None
        return failed.get(id_)

    def job(self, work: Work, *, network: bool) -> Job:
        """A worker's job, with the measurements to take. `network`: store the trained network."""
        measures, texts = tuple(self.missing_measures(work.id)), self.unlabelled(work)
        return replace(work.job(), measures=measures, network=network, unlabelled=texts)

    def unlabelled(self, work: Work) -> dict[str, str]:
        """Fingerprint -> file of the unlabelled rows that missing work and measurements read."""
        read = {item.spec.unlabelled for item in self.missing_measures(work.id)}
        read = {*read, work.spec.unlabelled} - {""}
        tasks = self.sweep.tasks.values()
        return {
            task.unlabelled: task.source.unlabelled for task in tasks if task.unlabelled in read
        }

    def totals(self) -> dict[str, int]:
        """Counts of `cells`, `trials`, `profiles`, `measures` and `speeds`, in all and in each
        state, such as `trials_done`."""
        measures = (item.id for items in self.measures.values() for item in items)
        kinds: dict[str, Iterable[str]] = {
            "trials": self.trials,
            "profiles": self.profiles,
            "measures": measures,
            "speeds": self.speeds,
        }
        cells_of = Counter(cell.trial_id for cell in self.cells if cell.trial_id is not None)
        sharing = sum(count for count in cells_of.values() if count > 1)
        totals = {"cells": len(self.cells), "cells_sharing_a_trial": sharing}
        for name, ids in kinds.items():
            work = Counter(state_of(id_, self.known) for id_ in ids)
            of_kind = {f"{name}_{state}": work[state] for state in ("done", "failed", "pending")}
            totals |= {name: work.total(), **of_kind}
        cells = Counter(cell.state for cell in self.cells)
        return totals | {f"cells_{state}": cells[state] for state in get_args(State)}


def state_of(id_: str, known: WorkHistory) -> State:
    """The state of a trial or a profile."""
    if id_ in known.trials or id_ in known.profiles:
        return "done"
    return "failed" if id_ in known.failed else "pending"
