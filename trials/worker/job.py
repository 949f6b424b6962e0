"""One job: what a worker is to do, and where. Imports no torch, so that a plan makes jobs.

A job is a frozen value. It travels as plain data (`to_plain`), which JSON holds, and is parsed once
where it arrives (`Job.from_plain`). `placed` brings its files to this node. `attempt_row` makes the
row that a failed try leaves, for the worker, and for the driver where a worker was lost. `announce`
tells the trainings of a machine that they will soon be cut off.
"""

from __future__ import annotations

import os
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lp_sweep.storage import shipped
from lp_sweep.storage.errors import MissingInputError, StoreError, TrialError
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.runs import machine_key
from lp_sweep.storage.specs import (
    ProfileSpec,
    SpeedSpec,
    TrialSpec,
    WorkKind,
    profile_spec_from_plain,
    speed_spec_from_plain,
    trial_spec_from_plain,
)
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.tasks import UNLABELLED, TaskSource
from lp_sweep.trials.model.modelfiles import needed_files

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


class Lesson(NamedTuple):
    """The source of a student: the trial of its teacher, and the measurement that holds the
    teacher's logits of the train rows. Empty `teacher`: the measurement is of no trial."""

    teacher: str
    logits: str

    @property
    def source(self) -> str:
        """The work that makes the logits."""
        return self.teacher or self.logits

    def watched(self, student: TrialSpec) -> str | None:
        """The trial whose network has to be there while `student` learns; None where its logits
        are enough."""
        return self.teacher if student.distill and student.distill.needs_network else None


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
    lesson: Lesson | None = None
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

    @property
    def unlabelled(self) -> str:
        """The fingerprint of the unlabelled rows that the job reads; empty: none."""
        specs = (self.spec, *(item.spec for item in self.measures))
        return max((spec.unlabelled for spec in specs if spec.kind != "speed"), default="")

    def to_plain(self) -> dict[str, Any]:
        """The inverse of `from_plain`: the fields of `place` stand beside the job's own."""
        return {
            "id": self.id,
            "kind": self.kind,
            "spec": asdict(self.spec),
            "model": self.model._asdict(),
            "task": {"name": self.task.name, "source": asdict(self.task.source)},
            "start": self.start,
            "lesson": self.lesson and self.lesson._asdict(),
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
        measures, lesson = rest.pop("measures", ()), rest.pop("lesson", None)
        place = {item.name: rest.pop(item.name) for item in fields(Place) if item.name in rest}
        if "cache_dir" in place:
            place["cache_dir"] = Path(place["cache_dir"])
        return cls(
            **rest
            | {
                "spec": _SPECS[kind](rest["spec"]),
                "model": ModelPlace(**model),
                "task": TaskPlace(task["name"], TaskSource(**task["source"])),
                "lesson": lesson and Lesson(**lesson),
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
            _storable(str(error)) or type(error).__name__,
            _storable("".join(traceback.format_exception(error))),
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


def placed(job: Job, store: Store | None) -> Job:
    """The job with paths that are there. What is neither here nor in the store (None: it is away)
    stays as it is, for the one who opens it to say. Raises MissingInputError where this node can't
    have it."""
    path, files, texts = _elsewhere(job)
    if store is None or (path is None and not files and not texts):
        return job
    spec, cache_dir = job.spec, job.place.cache_dir
    try:
        folder = path and shipped.fetch(store, spec.model_fingerprint, cache_dir)
        more = shipped.fetch(store, job.unlabelled, cache_dir) if texts else None
        rows = None
        if files and spec.kind != "speed":
            rows = shipped.fetch(store, spec.data_fingerprint, cache_dir)
    except StoreError as error:
        raise MissingInputError(f"can't fetch the sweep's files. {error}") from error
    except OSError as error:
        raise MissingInputError(
            f"can't copy the sweep's files to this node, into {cache_dir}: {error}. Free space "
            "there or name another --cache-dir."
        ) from error
    if folder:
        job = replace(job, model=job.model._replace(path=str(folder)))
    if rows:
        here = {split: str(rows / _name(split, path)) for split, path in files.items()}
        job = _reading(job, files=here)
    if more:
        job = _reading(job, unlabelled=str(more / _name(UNLABELLED, texts)))
    return job


def _reading(job: Job, **places: Any) -> Job:
    return replace(job, task=job.task._replace(source=replace(job.task.source, **places)))


def model_files(folder: Path) -> dict[str, Path]:
    """Files of a model folder that go to the store, by name."""
    return {path.name: path for path in needed_files(folder)}


def data_files(files: Mapping[str, str]) -> dict[str, Path]:
    """Files of a data set that go to the store, by name. `files`: split -> path."""
    return {_name(split, path): Path(path) for split, path in files.items()}


def _name(split: str, path: str) -> str:
    """Its suffix says how a file is read."""
    return f"{split}{Path(path).suffix}"


def _elsewhere(job: Job) -> tuple[str | None, Mapping[str, str], str]:
    """The model folder, the files of the task, and that of unlabelled rows, that are not on this
    node."""
    path = job.model.path
    folder = path if Path(path).is_absolute() and not Path(path).is_dir() else None
    reads = job.kind != "speed"  # the speed of a network is that of any rows
    files = job.task.source.files if reads else {}
    texts = job.task.source.unlabelled if job.unlabelled else ""
    return (
        folder,
        files if any(not Path(path).exists() for path in files.values()) else {},
        texts if texts and not Path(texts).exists() else "",
    )


def announce(cache_dir: Path, seconds: float) -> None:
    """For so long: a machine may come back, and another run follow. Raises OSError."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    file, until = _file(cache_dir), time.time() + seconds
    file.touch()
    os.utime(file, (until, until))


def announced(cache_dir: Path) -> bool:
    try:
        return time.time() < _file(cache_dir).stat().st_mtime
    except OSError:
        return False


def _file(cache_dir: Path) -> Path:
    """Machines may share the folder: each has its own."""
    return cache_dir / f"leaving-{machine_key()}"
