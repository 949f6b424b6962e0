"""A trained network of the store, on this node for as long as it is needed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lp_sweep.storage.errors import MissingInputError, StoreError
from lp_sweep.storage.networks import fetch_network
from lp_sweep.storage.outbox import Outbox

_ABANDONED_SECONDS = 86_400.0


@contextmanager
def kept_network(outbox: Outbox, trial: str) -> Iterator[Path | None]:
    """The folder of a copy, which plain transformers loads; None where the store has no network of
    the trial. Raises MissingInputError where the store refuses: another run may find it there."""
    scratch = outbox.cache_dir / "networks"
    scratch.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(scratch)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        try:
            found = outbox.store is not None and fetch_network(outbox.store, trial, folder)
        except StoreError as error:
            raise MissingInputError(f"the network of {trial} can't be had. {error}") from error
        yield folder if found else None


@contextmanager
def needed_network(outbox: Outbox, trial: str | None) -> Iterator[Path | None]:
    """That of the trial that a job needs; None where it needs none. Raises MissingInputError."""
    if trial is None:
        yield None
        return
    with kept_network(outbox, trial) as folder:
        if folder is None and outbox.store is None:
            raise MissingInputError(f"the network of {trial} can't be had. {outbox.refusal}")
        if folder is None:
            raise MissingInputError(
                f"the network of trial {trial}, which this one goes on from, is not in the store "
                f"{outbox.location}. Run the sweep again: that trains it anew."
            )
        yield folder


def _remove_abandoned(scratch: Path) -> None:
    """Copies of workers that were killed: a day old, and no training needs one for so long."""
    latest = time.time() - _ABANDONED_SECONDS
    for path in scratch.iterdir():
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_mtime < latest:
                shutil.rmtree(path, ignore_errors=True)
