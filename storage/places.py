"""Folders as users write them."""

from __future__ import annotations

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
