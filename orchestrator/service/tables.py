"""`table` and the paper's figures: tables of a store, for some models and strategies or all."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lp_sweep.analysis.notes import mixed_notes, setup_notes
from lp_sweep.analysis.tabledef import Table, Unit
from lp_sweep.analysis.tables import TABLES
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.printable import choose

if TYPE_CHECKING:
    from lp_sweep.storage.catalog import Catalog


class TableAsked(NamedTuple):
    """The table; models and strategies are names or patterns (empty: all)."""

    name: str
    unit: Unit = "points"
    models: Sequence[str] = ()
    strategies: Sequence[str] = ()


def make_table(catalog: Catalog, asked: TableAsked) -> Table:
    """Raises SpecError for an unknown table, and for a model or strategy that is not in the
    store."""
    try:
        choose("table", asked.name, TABLES)
    except ValueError as error:
        raise SpecError(str(error)) from None
    definition = TABLES[asked.name]
    if asked.strategies and "strategy" not in definition.takes:
        also = "" if "model" in definition.takes else " and no --model"
        raise SpecError(f"table {asked.name} takes no --strategy{also}.")
    if asked.models and "model" not in definition.takes:
        raise SpecError(f"table {asked.name} takes no --model and no --strategy. Use --sweep.")
    models = _named(catalog, "model", asked.models)
    strategies = _named(catalog, "strategy", asked.strategies)
    table = definition(catalog, unit=asked.unit, models=models, strategies=strategies)
    return replace(table, notes=(*first_notes(catalog, asked), *table.notes))


def first_notes(catalog: Catalog, asked: TableAsked) -> tuple[str, ...]:
    """Warnings about mixed recipes and hidden setups, mostly none. Tables begin their notes with
    them; next to CSV and JSON, which have no notes, they are printed on stderr."""
    takes = TABLES[asked.name].takes
    if not takes:
        return ()
    hidden = [f"{note}." for note in setup_notes(catalog)]
    if "strategy" not in takes:  # the table is about networks, however they were trained
        return tuple(hidden)
    return (*mixed_notes(catalog, _named(catalog, "model", asked.models)), *hidden)


def _named(catalog: Catalog, column: str, patterns: Sequence[str]) -> list[str]:
    """The store's names that the patterns match, such as `random*`."""
    if not patterns:
        return []
    names = catalog.query(f"SELECT DISTINCT {column} FROM cells ORDER BY ALL")[column].to_pylist()
    return [name for pattern in patterns for name in _meant(column, pattern, names)]


def _meant(column: str, pattern: str, names: Sequence[str]) -> list[str]:
    if pattern in names:  # a name may contain a bracket
        return [pattern]
    matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    try:
        return matching or [choose(column, pattern, names)]
    except ValueError as error:
        raise SpecError(f"--{column}: {error}") from None


class Drawn(NamedTuple):
    """The files that were written, and a note for each figure without numbers in the store."""

    files: list[Path]
    absent: list[str]


def draw(catalog: Catalog, folder: Path) -> Drawn:
    """Writes the paper's figures 2 to 5 and our own, as SVG and PNG. Raises StoreError."""
    from lp_sweep.analysis.figures.drawings import FIGURES, why_absent

    drawn = Drawn([], [])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in FIGURES.items():
            drawing = make(catalog)
            if drawing is None:
                drawn.absent.append(why_absent(name))
            else:
                drawn.files.extend(drawing.save(folder))
    except OSError as error:
        raise StoreError(f"can't write figures to {folder}: {error}. Choose another.") from None
    return drawn
