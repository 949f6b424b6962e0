"""SIGTERM and SIGHUP (a preemption, a terminal that is gone) end a run as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """`received` names what came, in order. Until `arm` a signal is only noted: in the middle of
    starting Ray, or of an import, there is no clean way out."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self._armed = False

    @contextmanager
    def caught(self) -> Iterator[StopSignals]:
        """Main thread only."""
        before = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def arm(self) -> None:
        """From now on a signal raises KeyboardInterrupt; at once, if one has come before. Ray
        sets a SIGTERM handler of its own at `init`: ours is set again."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)
        self._armed = True
        if self.received:
            raise KeyboardInterrupt

    def _stop(self, number: int, frame: object) -> None:
        del frame
        self.received.append(signal.Signals(number).name)
        # before `arm` Ray's own handler comes first, and sets an alarm: in 3 s the process aborts
        signal.alarm(0)
        if self._armed:
            raise KeyboardInterrupt
