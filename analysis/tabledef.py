"""Defines a table of `lp-sweep table`: how its rows are fetched, selected and laid out. `tables`
lists all tables.

`Table.rows` is for people; `Table.long` has the raw numbers, which CSV and JSON print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.analysis.notes import NOT_ASKED
from lp_sweep.analysis.rows import NO_BUDGET, Row, ServingBudget, TableSelection, Unit
from lp_sweep.storage.printable import short_models

if TYPE_CHECKING:
    import pyarrow as pa

    from lp_sweep.storage.catalog import Catalog


class TableCell(NamedTuple):
    """The text of a cell that says more than a word. `footnotes`: sentences, which get letters;
    `seeds`: how many its score is from, said once a row if all its scores have the same."""

    text: str
    footnotes: tuple[str, ...] = ()
    seeds: str = ""


def plain(cell: str | TableCell) -> str:
    """The text alone."""
    return cell if isinstance(cell, str) else cell.text


Text = Callable[[Row], str | TableCell]
When = Callable[[Row], Any]  # whether a row needs a note


@dataclass(frozen=True, slots=True)
class Column:
    """A column's text, and what its heading means. A report shows the meaning on hover; a table
    shows it below its rows if a row needs it."""

    text: Text
    meaning: str
    below: When | bool = False

    def __call__(self, row: Row) -> str | TableCell:
        return self.text(row)

    def needed_by(self, rows: Iterable[Row]) -> bool:
        return any(map(self.below, rows)) if callable(self.below) else self.below and any(rows)


def text(column: str, how: str | Callable[[Any], str | TableCell] = "{}") -> Callable[[Row], Any]:
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
    values: int = 0  # how many of the columns, at the end, do not name a row
    joined: tuple[str, ...] = ()  # where rows differ in one of these, a screen joins them


Notes = Callable[[Sequence[Row], "Catalog", TableSelection], Iterable[str]]


def note(text: str, when: When | None = None) -> Notes:
    """A note below a table with rows, or below one with a row that needs it."""
    return lambda rows, *_: [text] if any(map(when, rows) if when else rows) else []


class _TableText(NamedTuple):
    """The text of a table without its notes."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lead: tuple[str, ...]
    footnotes: tuple[str, ...]
    values: int


class _Footnotes:
    """Letters for the footnotes of a table, in the order in which they are read."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def marked(self, cell: str | TableCell) -> str:
        """`5–6 of 6 [a]`"""
        notes = () if isinstance(cell, str) else cell.footnotes
        return " ".join([plain(cell), *map(self._mark, notes)])

    def _mark(self, footnote: str) -> str:
        number = len(self._letters)
        letter = ascii_lowercase[number % 26] * (1 + number // 26)
        return f"[{self._letters.setdefault(footnote, letter)}]"

    def notes(self) -> tuple[str, ...]:
        return tuple(f"[{letter}] {footnote}" for footnote, letter in self._letters.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDef:
    """A table's contents and layout."""

    title: str  # may contain {unit}, {against}
    view: str  # the source of its rows: sql/<view>.sql
    order: str = ""  # ORDER BY, after sweep and model
    columns: Mapping[str, Text]  # by heading, after those of `context`; a Column has a meaning
    by_task: Callable[[Row], TableCell] | None = (
        None  # text in a column per task, in the order of the plan
    )
    prepare: Callable[[list[Row]], list[Row]] = list  # changes rows before layout
    notes: tuple[Notes, ...] = ()
    empty: str = ""  # the note of a table without rows
    takes: tuple[str, ...] = ("model", "strategy")  # columns that options select by
    fetch: Fetch | None = None  # None: the view's rows
    reads: tuple[str, ...] = ()  # further views that `fetch` and `notes` name
    in_report: bool = True
    lead: Callable[[list[Row]], Iterable[str]] = lambda rows: ()
    labels: int = 0  # how many of `columns` name a row; with `by_task` all do
    joined: tuple[str, ...] = ()  # as in `Table`

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
        against: str = "",
    ) -> Table:
        wanted = TableSelection(unit, models, strategies, budget, deployments, against)
        long = (self.fetch or rows_of_view)(self, catalog, wanted)
        raw = long.to_pylist()
        made = self.worded(raw)
        notes = [text for of in self.notes for text in of(raw, catalog, wanted)]
        notes += [
            f"{heading}: {column.meaning}"
            for heading, column in (*context(raw).items(), *self.columns.items())
            if isinstance(column, Column) and column.needed_by(raw)
        ]
        if self.by_task and any(NOT_ASKED in line for line in made.rows):
            notes.append(f"{NOT_ASKED}: not asked for.")
        return Table(
            title=self.title.format(
                unit=unit, against=f"{against} with as many layers" if against else "all layers"
            ),
            columns=made.columns,
            rows=made.rows,
            notes=(*made.footnotes, *notes) if raw or not self.empty else (self.empty,),
            long=long,
            lead=made.lead,
            values=made.values,
            joined=self.joined,
        )

    def worded(self, raw: list[Row]) -> _TableText:
        """The lines that people read, from the rows that machines read and nothing else.

        With `by_task`, a line has a text per task, in the order of the plan. Rows with the same
        text are one network that several strategies list: the most complete row is shown."""
        shorter = short_models({row["model"] for row in raw if "model" in row})
        rows = [
            {**row, "model": shorter.get(row.get("model", ""), "")} for row in self.prepare(raw)
        ]
        columns = {**(context(rows) if self.takes else {}), **self.columns}
        lead, marks = tuple(self.lead(raw)), _Footnotes()
        if self.by_task is None:
            lines = tuple(tuple(map(marks.marked, _line(row, columns))) for row in rows)
            values = len(self.columns) - self.labels
            return _TableText(tuple(columns), lines, lead, marks.notes(), values)
        tasks = {
            row["task"]: row.get("heading", row["task"])
            for row in sorted(rows, key=lambda row: row["position"])
        }
        by_line: dict[_Line, dict[str, TableCell]] = {_line(row, columns): {} for row in rows}
        for row in sorted(reversed(rows), key=_completeness):
            by_line[_line(row, columns)][row["task"]] = self.by_task(row)
        seeds = {line: {cell.seeds for cell in of.values()} - {""} for line, of in by_line.items()}
        once = any(seeds.values()) and all(len(found) <= 1 for found in seeds.values())
        shown = []
        for line, of_line in by_line.items():
            cells = [of_line.get(task, TableCell(NOT_ASKED)) for task in tasks]
            if once:
                line = (*line, "".join(seeds[line]))
            else:
                cells = [cell._replace(text=_with_seeds(cell)) for cell in cells]
            shown.append(tuple(map(marks.marked, (*line, *cells))))
        headings = (*columns, *(["seeds"] if once else []), *tasks.values())
        return _TableText(headings, tuple(shown), lead, marks.notes(), len(tasks))


def _with_seeds(cell: TableCell) -> str:
    return f"{cell.text} n={cell.seeds}" if cell.seeds else cell.text


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
        of_view = module == "minimum"
        return make(catalog, rows_of_view(table, catalog, wanted) if of_view else wanted)

    return fetch


_Line = tuple[str | TableCell, ...]


def _line(row: Row, columns: Mapping[str, Text]) -> _Line:
    return tuple(show(row) for show in columns.values())


CONTEXT: dict[str, Text] = {
    "sweep": text("sweep"),
    "model": text("model"),
    "procedure": Column(
        text("procedure"),
        "direct: pruned first, then fine-tuned.",
        below=lambda row: row.get("procedure") == "direct",
    ),
    "feed-forward": Column(text("feed_forward"), "kept layers without their feed-forward."),
}


def context(rows: Sequence[Row]) -> dict[str, Text]:
    """The leading columns: always the model, the others only if they have several values."""
    return {
        heading: show
        for heading, show in CONTEXT.items()
        if heading == "model" or len({row.get(heading.replace("-", "_")) for row in rows}) > 1
    }
