"""The notice that this machine will soon be taken: a file in each node's cache folder.

Who hears of it leaves the file; a training looks for it, and writes its checkpoints while there is
time.
"""

from __future__ import annotations

import time
from pathlib import Path

from lp_sweep.storage.runs import machine_key

_SOON = 600.0  # seconds: what is older was told of a machine that has come back since


def announce(cache_dir: Path) -> None:
    """Raises OSError."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    _file(cache_dir).touch()


def announced(cache_dir: Path) -> bool:
    try:
        return time.time() - _file(cache_dir).stat().st_mtime < _SOON
    except OSError:
        return False


def _file(cache_dir: Path) -> Path:
    """Machines may share the folder: each has its own."""
    return cache_dir / f"leaving-{machine_key()}"
