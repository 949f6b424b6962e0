"""Clocks for training steps, on the device that trains. Not a benchmark."""

from __future__ import annotations

import time
from typing import Protocol

import torch


class Clock(Protocol):
    def mark(self) -> None: ...

    def steps(self) -> list[float]:
        """Seconds between one mark and the next."""


class CpuClock:
    """CPU seconds of this process; other processes are not counted."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def mark(self) -> None:
        self.marks.append(time.process_time())

    def steps(self) -> list[float]:
        return [end - begin for begin, end in zip(self.marks, self.marks[1:], strict=False)]


class GpuClock:
    """CUDA events; the host waits for them only at the end."""

    def __init__(self) -> None:
        self.events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)

    def steps(self) -> list[float]:
        torch.cuda.synchronize()
        pairs = zip(self.events, self.events[1:], strict=False)
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
