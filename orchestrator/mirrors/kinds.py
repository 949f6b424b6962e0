"""The mirrors by name, and what they share. Imports none of their libraries."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar, NamedTuple

from lp_sweep.storage.errors import LpSweepError, PreflightError
from lp_sweep.storage.printable import short
from lp_sweep.storage.redact import redact_text

Value = str | int | float | bool


class MirrorKind(StrEnum):
    """The tools that can show trials. Each is a module, and an extra of the package."""

    mlflow = "mlflow"
    wandb = "wandb"
    trackio = "trackio"


class Point(NamedTuple):
    """A point of a curve. Epochs count from 1; scores are from 0 to 1, correlations from -1."""

    metric: str  # validation/accuracy, train/loss
    epoch: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredRun:
    """A trial as a mirror shows it. `key`: the identifier of the trial, or of a failed attempt."""

    key: str
    name: str
    params: Mapping[str, Value]
    tags: Mapping[str, str]
    curves: tuple[Point, ...] = ()
    results: Mapping[str, float]  # `last` is the main metric after the last epoch
    failure: str | None = None  # of a trial that failed: its type and message
    started_at: dt.datetime | None
    ended_at: dt.datetime | None

    @property
    def last_epoch(self) -> int:
        return max((point.epoch for point in self.curves), default=0)

    def by_epoch(self) -> dict[int, dict[str, float]]:
        """The curves: epoch, ascending -> metric -> value."""
        found: dict[int, dict[str, float]] = {}
        for point in sorted(self.curves, key=lambda point: point.epoch):
            found.setdefault(point.epoch, {})[point.metric] = point.value
        return found


class Mirror(ABC):
    """One sweep in one tool. A run that was only partly written counts as missing, and is written
    again."""

    kind: ClassVar[MirrorKind]
    refusals: ClassVar[tuple[type[Exception], ...]]  # what the tool raises

    def __init__(self, sweep: str) -> None:
        """Asks the tool for its complete runs. Raises LpSweepError if it refuses."""
        self.sweep = sweep
        with self._answering():
            self._names = self.complete()

    def has(self, key: str) -> bool:
        return self.name_of(key) in self._names

    def write(self, run: MirroredRun) -> None:
        """Raises LpSweepError if the tool refuses."""
        with self._answering():
            self.put(run)
        self._names.add(self.name_of(run.key))

    def name_of(self, key: str) -> str:
        """The tool's name for a run."""
        return key

    @abstractmethod
    def complete(self) -> set[str]:
        """The names of the sweep's runs that are complete."""

    @abstractmethod
    def put(self, run: MirroredRun) -> None:
        """Writes a run."""

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raises a tool's error as one sentence without secrets: an address may hold a password."""
        try:
            yield
        except self.refusals as error:
            said = short(redact_text(str(error).strip() or type(error).__name__))
            raise LpSweepError(f"{self.kind.value}: {said}") from error


def check_installed(kinds: Collection[MirrorKind]) -> None:
    """Raises PreflightError with the command that installs a missing package."""
    for kind in kinds:
        if find_spec(kind.value) is None:
            raise PreflightError(
                f"the mirror {kind.value} needs the package {kind.value}, which is not installed "
                f"here. Install it: pip install 'lp-sweep[{kind.value}]'"
            )


def open_mirror(kind: MirrorKind, sweep: str) -> Mirror:
    """Opens a mirror at the place that the tool's own settings name (docs/mirrors.md). Raises
    PreflightError without its package, LpSweepError if the tool refuses."""
    check_installed([kind])
    module = import_module(f"lp_sweep.orchestrator.mirrors.to_{kind.value}")
    opened: Mirror = getattr(module, f"{kind.value.title()}Mirror")(sweep)
    return opened
