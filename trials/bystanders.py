"""What other processes do on this machine while something is timed."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle and waiting for a disk, of the columns of /proc/stat
_COLUMNS = 8  # up to steal: what follows is counted in them


class Bystanders:
    """From its making on."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._begun, self._own = time.perf_counter(), time.process_time()
        self._busy = _busy_seconds(stat)

    def busy_cores(self) -> float | None:
        """The mean number of cores that others kept busy; None where the system does not say.

        The load average would not do: for minutes it counts the trials that have just ended.
        """
        busy = _busy_seconds(self._stat)
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (time.process_time() - self._own)
        return max(0.0, others / (time.perf_counter() - self._begun))


def _busy_seconds(stat: Path) -> float | None:
    """Of all cores since the machine started."""
    try:
        words = stat.read_text(encoding="ascii").split(maxsplit=_COLUMNS + 1)[1 : _COLUMNS + 1]
        ticks = [int(word) for word in words]
    except (OSError, ValueError):
        return None
    if not any(ticks):  # a sandbox that shows nothing of its host
        return None
    return sum(t for i, t in enumerate(ticks) if i not in _IDLE) / os.sysconf("SC_CLK_TCK")
