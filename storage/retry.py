"""Trying again what may pass by itself, within a given time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lp_sweep.storage.files import PermanentError

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 10.0  # seconds

# asking again changes none of these
_LASTING = (
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    PermanentError,
)

T = TypeVar("T")


class Deadline:
    """One operation's patience: its tries, and those of its parts, end at the same moment."""

    def __init__(self, patience: float) -> None:
        """patience: seconds from the first failure; 0 means one try."""
        self._patience = patience
        self._end: float | None = None

    def persist(self, action: Callable[[], T]) -> T:
        """Raises the last OSError. What is not there, or can't mend, is not tried again."""
        delay = _FIRST_DELAY
        while True:
            try:
                return action()
            except _LASTING:
                raise
            except OSError:
                left = self._left()
                if left <= 0:
                    raise
            time.sleep(min(delay, left))
            delay = min(2 * delay, _LONGEST_DELAY)

    def _left(self) -> float:
        if self._end is None:
            self._end = time.monotonic() + self._patience
        return self._end - time.monotonic()
