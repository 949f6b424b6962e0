"""What this machine gives a run: free space on its disks, places that can be written, GPUs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants

from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.runs import FOLDER
from lp_sweep.storage.store import Store

SPARE = 200 * 2**20  # bytes: a disk with less is full for a run
_PATIENCE = 5.0  # seconds: one busy answer of an object store must not refuse a run
_LONGEST = 35  # bytes; Ray adds 68 for its sockets, whose paths have at most 103, on Linux 107
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA, AMD, WSL


def problems_here(location: str, cache_dir: Path, download_bytes: int) -> Iterator[str]:
    """Why the store, the tokens, the downloads or Ray's files have no place on this machine. Leaves
    no files behind. Other nodes and the space of object stores are not checked."""
    written = [cache_dir]
    if "://" not in location:
        written.append(Path(location).expanduser())
    for folder in (*written, ray_folder()):
        yield from _space_problem(folder, 0)
    if download_bytes:
        yield from _space_problem(Path(constants.HF_HUB_CACHE), download_bytes)
    for folder in written:
        there = _existing(folder)
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            what = "no folder" if not there.is_dir() else "read-only for this user"
            yield (
                f"can't write to {folder}: {there} is {what}. Name another folder with --store "
                "(records) or --cache-dir (tokens, kept between trials)."
            )
    if "://" in location:
        try:
            with probe(Store(location, create=True, patience=_PATIENCE)):
                pass
        except StoreError as error:
            yield str(error)


def _space_problem(folder: Path, size: int) -> Iterator[str]:
    free = shutil.disk_usage(_existing(folder)).free
    if free < size + SPARE:
        yield (
            f"only {free >> 20:,} MiB are free for {folder}, and about {size + SPARE >> 20:,} MiB "
            "are needed. Free some, or name another folder (--store, --cache-dir, HF_HOME, TMPDIR)."
        )


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def ray_folder() -> Path:
    """Where a Ray of our own keeps its files: RAY_TMPDIR, else TMPDIR or what Python takes in its
    place. If that is too long for Ray, as on many batch systems, a folder below /tmp that only this
    user can read, which may not exist yet."""
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    short = len(os.fsencode(folder)) <= _LONGEST
    return folder if short else Path(f"/tmp/lp-sweep-{os.getuid()}")


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


def count_gpus() -> int:
    """The GPUs that this process may use."""
    if not _has_devices():
        return 0  # without the seconds that torch takes to find none
    import torch

    return torch.cuda.device_count()


def _has_devices() -> bool:
    return any(found for pattern in _DEVICE_FILES for found in Path("/dev").glob(pattern))


def gpu_notes(spec: SweepSpec) -> list[str]:
    """A note where trials ask for a GPU that this machine lacks."""
    asked = spec.resources_per_trial.gpu
    if not asked or _has_devices():
        return []
    return [
        f"resources_per_trial asks for {asked:g} GPU a trial, and this machine has none: a run "
        "here does not start. Run the sweep where there is one, or remove `gpu:`."
    ]
