"""Folders as users write them."""

from __future__ import annotations

import os
from pathlib import Path

from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import shown


def is_file(path: Path) -> bool:
    """False, too, for a name that no file can have: one that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def expanded(text: str | Path) -> Path:
    """The path with `~` written out. Raises SpecError for what no path can be."""
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # ~nobody
        raise SpecError(f"{shown(str(text))}: {error} Write the whole path.") from None
    if not str(text) or "\0" in str(text):
        raise SpecError(f"{shown(str(text))} can't be the name of a file or folder. Name another.")
    return path


def node_folder(given: Path | None) -> Path:
    """`given`, or the default: a folder of each node for tokens, safe to delete, and the spool of
    records that a store has not taken."""
    if chosen := given or os.environ.get("LP_SWEEP_CACHE_DIR"):
        return expanded(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lp-sweep"
