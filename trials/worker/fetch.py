"""Fetches to this node what a job names: files of its model and data, networks of other trials, a
teacher's logits, a checkpoint. `model_files` and `data_files` name the files that a run ships;
`announce` warns the trainings on a machine that they will soon be ended.

Everything is read from the store; nothing is written there. Imports no torch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.storage import shipped
from lp_sweep.storage.errors import MissingInputError, StoreError, SweepWarning
from lp_sweep.storage.networks import WEIGHTS, fetch_network, lacks_files
from lp_sweep.storage.runs import machine_key
from lp_sweep.storage.spool import Outbox
from lp_sweep.storage.store import Store
from lp_sweep.trials import plugins
from lp_sweep.trials.data.formats import parts_of, suffix_of
from lp_sweep.trials.data.tasks import UNLABELLED, TaskSource
from lp_sweep.trials.model.modelfiles import needed_files
from lp_sweep.trials.worker.job import Job, Lesson, ModelPlace, Place

_ABANDONED_SECONDS = 86_400.0  # no training needs a copy for a day


class Supplies(NamedTuple):
    """The inputs of a job, on this node. `start`, `teacher` and `own` are folders of networks."""

    job: Job  # with the paths of this node
    own: Path | None = None  # what the trial trained before
    start: Path | None = None  # what stage one trained
    teacher: Path | None = None  # where its states are needed
    logits: Sequence[Mapping[str, Any]] = ()  # the teacher's, of the train rows


@contextmanager
def supplies(job: Job, outbox: Outbox, stored: object) -> Iterator[Supplies]:
    """Also loads the job's plugin. Raises MissingInputError. `stored`: whether the job has a
    record; then its own network is enough, and all else is fetched only if the store does not have
    that."""
    if any(job.plugin):
        plugins.load(*job.plugin)
    job = placed(job, outbox.store)
    if job.kind != "trial":
        yield Supplies(job)
        return
    if stored:
        with kept_network(outbox, job.id) as own:
            if own is not None:
                yield Supplies(job, own)
                return
        again = f"{job.id} is trained again: its network was not kept"
        warnings.warn(again, SweepWarning, stacklevel=2)
    lesson = job.lesson
    with (
        needed_network(outbox, job.start) as start,
        needed_network(outbox, lesson and lesson.watched(job.trial)) as teacher,
    ):
        logits = teacher_logits(outbox, lesson) if lesson else ()
        yield Supplies(job, None, start, teacher, logits)


# -- files of models and data


def placed(job: Job, store: Store | None) -> Job:
    """The job with its files on this node, fetched from the store where they are missing. A path
    stays as it is if the store does not have it or is unreachable (None): opening it then reports
    it. Raises MissingInputError if a file can't be fetched."""
    if store is None:
        return job
    try:
        return replace(
            job,
            model=_placed_model(job, store),
            task=job.task._replace(source=_placed_rows(job, store)),
            unlabelled={
                key: path if _is_here(path) else _fetched(store, key, job, UNLABELLED) or path
                for key, path in job.unlabelled.items()
            },
        )
    except StoreError as error:
        raise MissingInputError(f"can't fetch the sweep's files. {error}") from error
    except OSError as error:
        raise MissingInputError(
            f"can't copy the sweep's files to this node, into {job.place.cache_dir}: {error}. Free "
            "space there or name another --cache-dir."
        ) from error


def _placed_model(job: Job, store: Store) -> ModelPlace:
    path = Path(job.model.path)
    if not path.is_absolute() or path.is_dir():
        return job.model
    path_here = shipped.fetch(store, job.spec.model_fingerprint, job.place.cache_dir)
    return job.model._replace(path=str(path_here or path))


def _placed_rows(job: Job, store: Store) -> TaskSource:
    source, spec = job.task.source, job.spec
    if spec.kind == "speed" or all(map(_is_here, source.files.values())):
        return source  # the speed of a network is that of any rows
    files = {
        split: _fetched(store, spec.data_fingerprint, job, split) or path
        for split, path in source.files.items()
    }
    return replace(source, files=files)


def _fetched(store: Store, fingerprint: str, job: Job, split: str) -> str | None:
    """The fetched file of a split, or a pattern for its parts; None if the store has none."""
    folder = shipped.fetch(store, fingerprint, job.place.cache_dir)
    if folder is None:
        return None
    parts = sorted(folder.glob(f"{split}-*"))
    return str(parts[0].with_stem(f"{split}-*") if parts else next(folder.glob(f"{split}.*")))


def _is_here(path: str) -> bool:
    return any(part.exists() for part in parts_of(path))


def model_files(folder: Path) -> dict[str, Path]:
    """Files of a model folder that go to the store, by name."""
    return {path.name: path for path in needed_files(folder)}


def data_files(files: Mapping[str, str]) -> dict[str, Path]:
    """Files of a data set that go to the store, by name. `files`: split -> path."""
    found: dict[str, Path] = {}
    for split, path in files.items():
        alone = Path(path).is_file()
        for number, part in enumerate(parts_of(path)):
            found[f"{split}{'' if alone else f'-{number:05}'}{suffix_of(part)}"] = part
    return found


# -- what other trials made


def teacher_logits(outbox: Outbox, lesson: Lesson) -> list[dict[str, Any]]:
    """The rows of the teacher's logits. Raises MissingInputError."""
    found = outbox.find("teacher_logits", lesson.logits)
    if found is None:
        why = outbox.refusal or (
            "Run the sweep again: it makes them. If it does not, the teacher's trial failed: see "
            f"`lp-sweep logs {lesson.source}`."
        )
        raise MissingInputError(
            f"the logits of {lesson.source}, which this one learns from, are not in the "
            f"store {outbox.location}. {why}"
        )
    return found


@contextmanager
def kept_network(outbox: Outbox, trial: str) -> Iterator[Path | None]:
    """The folder of a copy that plain transformers loads; None if the store has no network of the
    trial. Raises MissingInputError if the store refuses."""
    with tempfile.TemporaryDirectory(dir=scratch(outbox.cache_dir, "networks")) as name:
        folder, store = Path(name), outbox.store

        def fetched() -> bool:
            found = store is not None and fetch_network(store, trial, folder)
            if found and lacks_files(folder):
                raise FileNotFoundError
            return found

        try:
            found = store is not None and store.awaited(f"{WEIGHTS}/{trial}", fetched)
        except StoreError as error:
            raise MissingInputError(f"can't fetch the network of {trial}. {error}") from error
        yield folder if found else None


@contextmanager
def needed_network(outbox: Outbox, trial: str | None) -> Iterator[Path | None]:
    """A copy of the network that a job needs; None without `trial`. Raises MissingInputError."""
    if trial is None:
        yield None
        return
    with kept_network(outbox, trial) as folder:
        if folder is None and outbox.store is None:
            raise MissingInputError(f"can't fetch the network of {trial}. {outbox.refusal}")
        if folder is None:
            raise MissingInputError(
                f"the network of trial {trial}, which this one starts from, is not in the store "
                f"{outbox.location}. Run the sweep again: it trains that network again."
            )
        yield folder


def fetch_checkpoint(place: Place, folder: str, name: str, to: Path) -> bool:
    """Copies a checkpoint; False if the store has none. Raises StoreError or OSError."""
    return Store(place.store, patience=place.store_patience).fetch_file(folder, name, to)


def scratch(cache_dir: Path, name: str) -> Path:
    """A folder for copies. Deletes those that killed workers left. Raises OSError."""
    folder = cache_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    latest = time.time() - _ABANDONED_SECONDS
    for path in folder.iterdir():
        with suppress(OSError):  # gone meanwhile
            if path.stat().st_mtime < latest:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


# -- a notice of the driver: the trainings on this machine will soon be ended


def announce(cache_dir: Path, seconds: float) -> None:
    """The notice expires after `seconds`: another run may follow. Raises OSError."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    file, until = _notice(cache_dir), time.time() + seconds
    file.touch()
    os.utime(file, (until, until))


def announced(cache_dir: Path) -> bool:
    try:
        return time.time() < _notice(cache_dir).stat().st_mtime
    except OSError:
        return False


def _notice(cache_dir: Path) -> Path:
    """One file per machine: machines may share the folder."""
    return cache_dir / f"leaving-{machine_key()}"
