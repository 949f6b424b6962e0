"""Checks that the store and the disks of this machine have room for what a sweep writes.

The sizes are rough and low on purpose: a check that refuses a sweep that would have worked is worse
than none. Every file that a check creates is removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.inputs.resolve import Needed, Sweep
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.runs import FOLDER
from lp_sweep.storage.store import Store

MARGIN = 100 * 2**20  # bytes that stay free on each disk
_RECORD = 40_000  # bytes of a record with its curves, and of a log
_PREDICTION = 30  # bytes of a dev example's row, compressed
_TOKENS = 64  # mean length of a row, as in the estimate of hours
_TOKEN = 5  # bytes in the cache: an int32 and a type
_RAY = 300 * 2**20  # bytes of logs, and of the object store if there is no /dev/shm
_WEIGHT = 4  # bytes
_PATIENCE = 5.0  # seconds: one busy answer of an object store must not refuse a run


# -- space


class Need(NamedTuple):
    """Bytes to be written below a folder, which may not exist yet."""

    folder: Path
    bytes: int
    what: str


def needs(
    sweep: Sweep,
    wanted: Needed,
    location: str,
    cache_dir: Path,
    download_bytes: int,
    *,
    on_ray: bool = True,
) -> list[Need]:
    """The needs on this machine's disks. Other nodes and object stores are not checked."""
    from huggingface_hub import constants

    rows = sum(task.train_rows + task.dev_rows + task.unlabelled_rows for task in wanted.tasks)
    tokens = rows * min(sweep.recipe.max_length, _TOKENS) * _TOKEN
    asked = [
        Need(cache_dir, tokens, "tokens"),
        Need(Path(constants.HF_HUB_CACHE), download_bytes, "downloads"),
    ]
    if on_ray:
        asked.append(Need(ray_folder(), _RAY, "Ray's files"))
    if "://" not in location:
        asked.append(Need(Path(location).expanduser(), _store_bytes(sweep, wanted), "records"))
    return asked


_LONGEST = 35  # bytes; Ray adds 68 for its sockets, whose paths have at most 103, on Linux 107


def ray_folder() -> Path:
    """Where a Ray of our own keeps its files: RAY_TMPDIR, else TMPDIR or what Python takes in its
    place. If that is too long for Ray, as on many batch systems, a folder below /tmp that only this
    user can read, which may not exist yet."""
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    short = len(os.fsencode(folder)) <= _LONGEST
    return folder if short else Path(f"/tmp/lp-sweep-{os.getuid()}")


def _store_bytes(sweep: Sweep, wanted: Needed) -> int:
    records = sum(_RECORD + trial.task.dev_rows * _PREDICTION for trial in wanted.trials)
    weights = [(trial.model.parameters or 0) * _WEIGHT for trial in wanted.trials]
    share = {"none": 0.0, "best": 1 / len(sweep.spec.seeds), "all": 1.0}[sweep.spec.keep]
    networks = sum(
        size if trial.kept else share * size
        for trial, size in zip(wanted.trials, weights, strict=True)
    )
    # weights and both moments of one trial at a time, at least
    checkpoint = 3 * max(weights, default=0) if sweep.spec.checkpoint_every else 0
    return records + int(networks) + checkpoint


def space_problems(asked: Sequence[Need]) -> list[str]:
    """Compares the needs of each disk with its free space."""
    disks: dict[int, list[Need]] = defaultdict(list)
    for need in asked:
        disks[existing(need.folder).stat().st_dev].append(need)
    problems = []
    for together in disks.values():
        total = sum(need.bytes for need in together) + MARGIN
        free = shutil.disk_usage(existing(together[0].folder)).free
        if free < total:
            parts = ", ".join(f"{_mib(n.bytes)} of {n.what} in {n.folder}" for n in together)
            problems.append(
                f"only {_mib(free)} are free, and about {_mib(total)} are needed: {parts}, and "
                f"{_mib(MARGIN)} to spare. Free some, or name other folders (--store, "
                f"--cache-dir, HF_HOME, TMPDIR)."
            )
    return problems


def existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"


# -- writing


@contextlib.contextmanager
def probe(store: Store) -> Iterator[str]:
    """Keeps a file in the store while inside, for other machines to find. Yields its name, which is
    also its content. Raises StoreError."""
    name = f"probe-{uuid.uuid4().hex}.txt"
    store.put_text(FOLDER, name, name)
    try:
        yield name
    finally:
        store.delete(FOLDER, name)


def has_probe(store: Store, name: str) -> bool:
    """Whether the store has the file, complete. Raises StoreError."""
    return store.read_text(FOLDER, name) == name


def write_problems(location: str, cache_dir: Path) -> Iterator[str]:
    """Why the store, or the folder for tokens, can't be written."""
    made = [] if "://" in location else _absent_folders(Path(location).expanduser().absolute())
    try:
        with probe(Store(location, create=True, patience=_PATIENCE)):
            pass
    except StoreError as error:
        yield str(error)
    finally:
        _remove_empty(made)
    made = _absent_folders(cache_dir.absolute())
    file = cache_dir / f".probe-{uuid.uuid4().hex}"
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        file.unlink()
    except OSError as error:
        yield (
            f"can't write to {cache_dir}: {error.strerror}. Tokens are kept there between trials; "
            "name another folder with --cache-dir."
        )
    finally:
        _remove_empty(made)


def _absent_folders(folder: Path) -> list[Path]:
    """The folder and its parents that don't exist, the lowest first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_empty(folders: list[Path]) -> None:
    """Removes the empty folders that creating a store left behind."""
    below = sorted(folders[0].rglob("*"), reverse=True) if folders else []
    with contextlib.suppress(OSError):
        for folder in (*below, *folders):
            folder.rmdir()
