"""`open_store`: SQL, tables, reports, and the records of a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args

from lp_sweep.analysis.paper import paper_tables
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.options import ExportOptions, MeasureOptions
from lp_sweep.orchestrator.service.store import existing, history, logs_text
from lp_sweep.orchestrator.service.tables import ResultRows, TableRows, draw, html_table, make_table
from lp_sweep.orchestrator.watch.states import sweep_states
from lp_sweep.storage import upkeep
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import DEFAULT_STORE
from lp_sweep.storage.printable import choose
from lp_sweep.trials.spec.specs import ArtefactFormat, Vocabulary

_COUNTED = ("cells", "trials", "trials_done", "trials_failed", "trials_pending")


def open_store(
    store: str | os.PathLike[str] | None = None,
    *,
    sweep: str | None = None,
    setup: int | None = None,
    within: float | Sequence[float] = (1, 2, 3),
) -> Results:
    """Opens a folder or `s3://bucket/prefix`, by default LP_SWEEP_STORE or else `lp-sweep-store` in
    this folder. `sweep`: only this sweep; `setup`: an earlier recipe, data or model, by its number
    in `table("setups")`; `within`: the losses that `min_layers` answers for.

    Raises StoreError if there is no store, SpecError for an unknown sweep or setup.
    """
    named = os.fspath(store) if store is not None else os.environ.get("LP_SWEEP_STORE")
    losses = within if isinstance(within, Sequence) and not isinstance(within, str) else (within,)
    return Results(named or DEFAULT_STORE, sweep, setup, losses)


class Results:
    """A store as it was when it was opened; `refresh()` reads newer records. Read-only, except
    `compact` and `doctor(fix=True)`."""

    def __init__(
        self, location: str, sweep: str | None, setup: int | None, within: Sequence[float]
    ) -> None:
        self._store = existing(location)
        self._sweep, self._setup, self._within = sweep, setup, tuple(within)
        self._catalog = self._open()

    @property
    def location(self) -> str:
        return self._store.location

    @property
    def unreadable(self) -> list[str]:
        """Files that are left out, each with the reason. `doctor(fix=True)` sets them aside."""
        return [f"{item.location}: {item.reason}" for item in self._catalog.unreadable]

    def refresh(self) -> Self:
        """Reads the store again."""
        newer = self._open()
        self._catalog.close()
        self._catalog = newer
        return self

    def sql(self, query: str, **parameters: Any) -> ResultRows:
        """One SELECT over the views (docs/sql.md); `$name` stands for a parameter. Raises
        QueryError."""
        return ResultRows(self._catalog.query(query, parameters))

    def table(
        self,
        name: str = "min-layers",
        *,
        unit: Literal["points", "percent"] = "points",
        models: str | Sequence[str] = (),
        strategies: str | Sequence[str] = (),
        against: str = "",
    ) -> TableRows:
        """A table of `lp-sweep table`; models and strategies are a name or pattern, or several.
        `against`: the strategy that `significance` compares with. Raises SpecError for an unknown
        name."""
        wanted = partial(make_table, unit=unit, models=models, strategies=strategies)
        return TableRows(wanted(self._catalog, str(name), against=against))

    def paper(self, number: int, names: Mapping[str, str] | None = None) -> TableRows:
        """Table 1 to 6 of Poor Man's BERT next to ours; `names` maps our models to the paper's.
        Raises SpecError for another number."""
        return TableRows(paper_tables(self._catalog, [number], names=names)[number])

    def figures(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes the papers' figures as SVG and PNG. Raises SpecError."""
        return draw(self._catalog, Path(folder))

    def report(
        self,
        out: str | os.PathLike[str],
        *,
        figures: str | os.PathLike[str] | None = None,
        dev_rows: bool = False,
    ) -> Path:
        """Writes a page with the answer, candidates, figures, tables and provenance. `figures`: a
        folder for the figures. `dev_rows`: also lists dev rows, with their texts, that only the
        smaller network gets wrong. Raises StoreError."""
        from lp_sweep.analysis.report.writing import write_report

        return write_report(
            self._store,
            Path(out),
            sweep=self._sweep,
            setup=self._setup,
            within=self._within,
            figures=None if figures is None else Path(figures),
            texts=partial(service.export.dev_texts, self._store) if dev_rows else None,
        ).page

    def export(
        self,
        out: str | os.PathLike[str],
        trial: str | None = None,
        *,
        task: str | None = None,
        within: float = 1.0,
        model: str | None = None,
        strategy: str | None = None,
        file: str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        offline: bool = False,
        force: bool = False,
        formats: Sequence[str] = (),
        vocabulary: str = "full",
        texts: Sequence[str | os.PathLike[str]] = (),
    ) -> Path:
        """Writes the network of `trial`, or the smallest one that loses at most `within` points on
        `task`, as a folder that plain transformers loads. Name the sweep `file` and `data_dir`
        (GLUE) if model or data are local. `formats` adds graphs: "onnx", "onnx-int8",
        "onnx-int4". `vocabulary`: "task" leaves the pieces of the train rows and of the files
        `texts`. Raises SpecError if the smallest is not known yet, ExportError if the folder does
        not answer as recorded."""
        asked = ExportOptions(
            out=Path(out),
            trial=trial,
            best=bool(task),
            task=task or "",
            within=within,
            model=model,
            strategy=strategy,
            store=self.location,
            sweep=self._sweep,
            file=None if file is None else os.fspath(file),
            data_dir=None if data_dir is None else Path(data_dir),
            offline=offline,
            force=force,
            formats=_members("format", formats, ArtefactFormat),
            vocabulary=_members("vocabulary", [vocabulary], Vocabulary)[0],
            texts=[os.fspath(path) for path in texts],
        )
        return Path(service.export.export_trial(asked).folder)

    def measure(
        self,
        task: str,
        *,
        formats: Sequence[str] = (),
        vocabularies: Sequence[str] = (),
        texts: Sequence[str | os.PathLike[str]] = (),
        seconds: float = 5.0,
        threads: int = 1,
        model: str | None = None,
        again: bool = False,
        file: str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        offline: bool = False,
    ) -> TableRows:
        """Measures kept networks of `task` as they are shipped, on this machine: torch, onnx and
        onnx-int8, or `formats`, with the full vocabulary, or with `vocabularies` as in `export`.
        Name the sweep `file` and `data_dir` (GLUE) if model or data are local. Raises
        LpSweepError."""
        asked = MeasureOptions(
            task=task,
            store=self.location,
            formats=_members("format", formats, ArtefactFormat),
            vocabularies=_members("vocabulary", vocabularies, Vocabulary),
            texts=[os.fspath(path) for path in texts],
            seconds=seconds,
            threads=threads,
            model=model,
            again=again,
            sweep=self._sweep,
            setup=self._setup,
            file=None if file is None else os.fspath(file),
            data_dir=None if data_dir is None else Path(data_dir),
            offline=offline,
        )
        return TableRows(service.export.measure_task(asked).table)

    def status(self) -> list[dict[str, Any]]:
        """The current progress of each sweep, and its active runs."""
        return sweep_states(self._store, self._sweep).plain()

    def show(self, trial: str) -> dict[str, Any]:
        """The record and failed attempts of a trial or profile, by its identifier or the beginning
        of one. Raises StoreError."""
        return history(self._store, trial).plain()

    def logs(self, trial: str) -> str:
        """Each failed attempt of a trial with its traceback, then its epochs."""
        return logs_text(history(self._store, trial))

    def compact(self) -> dict[str, int]:
        """Merges small records into large files. Safe while a sweep runs."""
        return upkeep.compact(self._store)._asdict()

    def doctor(self, *, fix: bool = False) -> list[dict[str, Any]]:
        """Files that are lost or can't be read; `fix` moves the latter to `set-aside/`."""
        findings = upkeep.examine(self._store)
        if fix:
            upkeep.set_aside(self._store, findings)
        return [item._asdict() for item in findings]

    def close(self) -> None:
        self._catalog.close()

    def _open(self) -> Catalog:
        return open_views(self._store, sweep=self._sweep, setup=self._setup, deltas=self._within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        only = f", sweep={self._sweep!r}" if self._sweep else ""
        return f"open_store({self.location!r}{only})"

    def _repr_html_(self) -> str:
        columns = ["sweep", *_COUNTED]
        rows = [[str(state[name]) for name in columns] for state in self.status()]
        return html_table(repr(self), columns, rows)


def _members(what: str, names: Sequence[str], literal: Any) -> list[Any]:
    """Raises SpecError for a name that the type `literal` does not list."""
    try:
        return [choose(what, name, get_args(literal)) for name in names]
    except ValueError as error:
        raise SpecError(str(error)) from None
