"""The notice that trainings on this machine will soon be cut off: a file in its cache folder.

The machine will be taken, or the run has used what it may. Who knows leaves the file; a training
looks for it, and writes its checkpoints while there is time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from lp_sweep.storage.runs import machine_key


def announce(cache_dir: Path, seconds: float) -> None:
    """For so long: a machine may come back, and another run follow. Raises OSError."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    file, until = _file(cache_dir), time.time() + seconds
    file.touch()
    os.utime(file, (until, until))


def announced(cache_dir: Path) -> bool:
    try:
        return time.time() < _file(cache_dir).stat().st_mtime
    except OSError:
        return False


def _file(cache_dir: Path) -> Path:
    """Machines may share the folder: each has its own."""
    return cache_dir / f"leaving-{machine_key()}"
