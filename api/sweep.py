"""A sweep file from Python: planned, run, and its answers opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.orchestrator.plan.policy import Limits
from lp_sweep.orchestrator.service.plan import plan, prefetch
from lp_sweep.orchestrator.service.request import Request
from lp_sweep.plans import SweepPlan
from lp_sweep.results import Results, open_store
from lp_sweep.storage.errors import SpecError

if TYPE_CHECKING:
    from lp_sweep.orchestrator.cli.running import Ended, How, MayUse

Place = str | os.PathLike[str]

_YES, _NO = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")


class Run(NamedTuple):
    """How a run ended. `failed`: identifier -> error type. `stopped_by`: a signal, `failures`,
    `store`, `ray`, `max-hours`, `max-cost`, or None where nothing was left to do. `exit_code`: that
    of `lp-sweep run`, 0 where the sweep is complete."""

    done: int
    failed: dict[str, str]
    stopped_by: str | None
    totals: dict[str, int]
    exit_code: int


class Sweep:
    """A sweep file that was read and checked. Only `run` and `retry` write to its store."""

    def __init__(self, request: Request) -> None:
        file = request.sweep_file()
        self._request = request._replace(store=request.location(file))
        self.name = file.spec.name

    @classmethod
    def from_yaml(
        cls,
        file: Place,
        *overrides: str,
        store: Place | None = None,
        data_dir: Place | None = None,
        offline: bool = False,
        manifest: Place | None = None,
    ) -> Sweep:
        """`file`: a path, or "quickstart" for the built-in sweep; `overrides` as on the command
        line, such as `"task=rte"`, `"seed=42,43"`. The others are the options of `lp-sweep run`,
        and default to what their environment variables say.

        Raises SpecError with a line for each mistake in the file.
        """
        return cls(
            Request(
                os.fspath(file),
                list(overrides),
                _text(store) or os.environ.get("LP_SWEEP_STORE"),
                _path(data_dir or os.environ.get("LP_SWEEP_DATA_DIR") or None),
                offline or _is_set("LP_SWEEP_OFFLINE"),
                _path(manifest or os.environ.get("LP_SWEEP_MANIFEST") or None),
            )
        )

    @property
    def store(self) -> str:
        """Where its records are, or will be."""
        return str(self._request.store)

    def plan(self) -> SweepPlan:
        """What it asks for, and what of it the store has not. Writes nothing. Raises SpecError,
        StoreError, and PreflightError for a model or data that can't be read."""
        return SweepPlan(plan(self._request))

    def run(
        self,
        *,
        address: str | None = None,
        cache_dir: Place | None = None,
        fail_fast: bool = False,
        max_failures: int | None = None,
        max_hours: float | None = None,
        max_cost: float | None = None,
        cluster: Place | None = None,
    ) -> Run:
        """Do what is missing, on the Ray at `address` or one of this machine's own; progress goes
        to stderr. Call it again to go on: what is stored is not done twice. In a program's main
        thread. A trial that fails is in what is returned. Raises SpecError, PreflightError and
        StoreError before the first trial."""
        from lp_sweep.orchestrator.cli import running

        limits = Limits(fail_fast, max_failures)
        may_use = running.MayUse(max_hours, max_cost, _path(cluster))
        return _told(running.run(self._request, self._how(address, cache_dir, limits, may_use)))

    def retry(
        self,
        trials: Sequence[str] = (),
        *,
        error_type: str | None = None,
        address: str | None = None,
        cache_dir: Place | None = None,
    ) -> Run:
        """Try again what has failed: all of it, what failed with one type, or the trials named.
        Raises SpecError where nothing has failed."""
        from lp_sweep.orchestrator.cli import running

        how = self._how(address, cache_dir, Limits(False, None), running.MayUse())
        return _told(running.retry(self._request, how, list(trials), error_type))

    def prefetch(self) -> dict[str, Any]:
        """Download its models and data sets at pinned revisions, for `offline=True`."""
        return prefetch(self._request).plain()

    def results(self, *, within: Sequence[float] = (1, 2, 3)) -> Results:
        """The store, as far as it is this sweep's. Raises StoreError before the first run."""
        return open_store(self.store, sweep=self.name, within=within)

    def _how(
        self, address: str | None, cache_dir: Place | None, limits: Limits, may_use: MayUse
    ) -> How:
        from lp_sweep.orchestrator.cli.running import How

        words = ["lp-sweep", "run", self._request.file, *self._request.overrides]
        folder = _path(cache_dir or os.environ.get("LP_SWEEP_CACHE_DIR"))
        return How(address, folder, limits, False, may_use, command=words)

    def __repr__(self) -> str:
        return f"Sweep({self.name!r}, store={self.store!r})"


def _told(ended: Ended) -> Run:
    outcome = ended.outcome
    return Run(
        outcome.done,
        outcome.failed,
        outcome.stopped_by,
        outcome.plan.totals(),
        ended.exit_code,
    )


def _text(place: Place | None) -> str | None:
    return None if place is None else os.fspath(place)


def _is_set(variable: str) -> bool:
    """As the command line takes it: `0` is no. Raises SpecError."""
    text = os.environ.get(variable, "").strip().lower()
    if text not in (*_YES, *_NO, ""):
        raise SpecError(f"{variable} is {text!r}: give 1 or 0.")
    return text in _YES


def _path(place: Place | None) -> Path | None:
    return None if place is None else Path(place)
