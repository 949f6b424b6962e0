"""A job: what a worker does, and where. Imports no torch, since plans also make jobs.

A job and its answer travel as plain data that JSON can hold, and are parsed once where they arrive
(`from_plain`). `attempt_row` makes the row of a failed try, for a worker or for the driver of a
lost worker.
"""

from __future__ import annotations

import math
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from lp_sweep.storage.errors import StoreError, TrialError
from lp_sweep.storage.redact import redact_text
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.spec.specs import (
    ProfileSpec,
    SpeedSpec,
    TrialSpec,
    WorkKind,
    spec_from_plain,
)

Spec = TrialSpec | ProfileSpec | SpeedSpec
Keep = Literal["none", "best", "all"]

_CACHE_DIR = "lp-sweep-cache"
_SPECS: dict[WorkKind, type[Any]] = {
    "trial": TrialSpec,
    "profile": ProfileSpec,
    "speed": SpeedSpec,
}


class ModelPlace(NamedTuple):
    """A pre-trained model as the user names it, and where its files are: a folder or a hub id."""

    name: str
    path: str
    revision: str | None
    depth: int


class TaskPlace(NamedTuple):
    """A task as the user names it, and where its rows are."""

    name: str | None
    source: TaskSource


class Measure(NamedTuple):
    """A measurement of a trial's network. The trial's own worker takes it."""

    id: str
    spec: ProfileSpec


class Lesson(NamedTuple):
    """The source of a student: its teacher's trial, and the measurement that holds the teacher's
    logits of the train rows. `teacher` is empty if no trial trained it."""

    teacher: str
    logits: str

    @property
    def source(self) -> str:
        """The work that makes the logits."""
        return self.teacher or self.logits

    def watched(self, student: TrialSpec) -> str | None:
        """The trial whose network `student` needs in training; None if the logits are enough."""
        return self.teacher if student.distill and student.distill.needs_network else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job runs and what is kept of it. None of this is part of an identifier."""

    cache_dir: Path = Path(_CACHE_DIR)  # tokens, unsent records, checkpoints under way
    store: str = ""  # the store's location
    store_patience: float = 0.0  # seconds
    offline: bool = False
    threads: int | None = None  # of the CPU
    device: str = "auto"
    checkpoint_every: float | None = None  # seconds
    keep: Keep = "none"  # which trained networks stay in the store
    command: str | None = None  # that started the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work with its inputs. `start`: the trial whose network it continues from; `network`: whether
    other work needs this trial's network; `halvings`: how often the micro-batch was already halved
    for lack of memory; `graphs`: whether it may record CUDA graphs; `unlabelled`: fingerprint ->
    file of the unlabelled rows that it and its measurements read. These may differ: tasks that
    differ only in such rows share their teacher."""

    id: str
    spec: Spec
    model: ModelPlace
    task: TaskPlace
    start: str | None = None
    lesson: Lesson | None = None
    measures: tuple[Measure, ...] = ()
    network: bool = False
    halvings: int = 0
    graphs: bool = True
    unlabelled: Mapping[str, str] = field(default_factory=dict)
    plugin: tuple[str, str] = ("", "")  # name and text of that with the task's metric
    place: Place = field(default_factory=Place)

    @property
    def kind(self) -> WorkKind:
        return self.spec.kind

    @property
    def trial(self) -> TrialSpec:
        assert isinstance(self.spec, TrialSpec), self.kind
        return self.spec

    @property
    def profile(self) -> ProfileSpec:
        assert isinstance(self.spec, ProfileSpec), self.kind
        return self.spec

    @property
    def speed(self) -> SpeedSpec:
        assert isinstance(self.spec, SpeedSpec), self.kind
        return self.spec

    def to_plain(self) -> dict[str, Any]:
        """The inverse of `from_plain`. The fields of `place` are next to the job's own."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        del plain["place"]
        return plain | {
            "kind": self.kind,
            "spec": asdict(self.spec),
            "model": self.model._asdict(),
            "task": {"name": self.task.name, "source": asdict(self.task.source)},
            "lesson": self.lesson and self.lesson._asdict(),
            "measures": [{"id": item.id, "spec": asdict(item.spec)} for item in self.measures],
            "unlabelled": dict(self.unlabelled),
            "plugin": list(self.plugin),
            **asdict(self.place),
            "cache_dir": str(self.place.cache_dir),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Job:
        """Raises KeyError, TypeError or ValueError if `plain` is not a job."""
        rest = {name: value for name, value in plain.items() if name != "kind"}
        place = {item.name: rest.pop(item.name) for item in fields(Place) if item.name in rest}
        task, lesson = plain["task"], plain.get("lesson")
        made = {
            "spec": spec_from_plain(_SPECS[plain["kind"]], plain["spec"]),
            "model": ModelPlace(**plain["model"]),
            "task": TaskPlace(task["name"], TaskSource(**task["source"])),
            "lesson": lesson and Lesson(**lesson),
            "measures": tuple(
                Measure(item["id"], spec_from_plain(ProfileSpec, item["spec"]))
                for item in plain.get("measures", ())
            ),
            "place": replace(Place(**place), cache_dir=Path(place.get("cache_dir", _CACHE_DIR))),
        }
        return cls(**rest | made)


Records = list[tuple[str, str, list[dict[str, Any]]]]  # table, name, rows


class Result(NamedTuple):
    """The records that a job made: its own, and others that go to the store before it."""

    record: dict[str, Any]
    others: Records


class Failure(NamedTuple):
    """How a try failed, as text: a frame would keep its network in memory."""

    error_type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(
            error.kind if isinstance(error, TrialError) else "bug",
            str(error) or type(error).__name__,
            "".join(traceback.format_exception(error)),
        )


class Answer(NamedTuple):
    """A worker's answer to a job: what `execute` returns."""

    status: str  # done, failed, spooled, not stored
    message: str = ""
    error_type: str = ""
    metric: str | None = None  # None for a measurement
    last: float = math.nan  # the score, a share
    seconds: float = 0.0
    measures_failed: Mapping[str, str] = MappingProxyType({})  # identifier -> error type
    unkept: str = ""  # why its network is not kept although that was asked for

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Answer:
        return cls(**{name: plain[name] for name in cls._fields if name in plain})


def not_stored(error: StoreError) -> dict[str, str]:
    """The answer of an engine whose worker found that neither the store nor the spool takes the
    record."""
    return {"status": "not stored", "message": str(error)}


def attempt_row(
    id_: str, job: Job, failure: Failure, *, final: bool, **told: object
) -> dict[str, Any]:
    """A row of ATTEMPTS. `id_`: the job, or the measurement of its network, that was tried; the
    row's identifier starts with it. `told`: more columns."""
    return {
        "attempt_id": f"{id_}.{uuid.uuid4().hex[:8]}",
        "trial_id": id_,
        "model": job.model.name,
        "task": job.task.name,
        "seed": getattr(job.spec, "seed", None),
        "kept_layers": getattr(job.spec, "kept_layers", None),
        "error_type": failure.error_type,
        "message": _storable(failure.message),
        "traceback": _storable(failure.traceback),
        "final": final,
        "command": job.place.command,
        **told,
    }


def _storable(text: str) -> str:
    """Removes secrets, and lone surrogates, which come from file names in another encoding."""
    return redact_text(text.encode("utf-8", "replace").decode())
