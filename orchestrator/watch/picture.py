"""What is true of a sweep now, as a value: all faces of the live view show this and nothing else.

A run makes it of its queue (`run.livereporter`), any other process of the store (`follower`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lp_sweep.orchestrator.estimate.pace import Eta

SCHEMA = 1  # of the JSON; a later one only adds keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The scores at one K, in points (0..100; a correlation -100..100)."""

    k: int
    n: int  # seeds with a score
    asked: int  # seeds asked for
    mean: float | None  # None without any
    sd: float | None  # of the sample; None of fewer than two


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Score against K of one strategy on one task; `strategy` names what is unusual of it, too."""

    model: str
    task: str
    strategy: str
    points: tuple[Point, ...]  # K ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What one slot does. `place`: its number in a run's own display, else the run's host."""

    place: str
    work: str  # "" when it is idle
    seconds: float | None  # since it began; None where nobody says


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pieces of work that nobody has begun."""

    model: str
    task: str
    pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """`done`, `failed` and `left` are pieces of work: of a run its own (profiles and measurements
    too, and `left` with what is live), of a store the sweep's trials."""

    sweep: str
    at: dt.datetime  # UTC
    done: int
    failed: int
    left: int
    slots: tuple[Slot, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)  # by type
    slot_hours: float = 0.0  # used by the sweep so far: records, failed tries, what runs now
    elapsed: float | None = None  # seconds of the run, the oldest of several; None: none is at work
    eta: Eta = field(default_factory=Eta)
    curves: tuple[Curve, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # as `status --json` has them
    unread: int = 0  # records that are there, and whose scores come with the next looks
    notes: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()  # all of the store

    @property
    def total(self) -> int:
        return self.done + self.failed + self.left

    @property
    def running(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.work)


def picture_json(picture: Picture) -> dict[str, Any]:
    """As `status --watch --json` prints it and the page gets it."""
    plain = dataclasses.asdict(picture)
    at = picture.at.isoformat(timespec="seconds")
    return {"schema": SCHEMA, **plain, "at": at, "eta": picture.eta._asdict()}
