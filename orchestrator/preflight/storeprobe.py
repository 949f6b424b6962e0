"""Whether a store can be written, by a file that is put there and taken away again: on the driver,
and meanwhile on each node, which also says whether it is the driver's store that it sees."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.files import open_files
from lp_sweep.storage.probe import has_probe, probe
from lp_sweep.storage.store import Store

_PATIENCE = 5.0  # seconds: one busy answer of an object store must not refuse a run


class Probe(NamedTuple):
    """A file of a store, which holds its own name."""

    location: str
    name: str


@contextlib.contextmanager
def probed(location: str) -> Iterator[Probe]:
    """While inside the probe is there; a store that is new goes with it. Raises StoreError."""
    made = [] if "://" in location else absent_folders(Path(location).expanduser().absolute())
    try:
        store = Store(location, create=True, patience=_PATIENCE)
        with probe(store) as name:
            yield Probe(store.location, name)
    finally:
        remove_empty(made)


def unseen(found: Probe) -> str | None:
    """On a node: why it can't work on the store of the probe; None where it can."""
    try:
        if not open_files(found.location).exists():
            return f"there is no store at {found.location}"
        store = Store(found.location, patience=_PATIENCE)
        if not has_probe(store, found.name):
            return f"{store.location} is another store than the driver's"
        with probe(store) as name:
            given_back = has_probe(store, name)
    except (OSError, StoreError) as error:
        return str(error)
    return None if given_back else f"{store.location} does not give back what was written to it"


def absent_folders(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the lowest first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_empty(folders: list[Path]) -> None:
    """What making a store left behind; a folder that holds anything stays."""
    below = sorted(folders[0].rglob("*"), reverse=True) if folders else []
    with contextlib.suppress(OSError):
        for folder in (*below, *folders):
            folder.rmdir()
