"""Defines a table of `lp-sweep table`: how its rows are fetched, selected and laid out. `tables`
lists all tables.

`Table.rows` is for people; `Table.long` has the raw numbers, which CSV and JSON print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lp_sweep.analysis.notes import NOT_ASKED, Note, legend
from lp_sweep.analysis.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa

    from lp_sweep.storage.catalog import Catalog

Text = Callable[[Row], str]
Unit = Literal["points", "percent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for people, and the rows it was made from."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    long: pa.Table
    lead: tuple[str, ...] = ()  # sentences at the top of a screen


class Wanted(NamedTuple):
    """The unit, models and strategies to show. No name: all models, all strategies."""

    unit: Unit = "points"
    models: Sequence[str] = ()
    strategies: Sequence[str] = ()


class Worded(NamedTuple):
    """The text of a table without its notes."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lead: tuple[str, ...]


# takes the rows, the catalog, and the models and strategies asked for
Notes = Callable[[list[Row], "Catalog", Sequence[str], Sequence[str]], Iterable[Note]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDef:
    """A table's contents and layout."""

    title: str  # may contain {unit}
    view: str  # the source of its rows: sql/<view>.sql
    order: str = ""  # ORDER BY, after sweep and model
    columns: Mapping[str, Text]  # heading -> text, after the columns of `context`
    by_task: Text | None = None  # text in a column per task, in the order of the plan
    prepare: Callable[[list[Row]], list[Row]] = list  # changes rows before layout
    notes: tuple[Note | Notes, ...] = ()  # shown if a cell needs them
    takes: tuple[str, ...] = ("model", "strategy")  # columns that options select by
    fetch: Fetch | None = None  # None: the view's rows
    reads: tuple[str, ...] = ()  # further views that `fetch` and `notes` name
    report: Literal["open", "folded", "never"] = "folded"  # how a report shows it
    lead: Callable[[list[Row]], Iterable[str]] = lambda rows: ()

    @property
    def views(self) -> tuple[str, ...]:
        """All views that its queries read."""
        return (self.view, *self.reads)

    def __call__(
        self,
        catalog: Catalog,
        *,
        unit: Unit = "points",
        models: Sequence[str] = (),
        strategies: Sequence[str] = (),
    ) -> Table:
        wanted = Wanted(unit, models, strategies)
        long = (self.fetch or rows_of_view)(self, catalog, wanted)
        raw = long.to_pylist()
        said = [
            note
            for item in self.notes
            for note in ((item,) if isinstance(item, Note) else item(raw, catalog, *wanted[1:]))
        ]
        made = self.worded(raw)
        return Table(
            title=self.title.format(unit=unit),
            columns=made.columns,
            rows=made.rows,
            notes=legend(said, made.rows),
            long=long,
            lead=made.lead,
        )

    def worded(self, raw: list[Row]) -> Worded:
        """What people read, from the rows that machines read and nothing else."""
        rows = self.prepare(raw)
        columns = {**(context(rows) if self.takes else {}), **self.columns}
        lines, tasks = _lines(rows, columns, self.by_task)
        return Worded((*columns, *tasks), lines, tuple(self.lead(raw)))


Fetch = Callable[[TableDef, "Catalog", Wanted], "pa.Table"]


def rows_of_view(table: TableDef, catalog: Catalog, wanted: Wanted) -> pa.Table:
    """The view's rows for the models, strategies and unit asked for."""
    conditions, values = ["true"], dict[str, Any]()
    for column, names in (("model", wanted.models), ("strategy", wanted.strategies)):
        if names and column in table.takes:
            conditions.append(f"list_contains(${column}::VARCHAR[], {column})")
            values[column] = list(names)
    if "unit" in table.takes:
        conditions.append("unit = $unit")
        values["unit"] = wanted.unit
    order = ", ".join(("sweep", "model", *filter(None, [table.order])))
    return catalog.query(
        f"FROM {table.view} WHERE {' AND '.join(conditions)} ORDER BY {order}", values
    )


def _lines(
    rows: Sequence[Row], columns: Mapping[str, Text], by_task: Text | None
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The lines of a table, and the headings of its task columns. With `by_task`, a line has a text
    per task, in the order of the plan. Rows with the same text are one network that several
    strategies list: the most complete row is shown."""
    tasks = {
        row["task"]: row.get("heading", row["task"])
        for row in sorted(rows, key=lambda row: row["position"] if by_task else 0)
        if by_task
    }
    lines: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        line = lines.setdefault(tuple(show(row) for show in columns.values()), {})
        best = line.get(row["task"]) if by_task else None
        if by_task and (best is None or _completeness(row) > _completeness(best)):
            line[row["task"]] = row
    shown = tuple(
        (*key, *(by_task(line[task]) if by_task and task in line else NOT_ASKED for task in tasks))
        for key, line in lines.items()
    )
    return shown, tuple(tasks.values())


def _completeness(row: Row) -> tuple[int, int]:
    return row.get("n", 0), row.get("n_expected", 0)


def listing(title: str, long: pa.Table, columns: Mapping[str, Text]) -> Table:
    """A table that is not in TABLES: a line per row and a column per key of `columns`."""
    rows = long.to_pylist()
    lines = tuple(tuple(show(row) for show in columns.values()) for row in rows)
    return Table(title=title, columns=tuple(columns), rows=lines, notes=(), long=long)


def context(rows: Sequence[Row]) -> dict[str, Text]:
    """The leading columns: always the model, the others only if they have several values."""
    return {
        name.replace("_", "-"): text(name)
        for name in ("sweep", "model", "procedure", "feed_forward")
        if name == "model" or len({row.get(name) for row in rows}) > 1
    }


def text(column: str) -> Text:
    return lambda row: "" if row[column] is None else str(row[column])
