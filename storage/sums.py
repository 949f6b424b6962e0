"""`SHA256SUMS`: what every file of a folder held when it was written, as `sha256sum -c` reads it.

A byte that changes later in a kept or exported network is found, also where no answer hangs on it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

SUMS = "SHA256SUMS"


def write_sums(folder: Path) -> None:
    """Of all files below `folder`, in the order of their names."""
    lines = [f"{_digest(folder / name)}  {name}\n" for name in _names(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def changed_files(folder: Path) -> list[str]:
    """The files that are not what the folder's sums say, or are gone; none where it has no sums."""
    path = folder / SUMS
    if not path.is_file():
        return []
    told = (line.partition("  ") for line in path.read_text(encoding="utf-8").splitlines())
    return [name for digest, _, name in told if _digest(folder / name) != digest]


def _names(folder: Path) -> list[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths if path.as_posix() != SUMS)


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None
