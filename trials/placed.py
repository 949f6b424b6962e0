"""A job whose files are on this node: what the sweep file names by a path of another machine is
fetched from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lp_sweep.storage import shipped
from lp_sweep.storage.errors import MissingInputError, StoreError
from lp_sweep.storage.store import Store
from lp_sweep.trials.job import Job
from lp_sweep.trials.modelfolder import needed_files


def placed(job: Job, store: Store | None) -> Job:
    """The job with paths that are there. What is neither here nor in the store (None: it is away)
    stays as it is, for the one who opens it to say. Raises MissingInputError where this node can't
    have it."""
    path, files = _elsewhere(job)
    if store is None or (path is None and not files):
        return job
    spec, cache_dir = job.spec, job.place.cache_dir
    try:
        folder = path and shipped.fetch(store, spec.model_fingerprint, cache_dir)
        rows = None
        if files and spec.kind != "speed":
            rows = shipped.fetch(store, spec.data_fingerprint, cache_dir)
    except StoreError as error:
        raise MissingInputError(f"the sweep's files can't be had. {error}") from error
    except OSError as error:
        raise MissingInputError(
            f"can't bring the sweep's files to this node, into {cache_dir}: {error}. Free space "
            "there or name another --cache-dir."
        ) from error
    if folder:
        job = replace(job, model=job.model._replace(path=str(folder)))
    if rows:
        here = {split: str(rows / _name(split, path)) for split, path in files.items()}
        job = replace(job, task=job.task._replace(source=replace(job.task.source, files=here)))
    return job


def model_files(folder: Path) -> dict[str, Path]:
    """What of a model folder goes to the store, by name."""
    return {path.name: path for path in needed_files(folder)}


def data_files(files: Mapping[str, str]) -> dict[str, Path]:
    """What of a data set goes to the store, by name. `files`: split -> path."""
    return {_name(split, path): Path(path) for split, path in files.items()}


def _name(split: str, path: str) -> str:
    """Its suffix says how a file is read."""
    return f"{split}{Path(path).suffix}"


def _elsewhere(job: Job) -> tuple[str | None, Mapping[str, str]]:
    """The model folder and the files of the task that are not on this node."""
    path = job.model.path
    folder = path if Path(path).is_absolute() and not Path(path).is_dir() else None
    reads = job.kind != "speed"  # the speed of a network is that of any rows
    files = job.task.source.files if reads else {}
    return folder, files if any(not Path(path).exists() for path in files.values()) else {}
