"""Rows of a query, a plan or a table, for programs and notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lp_sweep.analysis.render import render, render_rows
from lp_sweep.storage.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from lp_sweep.analysis.tabledef import Table

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
            raise SpecError(
                "`.pl()` needs the package polars, which is not installed here: pip install "
                "polars. `.df()` is for pandas and needs nothing."
            ) from None
        return polars.DataFrame(polars.from_arrow(self._rows))

    def text(self, format: str = "table") -> str:
        """The rows as `lp-sweep query` prints them: table, csv, json, markdown or latex. Raises
        SpecError."""
        return render_rows(self._rows, format, terminal=False)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

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
