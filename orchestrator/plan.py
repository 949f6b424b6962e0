"""The plan: cells, the trials they share, what the store has, what waits for a profile.

A pure function of a resolved sweep and of what the store holds, so `run` after a break, with an
amended file or on a finished sweep is the same code: it does what the plan says is missing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lp_sweep.orchestrator.cells import Asked, asked_cells
from lp_sweep.orchestrator.known import Known
from lp_sweep.orchestrator.models import ModelInput
from lp_sweep.orchestrator.resolve import Sweep, TaskInput
from lp_sweep.storage.identity import ProfileSpec, TrialSpec, profile_id, trial_id
from lp_sweep.trials.select import (
    CONTRIBUTION,
    contribution_dropped,
    dropped_layers,
    kept_layers,
)
from lp_sweep.trials.tasks import canonical_name

State = Literal["done", "failed", "pending", "deferred", "impossible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of what was asked for, and the trial that answers it."""

    asked: Asked
    depth: int
    kept: tuple[int, ...] | None = None  # None while deferred, () where no layer would stay
    dropped: tuple[int, ...] | None = None
    trial_id: str | None = None
    profile_id: str | None = None
    state: State = "pending"

    def row(self) -> dict[str, Any]:
        """As `plan --json` prints it. k is the number of dropped layers once that is known."""
        k = len(self.dropped) if self.dropped is not None else self.asked.k
        return {
            **self.asked._asdict(),
            "k": k,
            "depth": self.depth,
            "kept_layers": list(self.kept) if self.kept is not None else None,
            "dropped_layers": list(self.dropped) if self.dropped is not None else None,
            "trial_id": self.trial_id,
            "profile_id": self.profile_id,
            "state": self.state,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A trial or a profile to be done, with the inputs a worker needs."""

    id: str
    spec: TrialSpec | ProfileSpec
    model: ModelInput
    task: TaskInput

    def job(self) -> dict[str, Any]:
        """Plain data for `lp_sweep.trials.run`."""
        return {
            "id": self.id,
            "kind": "profile" if isinstance(self.spec, ProfileSpec) else "trial",
            "spec": asdict(self.spec),
            "model": {
                "name": self.model.name,
                "path": self.model.path,
                "revision": self.model.revision,
                "depth": self.model.depth,
            },
            "task": {"name": self.task.name, "source": asdict(self.task.source)},
        }


@dataclass(slots=True, kw_only=True)
class Plan:
    """Cells in the file's order; trials and profiles by identifier, finished ones too."""

    sweep: Sweep
    cells: list[Cell] = field(default_factory=list)
    trials: dict[str, Work] = field(default_factory=dict)
    profiles: dict[str, Work] = field(default_factory=dict)
    known: Known = field(default_factory=Known.nothing)

    def missing_profiles(self) -> list[Work]:
        return [work for id_, work in self.profiles.items() if id_ not in self.known.profiles]

    def missing_trials(self) -> list[Work]:
        return [work for id_, work in self.trials.items() if id_ not in self.known.trials]

    def totals(self) -> dict[str, int]:
        states = Counter(cell.state for cell in self.cells)
        trials = Counter(self._trial_state(id_) for id_ in self.trials)
        return {
            "cells": len(self.cells),
            "trials": len(self.trials),
            "cells_sharing_a_trial": sum(
                count for count in self.cells_per_trial().values() if count > 1
            ),
            "profiles": len(self.profiles),
            "profiles_done": len(self.profiles) - len(self.missing_profiles()),
            **{f"trials_{state}": trials[state] for state in ("done", "failed", "pending")},
            **{
                f"cells_{state}": states[state]
                for state in ("done", "failed", "pending", "deferred", "impossible")
            },
        }

    def cells_per_trial(self) -> Counter[str]:
        return Counter(cell.trial_id for cell in self.cells if cell.trial_id is not None)

    def _trial_state(self, id_: str) -> State:
        return _state(id_, self.known)


def make_plan(sweep: Sweep, known: Known) -> Plan:
    """Raises SpecError for an impossible K."""
    plan = Plan(sweep=sweep, known=known)
    builder = _Builder(plan)
    plan.cells = [builder.cell(asked) for asked in asked_cells(sweep)]
    return plan


class _Builder:
    """Fills a plan; remembers what many cells share, so that 100,000 of them take seconds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.models = {model.name: model for model in plan.sweep.models}
        own = {s.name: s.measured_on for s in plan.sweep.spec.strategies}
        self.measured_on = own.get(CONTRIBUTION) or plan.sweep.spec.contribution.measured_on
        self._ids: dict[tuple[Any, ...], str] = {}
        self._profile_ids: dict[tuple[str, str], str] = {}

    def cell(self, asked: Asked) -> Cell:
        depth = self.models[asked.model].depth
        profile = self._profile(asked) if asked.strategy == CONTRIBUTION else None
        if asked.threshold is not None and profile is not None:
            cosines = self.plan.known.profiles.get(profile)
            if cosines is None:
                return Cell(asked=asked, depth=depth, profile_id=profile, state="deferred")
            try:
                dropped = contribution_dropped(cosines, asked.threshold)
            except ValueError:  # no layer would stay
                return Cell(
                    asked=asked,
                    depth=depth,
                    kept=(),
                    dropped=kept_layers(depth, ()),
                    profile_id=profile,
                    state="impossible",
                )
        else:
            dropped = dropped_layers(asked.strategy, depth, asked.k or 0)
        kept = kept_layers(depth, dropped)
        trial = self._trial(asked, kept)
        return Cell(
            asked=asked,
            depth=depth,
            kept=kept,
            dropped=dropped,
            trial_id=trial,
            profile_id=profile,
            state=_state(trial, self.plan.known),
        )

    def _trial(self, asked: Asked, kept: tuple[int, ...]) -> str:
        key = (asked.model, asked.procedure, asked.task, asked.seed, kept)
        if key not in self._ids:
            model, task = self.models[asked.model], self.plan.sweep.tasks[asked.task]
            spec = TrialSpec(
                model_fingerprint=model.fingerprint,
                kept_layers=kept,
                task=task.definition,
                data_fingerprint=task.fingerprint,
                seed=asked.seed,
                recipe=self.plan.sweep.recipe,
                procedure=asked.procedure,
            )
            id_ = self._ids[key] = trial_id(spec)
            self.plan.trials.setdefault(id_, Work(id=id_, spec=spec, model=model, task=task))
        return self._ids[key]

    def _profile(self, asked: Asked) -> str:
        named = self.measured_on
        on = asked.task if named == "own" else canonical_name(named) or named
        key = (asked.model, on)
        if key not in self._profile_ids:
            model, task = self.models[asked.model], self.plan.sweep.tasks[on]
            recipe = self.plan.sweep.recipe
            spec = ProfileSpec(
                model_fingerprint=model.fingerprint,
                task=task.definition,
                data_fingerprint=task.fingerprint,
                max_length=recipe.max_length,
                limit_dev=recipe.limit_dev,
            )
            id_ = self._profile_ids[key] = profile_id(spec)
            self.plan.profiles.setdefault(id_, Work(id=id_, spec=spec, model=model, task=task))
        return self._profile_ids[key]


def _state(id_: str, known: Known) -> State:
    if id_ in known.trials:
        return "done"
    return "failed" if id_ in known.failed else "pending"
