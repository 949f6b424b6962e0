"""The sweep file as a whole: its keys, and which of them go together.

These checks need no model and no data. `inputs/resolve.py` and `plan/cells.py` make those that do:
depths, impossible K, missing files.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from lp_sweep.orchestrator.sweepfile import axes, entries
from lp_sweep.orchestrator.sweepfile.axes import StrategyEntry, training
from lp_sweep.orchestrator.sweepfile.entries import ModelEntry, TaskEntry, listed, named
from lp_sweep.storage.printable import choose
from lp_sweep.storage.printable import listed as listed_names
from lp_sweep.trials.data.tasks import canonical_name
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.spec.feedforward import NONE, FeedForward
from lp_sweep.trials.spec.procedures import DIRECT, PROCEDURES, UNTRAINED, Procedure
from lp_sweep.trials.spec.specs import ArtefactFormat, Vocabulary

_APART = "Put one of the two into its own sweep: sweeps over one store share trials."


class SweepSpec(entries.Entry):
    """A whole sweep file."""

    schema_version: Literal[1] = Field(description="version of this format")
    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="letters, digits, `.`, `_` and `-`; a store may hold several sweeps",
    )
    models: Annotated[
        list[Annotated[ModelEntry, BeforeValidator(named("id"))]], BeforeValidator(listed)
    ] = Field(min_length=1, description="pre-trained encoders")
    procedures: axes.Procedures = Field(
        default=["direct"],
        min_length=1,
        description="when layers are dropped: before fine-tuning (direct), after it, or one by one",
    )
    distill: axes.Distills = Field(
        default=["none"],
        min_length=1,
        description="`none`, `logits`, `logits+hidden`: whether pruned networks also learn from "
        "the full network",
    )
    bridge: axes.Bridges = Field(
        default=["none"],
        min_length=1,
        description="`none`, `linear`: whether a fitted linear map, merged into the layer below, "
        "replaces each dropped block of layers",
    )
    feed_forward: axes.FeedForwards = Field(
        default=["none"], min_length=1, description="kept layers that lose their feed-forward block"
    )
    tasks: Annotated[
        list[Annotated[TaskEntry, BeforeValidator(named("name"))]], BeforeValidator(listed)
    ] = Field(min_length=1, description="GLUE by name, or your own data")
    strategies: Annotated[  # after the tasks, which `measured_on` names
        list[Annotated[StrategyEntry, BeforeValidator(named("name"))]], BeforeValidator(listed)
    ] = Field(min_length=1, description="which layers to drop")
    seeds: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**31)]], BeforeValidator(entries.seed_list)
    ] = Field(
        default=[42],
        min_length=1,
        description="`42-46`, `{from: 42, to: 46}` and `{from: 42, count: 5}` also work",
    )
    recipe: Annotated[
        entries.RecipeEntry,
        BeforeValidator(
            entries.recipe_of_auto,
            json_schema_input_type=entries.RecipeEntry | Literal["auto"],
        ),
    ] = Field(
        entries.RecipeEntry(),
        description="how each network is fine-tuned; auto: the learning rate and the epochs are "
        "found for each model and task",
    )
    contribution: entries.ContributionEntry = Field(
        entries.ContributionEntry(), description="how the contribution of layers is measured"
    )
    measure: axes.MeasureEntry = Field(
        axes.MeasureEntry(), description="measurements of networks, besides the scores"
    )
    plugins: Annotated[list[str], BeforeValidator(listed)] = Field(
        default=[],
        description="files (`my.py`) or entry points with strategies and metrics of your own",
    )
    include: entries.Cells = Field(default=[], description="cells to add")
    exclude: entries.Cells = Field(default=[], description="cells to leave out")
    data_dir: str | None = Field(None, description="GLUE from a folder, not from the hub")
    store: str | None = Field(
        None,
        description="where records go: a folder or `s3://bucket/prefix`; `--store` overrides it",
    )
    resources_per_trial: entries.Resources = Field(
        entries.Resources(), description="by default one GPU, or a group of cores on a CPU machine"
    )
    trials_per_gpu: int = Field(
        1, ge=1, le=100, description="small trials that share a GPU; best with NVIDIA's MPS"
    )
    checkpoint_every: Annotated[
        float | None, BeforeValidator(entries.duration, json_schema_input_type=float | str | None)
    ] = Field(
        300.0, description="seconds, or 30s, 5m, 1h, off; a shorter trial writes no checkpoint"
    )
    keep: Literal["none", "best", "all"] = Field(
        "none", description="trained weights to keep; best: only the best seed of each network"
    )
    deploy: Annotated[list[ArtefactFormat], BeforeValidator(listed)] = Field(
        default=[],
        description="forms in which the best network of each depth is measured as it is shipped, "
        "at the end of a run: `torch`, `onnx`, `onnx-int8`; needs `keep: best` or `all`",
    )
    vocabulary: Annotated[list[Vocabulary], BeforeValidator(listed)] = Field(
        default=["full"],
        min_length=1,
        description="of `deploy`: `full`, or `task`, cut to the pieces that the train rows use",
    )

    @property
    def trainings(self) -> list[Procedure]:
        """Each procedure with each distillation and bridge."""
        choices = itertools.product(self.procedures, self.distill, self.bridge)
        return [*dict.fromkeys(training(*choice) for choice in choices)]

    @property
    def removals(self) -> list[FeedForward]:
        return [FeedForward.parse(label) for label in self.feed_forward]

    @property
    def has_students(self) -> bool:
        """Whether networks learn from a teacher."""
        return self.distill != [NONE]

    @property
    def teachers(self) -> list[str]:
        """The folders of teachers that are not models of the sweep."""
        named = dict.fromkeys(found.teacher for found in self.trainings)
        return [name for name in named if name and name not in {model.id for model in self.models}]

    @field_validator("distill")
    @classmethod
    def _known_teachers(cls, distills: list[str], info: ValidationInfo) -> list[str]:
        models = [model.id for model in info.data.get("models", ())]
        for procedure, distill in itertools.product(info.data.get("procedures", ()), distills):
            teacher = training(procedure, distill).teacher
            if models and teacher and not entries.is_folder(teacher):
                choose("teacher", teacher, ["full", *models, "./FOLDER"])
        return distills

    @field_validator("bridge")
    @classmethod
    def _allowed_bridges(cls, bridges: list[str], info: ValidationInfo) -> list[str]:
        for procedure, bridge in itertools.product(info.data.get("procedures", ()), bridges):
            training(procedure, NONE, bridge)
        return bridges

    @field_validator("feed_forward")
    @classmethod
    def _without_bridges(cls, labels: list[str], info: ValidationInfo) -> list[str]:
        if (reduced := _reduced(labels)) and info.data.get("bridge", [NONE]) != [NONE]:
            raise ValueError(
                f"a bridge is merged into a feed-forward, but feed_forward has {reduced}. {_APART}"
            )
        return labels

    @field_validator(
        *("models", "tasks", "procedures", "distill", "bridge", "feed_forward", "strategies"),
        *("seeds", "deploy", "vocabulary", "plugins"),
    )
    @classmethod
    def _each_once(cls, entries: list[Any]) -> list[Any]:
        counts = Counter(map(_name, entries))
        if twice := [str(name) for name, count in counts.items() if count > 1]:
            raise ValueError(f"{listed_names(twice)} is listed twice. Keep one of them.")
        return entries

    @field_validator("deploy")
    @classmethod
    def _kept(cls, formats: list[str], info: ValidationInfo) -> list[str]:
        if formats and info.data.get("keep") == "none":
            raise ValueError("deploy measures networks that were kept: add `keep: best`")
        return formats

    @field_validator("vocabulary")
    @classmethod
    def _shipped(cls, vocabularies: list[str], info: ValidationInfo) -> list[str]:
        if vocabularies != ["full"] and info.data.get("deploy") == []:
            raise ValueError("vocabulary is of what `deploy` measures: add `deploy: [onnx-int8]`")
        return vocabularies

    @field_validator("trials_per_gpu")
    @classmethod
    def _one_share(cls, number: int, info: ValidationInfo) -> int:
        resources = info.data.get("resources_per_trial")
        if number > 1 and resources is not None and resources.gpu is not None:
            raise ValueError(
                f"trials_per_gpu is {number} and resources_per_trial.gpu {resources.gpu:g}: both "
                "set a trial's share of a GPU. Keep one of them."
            )
        return number

    @field_validator("seeds")
    @classmethod
    def _enough_seeds(cls, seeds: list[int], info: ValidationInfo) -> list[int]:
        for entry in info.data.get("strategies", ()):
            if (entry.max_seeds or 0) > len(seeds):
                raise ValueError(
                    f"strategy {entry.name!r} has max_seeds: {entry.max_seeds}, but the sweep has "
                    f"only {len(seeds)} seeds. Add seeds, or lower max_seeds."
                )
        return seeds

    @field_validator("tasks")
    @classmethod
    def _trainable(cls, tasks: list[TaskEntry], info: ValidationInfo) -> list[TaskEntry]:
        """Checks that each task has the procedures and distillations of the sweep. An embedding
        exists before any training, and imitates the full model without `distill:`."""
        procedures, distills = (info.data.get(name, ()) for name in ("procedures", "distill"))
        for task in tasks:
            embeds = KINDS[task.kind].embeds
            name = f"task {task.name!r} (kind {task.kind})"
            allowed = {DIRECT, UNTRAINED} if embeds else {*PROCEDURES} - {UNTRAINED}
            for label in procedures:
                if Procedure.parse(label).name not in allowed:
                    others = listed_names(sorted(allowed))
                    raise ValueError(f"{name} has no procedure {label!r}. Use {others}.")
            if embeds and [*distills] != [NONE]:
                raise ValueError(f"{name} imitates the full model anyway: remove `distill:`")
            if KINDS[task.kind].words and any("hidden" in label for label in distills):
                raise ValueError(f"{name} has no sentence token for `logits+hidden`: use `logits`")
        return tasks

    @field_validator("strategies")
    @classmethod
    def _possible(cls, strategies: list[StrategyEntry], info: ValidationInfo) -> Any:
        """Refuses a search among networks without feed-forwards: no table shows its answer."""
        reduced = _reduced(info.data.get("feed_forward", ()))
        for entry in strategies:
            if entry.until and reduced:
                raise ValueError(
                    f"strategy {entry.name!r} has `until: {entry.until}`, which needs networks "
                    f"with all feed-forwards, but feed_forward has {reduced}. {_APART}"
                )
        return strategies

    @field_validator("strategies", "contribution")
    @classmethod
    def _measured(cls, value: Any, info: ValidationInfo) -> Any:
        tasks = [_name(task) for task in info.data.get("tasks", ())]
        for entry in value if isinstance(value, list) else [value]:
            name = entry.measured_on or "own"
            if tasks and name != "own":
                given = canonical_name(name) or name
                choose("task to measure layers on", name, ["own", *tasks], given=given)
        return value


def _reduced(labels: Iterable[str]) -> str:
    return listed_names(label for label in labels if label != NONE)


# the place of each section in a file -> its keys
SECTIONS: dict[str, type[entries.Entry]] = {
    "": SweepSpec,
    "models": ModelEntry,
    "tasks": TaskEntry,
    "tasks.prompts": entries.PromptsEntry,
    "strategies": StrategyEntry,
    "procedures": axes.ProcedureEntry,
    "distill": axes.DistillEntry,
    "feed_forward": axes.FeedForwardEntry,
    "recipe": entries.RecipeEntry,
    "recipe.freeze": entries.FreezeEntry,
    "measure": axes.MeasureEntry,
    "contribution": entries.ContributionEntry,
    "include": entries.CellMatch,
    "exclude": entries.CellMatch,
    "measure.speed_of": entries.CellMatch,
    "resources_per_trial": entries.Resources,
}


def _name(entry: Any) -> Any:
    """The name of an entry in cells."""
    if isinstance(entry, TaskEntry):
        return canonical_name(entry.name) or entry.name
    return entry.id if isinstance(entry, ModelEntry) else getattr(entry, "name", entry)
