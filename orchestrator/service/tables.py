"""Rows and tables of a store for all who ask: the command line, programs and notebooks."""

from __future__ import annotations

import fnmatch
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import pyarrow as pa
from pyarrow import parquet

from lp_sweep.analysis.notes import mixed_notes, setup_notes
from lp_sweep.analysis.paper import (
    DEPTHS,
    JUDGED,
    counted,
    paper_models,
    paper_tables,
    store_models,
)
from lp_sweep.analysis.render import RAW, render, render_rows
from lp_sweep.analysis.rows import NO_BUDGET, ServingBudget, Unit
from lp_sweep.analysis.tabledef import Table, TableDef
from lp_sweep.analysis.tables import TABLES
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import choose, say, short_model

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from lp_sweep.storage.catalog import Catalog

_MOST_ROWS = 60  # in a notebook, as pandas


class ResultRows:
    """Rows with raw values: `.df()`, `.pl()`, `.arrow()`, or a loop over dictionaries. Prints as a
    table, also in a notebook."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def arrow(self) -> pa.Table:
        return self._rows

    def df(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return self._rows.to_pandas()

    def pl(self) -> pl.DataFrame:
        """The rows as a polars DataFrame. Raises SpecError without polars, which lp-sweep does not
        install."""
        try:
            import polars
        except ImportError:
            raise SpecError("`.pl()` needs `pip install polars`; `.df()` does not.") from None
        return polars.DataFrame(polars.from_arrow(self._rows))

    def text(self, format: str = "table") -> str:
        """The rows as `lp-sweep query` prints them: table, csv, json, markdown or latex. Raises
        SpecError."""
        return render_rows(self._rows, format, terminal=False)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __getitem__(self, at: int | slice) -> Any:
        """A row as a dictionary, or some rows."""
        places = range(len(self))[at]
        if isinstance(places, range):
            return ResultRows(self._rows.take([*places]))
        return self._rows.slice(places, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows.to_pylist())

    def __repr__(self) -> str:
        return self.text().rstrip("\n")

    def _repr_html_(self) -> str:
        return str(self.df().to_html(index=False, escape=True, border=0, max_rows=_MOST_ROWS))


class TableRows(ResultRows):
    """A table: raw numbers, printed as `lp-sweep table` prints it."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.long)
        self._table = table

    @property
    def title(self) -> str:
        return self._table.title

    @property
    def notes(self) -> Sequence[str]:
        """Notes on the numbers: spread, n, missing cells."""
        return self._table.notes

    def text(self, format: str = "table") -> str:
        return render(self._table, format, terminal=False)

    def _repr_html_(self) -> str:
        table = self._table
        notes = "".join(f"<p><small>{html.escape(note)}</small></p>" for note in table.notes)
        return html_table(table.title, table.columns, table.rows) + notes


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table for a notebook. Escapes everything, since names may come from anywhere."""
    return (
        f"<table><caption>{html.escape(title)}</caption><thead>{_line('th', columns)}</thead>"
        f"<tbody>{''.join(_line('td', row) for row in rows)}</tbody></table>"
    )


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


# -- `table` and figures


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
    models: str | Sequence[str] = (),
    strategies: str | Sequence[str] = (),
    budget: ServingBudget = NO_BUDGET,
    against: str = "",
) -> Table:
    """Models and strategies are a name or pattern, or several (empty: all). `against`: the strategy
    that `significance` compares with; "": all layers. Raises SpecError for an unknown table or
    unit, and for a model or strategy that is not in the store."""
    definition = table_named(name)
    unit = cast("Unit", _chosen("unit", "unit", unit, get_args(Unit)))
    if strategies and "strategy" not in definition.takes:
        also = "" if "model" in definition.takes else " and no --model"
        raise SpecError(f"table {name} takes no --strategy{also}.")
    if models and "model" not in definition.takes:
        raise SpecError(f"table {name} takes no --model and no --strategy. Use --sweep.")
    notes = first_notes(catalog, name, models)
    models = _named(catalog, "model", models)
    strategies = _named(catalog, "strategy", strategies)
    if budget != NO_BUDGET and name != "candidates":
        raise SpecError(
            f"table {name} takes no --max-ms, --max-mb and --smallest: candidates does."
        )
    if against and name != "significance":
        raise SpecError(f"table {name} takes no --against: significance does.")
    if against:
        against = _chosen("--against", "strategy", against, _names(catalog, "strategy"))
    table = definition(
        catalog, unit=unit, models=models, strategies=strategies, budget=budget, against=against
    )
    return replace(table, notes=(*notes, *table.notes))


def first_notes(catalog: Catalog, name: str, models: str | Sequence[str]) -> tuple[str, ...]:
    """Warnings about mixed recipes and hidden setups, mostly none. Tables begin their notes with
    them; next to CSV and JSON, which have no notes, they are printed on stderr."""
    takes = TABLES[name].takes
    if not takes:
        return ()
    hidden = [f"{note}." for note in setup_notes(catalog)]
    if "strategy" not in takes:  # the table is about networks, however they were trained
        return tuple(hidden)
    return (*mixed_notes(catalog, _named(catalog, "model", models)), *hidden)


def _named(catalog: Catalog, column: str, patterns: str | Sequence[str]) -> list[str]:
    """The store's names that the patterns match, such as `random*`."""
    if not patterns:
        return []
    names = _names(catalog, column)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [name for pattern in patterns for name in _meant(column, pattern, names)]


def _names(catalog: Catalog, column: str) -> list[str]:
    found = catalog.query(f"SELECT DISTINCT {column} FROM cells ORDER BY ALL")[column]
    return cast("list[str]", found.to_pylist())


def parquet_bytes(rows: pa.Table) -> bytes:
    """The rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    parquet.write_table(rows, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _meant(column: str, pattern: str, names: Sequence[str]) -> list[str]:
    if pattern in names:  # a name may contain a bracket
        return [pattern]
    matching = [
        name
        for name in names
        if fnmatch.fnmatchcase(name, pattern)
        or (column == "model" and short_model(name) == pattern)  # as tables name it
    ]
    return matching or [_chosen(f"--{column}", column, pattern, names)]


def _chosen(option: str, column: str, name: str, names: Sequence[str]) -> str:
    try:
        return choose(column, name, names)
    except ValueError as error:
        raise SpecError(f"{option}: {error}") from None


def draw(catalog: Catalog, folder: Path) -> list[Path]:
    """Writes the papers' figures as SVG and PNG, and says why one is absent. Raises
    SpecError."""
    from lp_sweep.analysis.figures.drawings import save_all

    return save_all(catalog, folder, say)


# -- `paper`: a store next to Poor Man's BERT, table by table


def paper_names(pairs: Sequence[str]) -> dict[str, str]:
    """Parses pairs such as `./my-bert=bert-base-cased`. Raises SpecError."""
    names = {}
    for pair in pairs:
        ours, equals, papers = pair.rpartition("=")
        if not equals or not ours or not papers:
            raise SpecError(f"--model {pair!r}: YOURS=PAPER'S, such as ./bert=bert-base-cased")
        names[ours] = papers
    return names


def beside_paper(
    catalog: Catalog, numbers: Sequence[int], names: Mapping[str, str], form: str
) -> list[Table]:
    """The tables of these numbers, or all. For people, a store without any of the paper's models
    has only tables asked for by number, since every number would be `missing`."""
    tables = paper_tables(catalog, numbers, names=names)
    models = store_models(catalog)
    if paper_models(models, names).of:
        return list(tables.values())
    have = ", ".join(f"{model} ({depth} layers)" for model, depth in models.items()) or "none"
    fitting = (
        f"{ours}={paper}"
        for ours, own in models.items()
        for paper, depth in DEPTHS.items()
        if own == depth
    )
    pair = next(fitting, "./my-bert=bert-base-cased")
    say(
        f"the store has none of the paper's models ({', '.join(DEPTHS)}). It has: {have}. "
        "`lp-sweep run examples/poor-mans-bert.yaml` trains the paper's. A model of as many layers "
        f"may stand for one: --model {pair}. --table prints a table all the same."
    )
    return list(tables.values()) if numbers or form in RAW else []


def tables_text(tables: Sequence[Table], form: str) -> str:
    """The tables one after another, or all in one CSV or JSON."""
    if form in RAW:
        return render_rows(pa.concat_tables(table.long for table in tables), form)
    return "\n".join(render(table, form) for table in tables)


def agrees_with_paper(tables: Sequence[Table]) -> bool:
    """Whether some numbers agree with the paper's and none differs. Prints the differences."""
    rows = [row for table in tables for row in table.long.to_pylist()]
    judged = [row for row in rows if row["verdict"] in JUDGED]
    differ = [row for row in judged if row["verdict"] == "differs"]
    for row in differ:
        ours = "?" if row["ours"] is None else f"{row['ours']:.2f}"
        say(f"differs: {row['source']}: ours {ours}, paper {row['paper']:g}, n={row['n']}")
    if not judged:
        say("nothing was compared: the store has no score of the paper's models on its tasks")
        return False
    say(counted(judged))
    agrees = any(row["verdict"] == "agrees" for row in judged)
    if not agrees and not differ:
        say("no number agrees: nothing is confirmed. More seeds narrow the intervals.")
    return agrees and not differ
