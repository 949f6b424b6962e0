"""`Sweep`: plans and runs a sweep file, and opens its results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lp_sweep.objects import write_sweep
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
    """A sweep, read and checked. Only `run` and `retry` write to its store."""

    def __init__(
        self,
        models: Any,
        tasks: Any,
        strategies: Any,
        *,
        name: str = "sweep",
        store: Place | None = None,
        data_dir: Place | None = None,
        offline: bool | None = None,
        manifest: Place | None = None,
        **keys: Any,
    ) -> None:
        """From objects, with the names of a sweep file; `keys` are its others, such as `seeds` and
        `recipe`. `tasks`: names of GLUE, or a mapping of names to (train, dev), or to an entry of
        the file with rows in it. Rows: a DataFrame, a `datasets.Dataset`, an Arrow table, a list of
        mappings, or a path. Without `text`, every column but the label is a text. Paths are
        relative to the working directory; the others are as of `from_yaml`.

        Raises SpecError with a line for each mistake.
        """
        file = write_sweep(models, tasks, {"name": name, "strategies": strategies, **keys})
        self._read(file, (), store, data_dir=data_dir, offline=offline, manifest=manifest)

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
        made = cls.__new__(cls)
        made._read(file, overrides, store, data_dir=data_dir, offline=offline, manifest=manifest)
        return made

    def _read(
        self, file: Place, overrides: Sequence[str], store: Place | None, **places: Any
    ) -> None:
        try:
            place, *words = [os.fspath(given) for given in (file, *overrides)]
        except TypeError as error:
            raise SpecError(f'{error}: pass each override as a text, such as "task=rte"') from None
        asked = _given(
            store=os.fspath(store or ""),
            data_dir=_path(places["data_dir"]),
            offline=places["offline"],
            manifest=_path(places["manifest"]),
        )
        request = replace(from_environment(Request), file=place, overrides=words, **asked)
        found = request.sweep_file()
        self._request = replace(request, store=request.location(found))
        self.name = found.spec.name

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
        processes: int | Literal["gpus"] | None = None,
        address: str | None = None,
        cache_dir: Place | None = None,
        even_if_not_learned: bool | None = None,
        fail_fast: bool | None = None,
        max_failures: int | None = None,
        max_hours: float | None = None,
        on_trial: Callable[[dict[str, Any]], object] | None = None,
    ) -> RunResult:
        """Runs the missing work on the Ray at `address`, or on a local one; without Ray in as many
        `processes` of this machine ("gpus": one on each GPU), or with `inline` one trial after
        another in this process. Progress goes to stderr, or to one line of a notebook's cell. Call
        it again to continue: stored trials are not repeated. Call it in the
        main thread. An option that is not given defaults to what its environment variable says, as
        of `lp-sweep run`. A failed trial is part of the result. `on_trial` is called in this
        process after each trial or measurement, with its `id`, `status` ("done", "failed", ...),
        `task`, `kept_layers`, `seed`, `score` or `message`; an exception of its own ends the run.
        Raises SpecError, PreflightError and StoreError before the first trial."""
        return self._run(
            on_trial,
            inline=inline,
            processes=None if processes is None else str(processes),
            address=address,
            cache_dir=_path(cache_dir),
            even_if_not_learned=even_if_not_learned,
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
        processes: int | Literal["gpus"] | None = None,
        address: str | None = None,
        cache_dir: Place | None = None,
    ) -> RunResult:
        """Retries failed work: all of it, failures of one type, or the named trials; the rest as of
        `run`. Raises SpecError if nothing has failed."""
        return self._run(
            None,
            retry=True,
            trials=trials,
            error_type=error_type,
            inline=inline,
            processes=None if processes is None else str(processes),
            address=address,
            cache_dir=_path(cache_dir),
        )

    def prefetch(self) -> dict[str, Any]:
        """Downloads models and data sets at pinned revisions, for `offline=True`."""
        return prefetch(self._request).plain()

    def results(self, *, within: float | Sequence[float] = (1, 2, 3)) -> Results:
        """The results of this sweep. Raises StoreError before the first run."""
        return open_store(self.store, sweep=self.name, within=within)

    def _run(self, on_trial: Callable[[dict[str, Any]], object] | None, **asked: Any) -> RunResult:
        words = ("lp-sweep", "run", self._request.file, *self._request.overrides)
        options = {**vars(self._request), **_given(**asked), "command": words}
        prepared = service.run.prepare(replace(from_environment(RunOptions), **options))
        return prepared.run(on_trial and _ended(on_trial))

    def __repr__(self) -> str:
        return f"Sweep({self.name!r}, store={self.store!r})"


_ENDED = ("done", "failed", "lost", "spooled", "not_stored")


def _ended(on_trial: Callable[[dict[str, Any]], object]) -> Callable[[str], None]:
    """Gives the events at which work ends, each with what it is."""
    started: dict[str, dict[str, Any]] = {}

    def event(line: str) -> None:
        said = json.loads(line)
        status = said.pop("event")
        if status == "started":
            started[said["id"]] = said
        elif status in _ENDED:
            on_trial({**started.pop(said["id"], {}), **said, "status": status})

    return event


def _given(**asked: Any) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value not in (None, "")}


def _path(place: Place | None) -> Path | None:
    return Path(place) if place else None
