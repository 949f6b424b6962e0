"""What a question to a store gave, for the library that goes on with it."""

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

    from lp_sweep.analysis.tables import Table


class Rows:
    """Rows with raw values: `.df()`, `.pl()`, `.arrow()`, or a loop over dictionaries. Printed it
    is a table, in a notebook too."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def arrow(self) -> pa.Table:
        return self._rows

    def df(self) -> pd.DataFrame:
        """For pandas."""
        return self._rows.to_pandas()

    def pl(self) -> pl.DataFrame:
        """For polars. Raises SpecError where it is not installed."""
        try:
            import polars
        except ImportError:
            raise SpecError("polars is not installed: pip install polars") from None
        return polars.DataFrame(polars.from_arrow(self._rows))

    def text(self, format: str = "table") -> str:
        """As `lp-sweep query` prints it: table, csv, json, markdown or latex. Raises SpecError."""
        return render_rows(self._rows, format, terminal=False)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows.to_pylist())

    def __repr__(self) -> str:
        return self.text().rstrip("\n")

    def _repr_html_(self) -> str:
        return str(self.df().to_html(index=False, escape=True, border=0))


class TableRows(Rows):
    """One of the tables: the raw numbers of its rows, and printed as `lp-sweep table` prints it."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.long)
        self._table = table

    @property
    def title(self) -> str:
        return self._table.title

    @property
    def notes(self) -> Sequence[str]:
        """What to know of the numbers: spread, n, what is missing."""
        return self._table.notes

    def text(self, format: str = "table") -> str:
        return render(self._table, format, terminal=False)

    def _repr_html_(self) -> str:
        table = self._table
        notes = "".join(f"<p><small>{html.escape(note)}</small></p>" for note in table.notes)
        return (
            f"<table><caption>{html.escape(table.title)}</caption>"
            f"<thead>{_line('th', table.columns)}</thead>"
            f"<tbody>{''.join(_line('td', row) for row in table.rows)}</tbody></table>{notes}"
        )


def _line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
