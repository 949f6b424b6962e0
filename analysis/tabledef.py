"""Defines a table of `lp-sweep table`: how its rows are fetched, selected and laid out. `tables`
lists all tables.

`Table.rows` is for people; `Table.long` has the raw numbers, which CSV and JSON print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lp_sweep.analysis.notes import NOT_ASKED
from lp_sweep.analysis.rows import NO_BUDGET, Row, ServingBudget, TableSelection, Unit

if TYPE_CHECKING:
    import pyarrow as pa

    from lp_sweep.storage.catalog import Catalog

Text = Callable[[Row], str]
When = Callable[[Row], Any]  # whether a row needs a note


@dataclass(frozen=True, slots=True)
class Column:
    """A column's text, and what its heading means. A report shows the meaning on hover; `below`: a
    table shows it below its rows as well."""

    text: Text
    meaning: str
    below: bool = False

    def __call__(self, row: Row) -> str:
        return self.text(row)


def text(column: str, how: str | Callable[[Any], str] = "{}") -> Text:
    """The column's value as text. `how`: a function, or a format for values that are not null."""
    if callable(how):
        return lambda row: how(row[column])
    return lambda row: "" if row[column] is None else how.format(row[column])


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for people, and the rows it was made from."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    long: pa.Table
    lead: tuple[str, ...] = ()  # sentences at the top of a screen


Notes = Callable[[Sequence[Row], "Catalog", TableSelection], Iterable[str]]


def note(text: str, when: When | None = None) -> Notes:
    """A note below every table, or below one with a row that needs it."""
    return lambda rows, *_: [text] if when is None or any(map(when, rows)) else []


class _TableText(NamedTuple):
    """The text of a table without its notes."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lead: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDef:
    """A table's contents and layout."""

    title: str  # may contain {unit}
    view: str  # the source of its rows: sql/<view>.sql
    order: str = ""  # ORDER BY, after sweep and model
    columns: Mapping[str, Text]  # by heading, after those of `context`; a Column has a meaning
    by_task: Text | None = None  # text in a column per task, in the order of the plan
    prepare: Callable[[list[Row]], list[Row]] = list  # changes rows before layout
    notes: tuple[Notes, ...] = ()
    empty: str = ""  # the note of a table without rows
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
        budget: ServingBudget = NO_BUDGET,
        deployments: Sequence[str] = (),
    ) -> Table:
        wanted = TableSelection(unit, models, strategies, budget, deployments)
        long = (self.fetch or rows_of_view)(self, catalog, wanted)
        raw = long.to_pylist()
        made = self.worded(raw)
        notes = [text for of in self.notes for text in of(raw, catalog, wanted)]
        notes += [
            f"{heading}: {column.meaning}"
            for heading, column in self.columns.items()
            if isinstance(column, Column) and column.below
        ]
        if self.by_task and any(NOT_ASKED in line for line in made.rows):
            notes.append(f"{NOT_ASKED}: not asked for.")
        return Table(
            title=self.title.format(unit=unit),
            columns=made.columns,
            rows=made.rows,
            notes=tuple(notes) if raw or not self.empty else (self.empty,),
            long=long,
            lead=made.lead,
        )

    def worded(self, raw: list[Row]) -> _TableText:
        """The lines that people read, from the rows that machines read and nothing else.

        With `by_task`, a line has a text per task, in the order of the plan. Rows with the same
        text are one network that several strategies list: the most complete row is shown."""
        rows = self.prepare(raw)
        columns = {**(context(rows) if self.takes else {}), **self.columns}
        lead = tuple(self.lead(raw))
        if self.by_task is None:
            return _TableText(tuple(columns), _lines(rows, columns), lead)
        tasks = {
            row["task"]: row.get("heading", row["task"])
            for row in sorted(rows, key=lambda row: row["position"])
        }
        by_line: dict[tuple[str, ...], dict[str, str]] = {}
        for row in sorted(reversed(rows), key=_completeness):
            by_line.setdefault(_line(row, columns), {})[row["task"]] = self.by_task(row)
        lines = (
            (*line, *(by_line[line].get(task, NOT_ASKED) for task in tasks))
            for line in dict.fromkeys(_lines(rows, columns))
        )
        return _TableText((*columns, *tasks.values()), tuple(lines), lead)


def _completeness(row: Row) -> tuple[int, int]:
    return row.get("n", 0), row.get("n_expected", 0)


Fetch = Callable[[TableDef, "Catalog", TableSelection], "pa.Table"]


def rows_of_view(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
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


def by_statistics(name: str) -> Fetch:
    """Fetches rows by `module.function` of `statistics`, imported late since it loads numpy. A
    function of `minimum` completes the rows of the view."""
    module, _, function = name.partition(".")

    def fetch(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
        make = getattr(import_module(f"lp_sweep.analysis.statistics.{module}"), function)
        if module == "candidates":
            return make(catalog, wanted)
        if module == "minimum":
            return make(catalog, rows_of_view(table, catalog, wanted))
        return make(catalog, wanted.models, wanted.strategies)

    return fetch


def _lines(rows: Iterable[Row], columns: Mapping[str, Text]) -> tuple[tuple[str, ...], ...]:
    return tuple(_line(row, columns) for row in rows)


def _line(row: Row, columns: Mapping[str, Text]) -> tuple[str, ...]:
    return tuple(show(row) for show in columns.values())


CONTEXT: dict[str, Text] = {
    "sweep": text("sweep"),
    "model": text("model"),
    "procedure": Column(text("procedure"), "direct: pruned first, then fine-tuned."),
    "feed-forward": Column(text("feed_forward"), "kept layers without their feed-forward."),
}


def context(rows: Sequence[Row]) -> dict[str, Text]:
    """The leading columns: always the model, the others only if they have several values."""
    return {
        heading: show
        for heading, show in CONTEXT.items()
        if heading == "model" or len({row.get(heading.replace("-", "_")) for row in rows}) > 1
    }
