"""One job: what a worker is to do, and where. Imports no torch, so that a plan makes jobs.

A job is a frozen value. It travels as plain data (`to_plain`), which JSON holds, and is parsed once
where it arrives (`Job.from_plain`). `attempt_row` is the row of ATTEMPTS that a failed try leaves,
whoever writes it: the worker, or the driver for a worker that was lost.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lp_sweep.storage.errors import TrialError
from lp_sweep.storage.plain import (
    profile_spec_from_plain,
    speed_spec_from_plain,
    trial_spec_from_plain,
)
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.specs import ProfileSpec, SpeedSpec, TrialSpec, WorkKind
from lp_sweep.trials.tasks import TaskSource, source_from_plain

Spec = TrialSpec | ProfileSpec | SpeedSpec
Keep = Literal["none", "best", "all"]

_SPECS: dict[WorkKind, Callable[[Mapping[str, Any]], Spec]] = {
    "trial": trial_spec_from_plain,
    "profile": profile_spec_from_plain,
    "speed": speed_spec_from_plain,
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
    """A measurement of a trial's network, taken by the trial's own worker."""

    id: str
    spec: ProfileSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job is done and what becomes of it. None of this is part of an identifier."""

    cache_dir: Path = Path("lp-sweep-cache")  # tokens, unsent records, checkpoints under way
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
    """Work with the inputs it needs. `start` is the trial whose network it goes on from; `network`
    says that other work needs this trial's network; `halvings` counts how often the micro-batch
    was halved, for lack of memory, before this try."""

    id: str
    spec: Spec
    model: ModelPlace
    task: TaskPlace
    start: str | None = None
    measures: tuple[Measure, ...] = ()
    network: bool = False
    halvings: int = 0
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
        """The inverse of `from_plain`: the fields of `place` stand beside the job's own."""
        return {
            "id": self.id,
            "kind": self.kind,
            "spec": asdict(self.spec),
            "model": self.model._asdict(),
            "task": {"name": self.task.name, "source": asdict(self.task.source)},
            "start": self.start,
            "measures": [{"id": item.id, "spec": asdict(item.spec)} for item in self.measures],
            "network": self.network,
            "halvings": self.halvings,
            **asdict(self.place),
            "cache_dir": str(self.place.cache_dir),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Job:
        """Raises KeyError, TypeError or ValueError for what is no job."""
        rest = dict(plain)
        kind, model, task = rest.pop("kind"), rest.pop("model"), rest.pop("task")
        measures = rest.pop("measures", ())
        place = {item.name: rest.pop(item.name) for item in fields(Place) if item.name in rest}
        if "cache_dir" in place:
            place["cache_dir"] = Path(place["cache_dir"])
        return cls(
            **rest
            | {
                "spec": _SPECS[kind](rest["spec"]),
                "model": ModelPlace(**model),
                "task": TaskPlace(task["name"], source_from_plain(task["source"])),
                "measures": tuple(
                    Measure(item["id"], profile_spec_from_plain(item["spec"])) for item in measures
                ),
                "place": Place(**place),
            }
        )


class Failure(NamedTuple):
    """How one try ended without a record. Holds text only: no frame, and so no network."""

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


def attempt_row(
    id_: str, job: Job, failure: Failure, *, final: bool, **told: object
) -> dict[str, Any]:
    """A row of ATTEMPTS; its identifier starts with `id_`, that of the work it was a try at: the
    job's own, or that of a measurement of its network. `told`: further columns."""
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
    """Without secrets, and without the lone surrogates that a file name of another encoding leaves
    in a message."""
    return redact_text(text.encode("utf-8", "replace").decode())
