"""`table` and the paper's figures: tables of a store, for some models and strategies or all."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lp_sweep.analysis.notes import mixed_notes, setup_notes
from lp_sweep.analysis.rows import Unit
from lp_sweep.analysis.tabledef import Table, TableDef
from lp_sweep.analysis.tables import TABLES
from lp_sweep.storage.errors import SpecError, StoreError
from lp_sweep.storage.printable import choose, say

if TYPE_CHECKING:
    from lp_sweep.storage.catalog import Catalog


def table_named(name: str) -> TableDef:
    """Raises SpecError for an unknown name."""
    try:
        return TABLES[choose("table", name, TABLES)]
    except ValueError as error:
        raise SpecError(str(error)) from None


def make_table(
    catalog: Catalog,
    name: str,
    *,
    unit: Unit = "points",
    models: Sequence[str] = (),
    strategies: Sequence[str] = (),
) -> Table:
    """Models and strategies are names or patterns (empty: all). Raises SpecError for an unknown
    table, and for a model or strategy that is not in the store."""
    definition = table_named(name)
    if strategies and "strategy" not in definition.takes:
        also = "" if "model" in definition.takes else " and no --model"
        raise SpecError(f"table {name} takes no --strategy{also}.")
    if models and "model" not in definition.takes:
        raise SpecError(f"table {name} takes no --model and no --strategy. Use --sweep.")
    notes = first_notes(catalog, name, models)
    models = _named(catalog, "model", models)
    strategies = _named(catalog, "strategy", strategies)
    table = definition(catalog, unit=unit, models=models, strategies=strategies)
    return replace(table, notes=(*notes, *table.notes))


def first_notes(catalog: Catalog, name: str, models: Sequence[str]) -> tuple[str, ...]:
    """Warnings about mixed recipes and hidden setups, mostly none. Tables begin their notes with
    them; next to CSV and JSON, which have no notes, they are printed on stderr."""
    takes = TABLES[name].takes
    if not takes:
        return ()
    hidden = [f"{note}." for note in setup_notes(catalog)]
    if "strategy" not in takes:  # the table is about networks, however they were trained
        return tuple(hidden)
    return (*mixed_notes(catalog, _named(catalog, "model", models)), *hidden)


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


def draw(catalog: Catalog, folder: Path) -> list[Path]:
    """Writes the paper's figures 2 to 5 and our own, as SVG and PNG, and says why one is absent.
    Raises StoreError."""
    from lp_sweep.analysis.figures.drawings import FIGURES, why_absent

    files: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in FIGURES.items():
            drawing = make(catalog)
            if drawing is None:
                say(why_absent(name))
            else:
                files.extend(drawing.save(folder))
    except OSError as error:
        raise StoreError(f"can't write figures to {folder}: {error}. Choose another.") from None
    return files
