"""`Sweep`: plans and runs a sweep file, and opens its results."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.options import Request, from_environment
from lp_sweep.orchestrator.service.plan import SweepPlan, plan, prefetch
from lp_sweep.results import Results, open_store
from lp_sweep.storage.errors import SpecError

if TYPE_CHECKING:
    from lp_sweep.orchestrator.service.run import RunResult

Place = str | os.PathLike[str]


class Sweep:
    """A sweep file, read and checked. Only `run` and `retry` write to its store."""

    def __init__(self, request: Request) -> None:
        file = request.sweep_file()
        self._request = replace(request, store=request.location(file))
        self.name = file.spec.name

    @classmethod
    def from_yaml(
        cls,
        file: Place,
        *overrides: str,
        store: Place | None = None,
        data_dir: Place | None = None,
        offline: bool | None = None,
        manifest: Place | None = None,
    ) -> Sweep:
        """`file`: a path, or "quickstart" for the built-in sweep; `overrides` as on the command
        line, such as `"task=rte"`, `"seed=42,43"`. The others are the options of `lp-sweep run`,
        and default to what their environment variables say.

        Raises SpecError with a line for each mistake in the file.
        """
        try:
            place, *words = [os.fspath(given) for given in (file, *overrides)]
        except TypeError as error:
            raise SpecError(f'{error}: pass each override as a text, such as "task=rte"') from None
        asked = _given(
            store=os.fspath(store or ""),
            data_dir=_path(data_dir),
            offline=offline,
            manifest=_path(manifest),
        )
        return cls(replace(from_environment(Request), file=place, overrides=words, **asked))

    @property
    def store(self) -> str:
        """The place of its records, which may not exist yet."""
        return str(self._request.store)

    def plan(self) -> SweepPlan:
        """The work that the file asks for, and what the store lacks. Writes nothing. Raises
        SpecError, StoreError, and PreflightError for a model or data that can't be read."""
        return plan(self._request)

    def run(
        self,
        *,
        inline: bool | None = None,
        address: str | None = None,
        cache_dir: Place | None = None,
        fail_fast: bool | None = None,
        max_failures: int | None = None,
        max_hours: float | None = None,
    ) -> RunResult:
        """Runs the missing work on the Ray at `address`, or on a local one; with `inline` one trial
        after another in this process, without Ray. Progress goes to stderr, or to one line of a
        notebook's cell. Call it again to continue: stored trials are not repeated. Call it in the
        main thread. An option that is not given defaults to what its environment variable says, as
        of `lp-sweep run`. A failed trial is part of the result. Raises SpecError, PreflightError
        and StoreError before the first trial."""
        return self._run(
            inline=inline,
            address=address,
            cache_dir=_path(cache_dir),
            fail_fast=fail_fast,
            max_failures=max_failures,
            max_hours=max_hours,
        )

    def retry(
        self,
        trials: Sequence[str] = (),
        *,
        error_type: str | None = None,
        inline: bool | None = None,
        address: str | None = None,
        cache_dir: Place | None = None,
    ) -> RunResult:
        """Retries failed work: all of it, failures of one type, or the named trials; the rest as of
        `run`. Raises SpecError if nothing has failed."""
        return self._run(
            retry=True,
            trials=trials,
            error_type=error_type,
            inline=inline,
            address=address,
            cache_dir=_path(cache_dir),
        )

    def prefetch(self) -> dict[str, Any]:
        """Downloads models and data sets at pinned revisions, for `offline=True`."""
        return prefetch(self._request).plain()

    def results(self, *, within: float | Sequence[float] = (1, 2, 3)) -> Results:
        """The results of this sweep. Raises StoreError before the first run."""
        return open_store(self.store, sweep=self.name, within=within)

    def _run(self, **asked: Any) -> RunResult:
        words = ("lp-sweep", "run", self._request.file, *self._request.overrides)
        options = {**vars(self._request), **_given(**asked), "command": words}
        return service.run.prepare(replace(from_environment(RunOptions), **options)).run()

    def __repr__(self) -> str:
        return f"Sweep({self.name!r}, store={self.store!r})"


def _given(**asked: Any) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value not in (None, "")}


def _path(place: Place | None) -> Path | None:
    return Path(place) if place else None
