"""Makes a plan from a resolved sweep and what the store holds.

This is a pure function, so that `run` needs no special case after a break, with a changed file or
on a finished sweep: it always does what the plan lists as missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import SweepInputs, TaskInput
from lp_sweep.orchestrator.plan.cells import CellAxes, asked_cells, included_cells, matches
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Cell, Plan, State, Work, state_of
from lp_sweep.orchestrator.plan.searching import SearchState, search_states
from lp_sweep.trials.data.tasks import TaskSource, canonical_name
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.measures.registry import MEASURES
from lp_sweep.trials.model.familytable import family_of
from lp_sweep.trials.spec import procedures
from lp_sweep.trials.spec.autorecipe import FIND_RECIPE
from lp_sweep.trials.spec.feedforward import FeedForward, some_removed
from lp_sweep.trials.spec.identity import ids_by_seed, profile_id, trial_id
from lp_sweep.trials.spec.procedures import DIRECT, Procedure
from lp_sweep.trials.spec.select import dropped_layers, find_strategy, kept_layers
from lp_sweep.trials.spec.specs import (
    TEACHER,
    Distillation,
    ProfileSpec,
    Recipe,
    SpeedSpec,
    TaskDefinition,
    TrialSpec,
)
from lp_sweep.trials.worker.job import Lesson, Measure

_Spec = TypeVar("_Spec", TrialSpec, ProfileSpec)
# cells of a search that are not planned, though their trials are known
_IDLE: dict[SearchState | None, State] = {"waiting": "deferred", "not_needed": "not_needed"}


def make_plan(sweep: SweepInputs, known: WorkHistory) -> Plan:
    """Raises SpecError for an impossible K."""
    plan = Plan(sweep=sweep, known=known)
    builder = _Builder(plan)
    asked = asked_cells(sweep)
    included = frozenset(included_cells(sweep))
    searched = search_states(sweep.spec.strategies, asked, included, builder.foreseen, known)
    plan.cells = [builder.cell(item, searched.get(item)) for item in asked]
    builder.measure_pretrained()
    plan.speeds = _speeds(plan)
    return plan


class _Training(NamedTuple):
    """The trials of a network that differ by their seed."""

    of_any: TrialSpec
    id_of: Callable[[int], str]

    def spec(self, seed: int) -> TrialSpec:
        return replace(self.of_any, seed=seed)


class _Builder:
    """Fills a plan. Keeps what many cells share, for speed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.models = {model.name: model for model in plan.sweep.models}
        spec = plan.sweep.spec
        self.by_id = {
            entry.id: model for entry, model in zip(spec.models, plan.sweep.models, strict=True)
        }
        self.by_id |= plan.sweep.teachers
        self.measured_on = {
            entry.name: entry.measured_on or spec.contribution.measured_on
            for entry in spec.strategies
        }
        self._profile_spec = partial(profile_spec, plan.sweep)
        self._of_full = spec.measure.asked_of("full")
        self._of_pruned = spec.measure.asked_of("pruned")
        # no trial needs the network of another, and none is measured
        self._plain = not (self._of_full or self._of_pruned) and {*spec.trainings} == {
            Procedure(DIRECT)
        }
        self._trainings: dict[tuple[Any, ...], _Training] = {}
        self._profile_ids: dict[tuple[str, str, str], str] = {}
        self._lessons: dict[tuple[Any, ...], Lesson] = {}

    def cell(self, asked: CellAxes, search: SearchState | None) -> Cell:
        """Adds the cell's trial, and everything that it depends on, to the plan."""
        depth, idle = self.models[asked.model].depth, _IDLE.get(search)
        recipe = self._recipe(asked.model, asked.task)
        found = partial(Cell, asked=asked, depth=depth, profile_id=self._profile(asked))
        try:
            dropped = self._dropped(asked)
            if dropped is None or recipe is None:
                return found(state="deferred", search=search)
            kept = kept_layers(depth, dropped)
            training = self._training(asked, kept)
        except ValueError:  # no layer is left, or not those that a feed-forward or a bridge needs
            whole = asked.feed_forward == FeedForward() and not asked.procedure.bridge
            gone = procedures.full_layers(depth) if whole else None
            return found(kept=(), dropped=gone, state="impossible")
        id_ = training.id_of(asked.seed)
        if not idle and id_ not in self.plan.trials:
            self._add_trial(asked, training.spec(asked.seed), id_)
        elif search == "waiting" and asked.k == 0 and self._plain:
            work = Work(
                id=id_,
                spec=training.spec(asked.seed),
                model=self.models[asked.model],
                task=self.plan.sweep.tasks[asked.task],
            )
            self.plan.ahead[id_] = work
        state = idle or state_of(id_, self.plan.known)
        return found(kept=kept, dropped=dropped, trial_id=id_, state=state, search=search)

    def foreseen(self, asked: CellAxes) -> str | None:
        """The identifier of a cell's trial, which is not added; None while its layers or its recipe
        depend on a missing profile. Raises ValueError for an impossible cell."""
        dropped = self._dropped(asked)
        if dropped is None or self._recipe(asked.model, asked.task) is None:
            return None
        kept = kept_layers(self.models[asked.model].depth, dropped)
        return self._training(asked, kept).id_of(asked.seed)

    def _recipe(self, model: str, task: str) -> Recipe | None:
        """That of a model on a task; None until it is found."""
        sweep, pair = self.plan.sweep, (model, task)
        if sweep.finds_recipe(task) and pair not in self.plan.finders:
            spec = self._profile_spec(self.models[model], task, FIND_RECIPE)
            self.plan.finders[pair] = self._add_profile(spec, self.models[model], task)
        return self.plan.recipe(pair)

    def _dropped(self, asked: CellAxes) -> tuple[int, ...] | None:
        """The layers that go; None while they depend on a missing profile. Raises ValueError where
        a threshold leaves none."""
        strategy, k = find_strategy(asked.strategy), asked.k or 0
        if strategy is None or not strategy.measure:
            return dropped_layers(asked.strategy, self.models[asked.model].depth, k)
        if asked.k == 0:
            return ()
        found = self.plan.known.profiles.get(self._profile(asked) or "")
        value = k if asked.threshold is None else asked.threshold
        return None if found is None else strategy.chosen(found, value)

    def _training(self, asked: CellAxes, kept: tuple[int, ...]) -> _Training:
        key = (asked.model, asked.procedure, asked.feed_forward, asked.task, kept)
        if key not in self._trainings:
            spec = self._spec_of_seeds(asked, kept)
            self._trainings[key] = _Training(spec, ids_by_seed(spec))
        return self._trainings[key]

    def _spec_of_seeds(self, asked: CellAxes, kept: tuple[int, ...]) -> TrialSpec:
        """The specification of a cell, whose seed is replaced later."""
        model, task = self.models[asked.model], self.plan.sweep.tasks[asked.task]
        procedure, removal = asked.procedure, asked.feed_forward
        recipe = self._recipe(asked.model, asked.task)
        assert recipe is not None, "deferred"
        spec = TrialSpec(
            model_fingerprint=model.fingerprint,
            kept_layers=kept,
            task=task.definition,
            data_fingerprint=task.fingerprint,
            seed=asked.seed,
            recipe=recipe,
            procedure=procedure.name,
            freeze_dropped=procedure.freeze_dropped,
            epochs_per_layer=procedure.epochs_per_layer,
            removed_feed_forwards=some_removed(removal.rule, kept),
            second_norm=removal.second_norm,
            distill=self._distillation(procedure, model, task),
            bridge=procedure.bridge,
            loss="" if procedure.name == procedures.UNTRAINED else task.loss,
        )
        if spec.bridge:
            procedures.bridged_blocks(kept, model.depth)
        return _of_model(procedures.settled(spec, model.depth), model)

    def _distillation(
        self, procedure: Procedure, model: ModelInput, task: TaskInput
    ) -> Distillation | None:
        """How the trial learns from a teacher. An embedding learns from the pre-trained full model
        without labels, unless its loss is for pairs."""
        distill = procedure.distill
        if kind_of(task.definition).embeds:
            alone = kind_of(task.definition).rows_together(task.loss) > 1
            if procedure.name == procedures.UNTRAINED or alone:
                return None
            return Distillation(teacher=model.fingerprint, fine_tuned=True, alpha=1.0)
        if distill is None:
            return None
        teacher = self.by_id[distill.teacher] if distill.teacher else model
        return distill.with_teacher(
            "" if teacher is model else teacher.fingerprint,
            fine_tuned=teacher.name in self.plan.sweep.teachers,
            unlabelled=task.unlabelled,
        )

    def _add_trial(self, asked: CellAxes, spec: TrialSpec, id_: str) -> str:
        if id_ in self.plan.trials:
            return id_
        model, task = self.models[asked.model], self.plan.sweep.tasks[asked.task]
        first = procedures.stage_one(spec, model.depth)
        first = first and _of_model(first, model)
        start = self._add_trial(asked, first, trial_id(first)) if first else None
        lesson = self._lesson(asked, spec) if spec.distill else None
        self.plan.trials[id_] = Work(
            id=id_, spec=spec, model=model, task=task, start=start, lesson=lesson
        )
        self._measure(id_, asked, spec)
        return id_

    def _lesson(self, asked: CellAxes, spec: TrialSpec) -> Lesson:
        """Adds the teacher and the measurement of its logits to the plan."""
        assert spec.distill is not None
        named = spec.distill.teacher or self.models[asked.model].fingerprint
        model = next(m for m in self.by_id.values() if m.fingerprint == named)
        if spec.distill.fine_tuned:
            item = self._profile_spec(model, asked.task, TEACHER, unlabelled=spec.unlabelled)
            return Lesson("", self._add_profile(item, model, asked.task))
        key = (named, asked.model, asked.task, asked.seed)
        if key not in self._lessons:
            taught = _of_model(procedures.teacher_of(spec, model.depth), model)
            whole = asked._replace(
                model=model.name, procedure=Procedure(DIRECT), feed_forward=FeedForward()
            )
            teacher = self._add_trial(whole, taught, trial_id(taught))
            item = self._profile_spec(
                model, asked.task, TEACHER, trial=teacher, unlabelled=spec.unlabelled
            )
            measure = Measure(profile_id(item), item)
            self.plan.measures.setdefault(teacher, []).append(measure)
            self._lessons[key] = Lesson(teacher, measure.id)
        return self._lessons[key]

    def _measure(self, id_: str, asked: CellAxes, spec: TrialSpec) -> None:
        """Adds the measurements of the trial's network to the plan."""
        everything = procedures.full_layers(self.models[asked.model].depth)
        whole = spec.kept_layers == everything and not spec.removed_feed_forwards
        wanted = []
        for name in self._of_full if whole else self._of_pruned:
            against = ""
            if MEASURES[name].to_full and not whole:
                direct = asked._replace(procedure=Procedure(DIRECT), feed_forward=FeedForward())
                full = self._training(direct, everything)
                against = full.id_of(asked.seed)
                self._add_trial(direct, full.spec(asked.seed), against)
            model = self.models[asked.model]
            item = self._profile_spec(model, asked.task, name, trial=id_, against=against)
            wanted.append(Measure(profile_id(item), item))
        if wanted:
            self.plan.measures.setdefault(id_, []).extend(wanted)

    def measure_pretrained(self) -> None:
        """Adds the measurements of pre-trained models, each on each task."""
        for name in self.plan.sweep.spec.measure.asked_of("pretrained"):
            for model in self.models.values():
                for task in self.plan.sweep.tasks:
                    self._add_profile(self._profile_spec(model, task, name), model, task)

    def _profile(self, asked: CellAxes) -> str | None:
        """Adds the measurement that chooses the cell's layers, if any, and returns its id; None
        also while its recipe is not found: one that trains waits for it."""
        strategy = find_strategy(asked.strategy)
        if strategy is None or not strategy.measure:
            return None
        named = self.measured_on.get(asked.strategy, self.plan.sweep.spec.contribution.measured_on)
        on = asked.task if named == "own" else canonical_name(named) or named
        key = (asked.model, on, strategy.measure)
        if key not in self._profile_ids:
            model = self.models[asked.model]
            recipe = self._recipe(model.name, on)
            spec = self._profile_spec(model, on, strategy.measure, recipe=recipe)
            if recipe is None and spec.recipe is not None:
                return None
            self._profile_ids[key] = self._add_profile(spec, model, on)
        return self._profile_ids[key]

    def _add_profile(self, spec: ProfileSpec, model: ModelInput, task: str) -> str:
        id_ = profile_id(spec)
        task_input = self.plan.sweep.tasks[task]
        work = Work(id=id_, spec=spec, model=model, task=task_input)
        self.plan.profiles.setdefault(id_, work)
        return id_


def _modules_of(spec: TrialSpec | ProfileSpec, model: ModelInput) -> str:
    """`modules` of such work: "" for what looks at no vectors."""
    scores = isinstance(spec, TrialSpec) or spec.measure in (TEACHER, "greedy")
    return model.modules if scores and kind_of(spec.task).embeds else ""


def _corrections_of(spec: TrialSpec | ProfileSpec, model: ModelInput) -> tuple[str, ...]:
    """Those of the model's family, for work that trains by a forward pass of ours."""
    trains = isinstance(spec, ProfileSpec) or spec.procedure != procedures.UNTRAINED
    ours = trains and spec.recipe is not None and spec.recipe.compute != "reference"
    return family_of(model.family).corrections if ours else ()


def _of_model(spec: _Spec, model: ModelInput) -> _Spec:
    """With the fields that depend on the model's files."""
    return replace(spec, modules=_modules_of(spec, model), corrections=_corrections_of(spec, model))


def profile_spec(
    sweep: SweepInputs,
    model: ModelInput,
    task: str,
    measure: str,
    *,
    recipe: Recipe | None = None,
    **settings: Any,
) -> ProfileSpec:
    """`recipe`: the one to train with; None: the sweep's, for what does not train."""
    recipe = recipe or sweep.recipe
    rows, found = sweep.spec.measure.probe_rows, sweep.tasks[task]
    usual = {"max_length": recipe.max_length, "limit_dev": recipe.limit_dev}
    spec = ProfileSpec(
        model_fingerprint=model.fingerprint,
        task=found.definition,
        data_fingerprint=found.fingerprint,
        measure=measure,
        **usual | MEASURES[measure].needs(recipe, rows) | settings,
    )
    return _of_model(spec, model)


# 32 examples, as in the paper's Table 3. At that size a fast GPU waits for its host and layers cost
# less than in a full batch, so a GPU also has a large batch.
BATCHES = {"cpu": (32,), "cuda": (32, 256)}
# of work without a task
NO_TASK = TaskInput("", TaskDefinition(text_columns=()), TaskSource(), "", 0, 0)


def _speeds(plan: Plan) -> dict[str, Work]:
    """Identifier -> the speed of each network of a cell, on each device that the sweep lists."""
    measure = plan.sweep.spec.measure
    specs: dict[SpeedSpec, ModelInput] = {}
    for device_type in measure.speed or ():
        for cell in plan.cells:
            work = plan.trials.get(cell.trial_id or "")
            chosen = not measure.speed_of or any(matches(m, cell.asked) for m in measure.speed_of)
            if work is not None and chosen:
                trial = work.trial  # the network that it ends with
                spec = SpeedSpec(
                    model_fingerprint=trial.model_fingerprint,
                    kept_layers=trial.kept_layers,
                    removed_feed_forwards=trial.removed_feed_forwards,
                    second_norm=trial.second_norm,
                    precision=trial.recipe.precision,
                    device_type=device_type,
                    length=measure.length(work.model.longest_row),
                    batches=tuple(measure.speed_batches or BATCHES[device_type]),
                )
                specs[spec] = work.model
    works = (
        Work(id=profile_id(spec), spec=spec, model=model, task=NO_TASK)
        for spec, model in specs.items()
    )
    return {work.id: work for work in works}
