"""Defines a table of `lp-sweep table`: how its rows are fetched, selected and laid out. `tables`
lists all tables.

`Table.rows` is for people; `Table.long` has the raw numbers, which CSV and JSON print.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lp_sweep.analysis import phrases
from lp_sweep.analysis.notes import NOT_ASKED, Note, legend
from lp_sweep.analysis.rows import Row, Unit, grouped
from lp_sweep.storage.printable import metric_name

if TYPE_CHECKING:
    import pyarrow as pa

    from lp_sweep.storage.catalog import Catalog

Text = Callable[[Row], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column's text, and what its heading means, which a report shows on hover."""

    text: Text
    meaning: str

    def __call__(self, row: Row) -> str:
        return self.text(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table for people, and the rows it was made from."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    long: pa.Table
    lead: tuple[str, ...] = ()  # sentences at the top of a screen


class TableSelection(NamedTuple):
    """The unit, models and strategies to show. No name: all models, all strategies."""

    unit: Unit = "points"
    models: Sequence[str] = ()
    strategies: Sequence[str] = ()


class _TableText(NamedTuple):
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
    columns: Mapping[str, Text]  # by heading, after those of `context`; a Column has a meaning
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
        wanted = TableSelection(unit, models, strategies)
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

    def worded(self, raw: list[Row]) -> _TableText:
        """What people read, from the rows that machines read and nothing else."""
        rows = self.prepare(raw)
        columns = {**(context(rows) if self.takes else {}), **self.columns}
        lines, tasks = _lines(rows, columns, self.by_task)
        return _TableText((*columns, *tasks), lines, tuple(self.lead(raw)))


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


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def text(column: str, how: Callable[[Any], str] = _plain) -> Text:
    return lambda row: how(row[column])


CONTEXT: dict[str, Text] = {
    "sweep": text("sweep"),
    "model": text("model"),
    "procedure": Column(text("procedure"), "direct: pruned first, then fine-tuned."),
    "feed-forward": Column(text("feed_forward"), "Kept layers without their feed-forward."),
}


def context(rows: Sequence[Row]) -> dict[str, Text]:
    """The leading columns: always the model, the others only if they have several values."""
    return {
        heading: show
        for heading, show in CONTEXT.items()
        if heading == "model" or len({row.get(heading.replace("-", "_")) for row in rows}) > 1
    }


# -- what some tables do with their rows before the layout


def _place_and_setting(row: Row) -> tuple[Any, ...]:
    fixed = row["k"] if row["threshold"] is None else None
    place = (row["sweep"], row["model"], row["procedure"], row["feed_forward"])
    return (*place, phrases.strategy(row), fixed, row["threshold"])


def with_kept_and_metric(rows: list[Row]) -> list[Row]:
    """Adds to each row the layers that its setting keeps over all tasks, and its task's heading."""
    groups = grouped(rows, _place_and_setting)
    metrics = {
        row["task"]: metric_name(row["metric"], row["positive"]) for row in rows if row["metric"]
    }
    return [
        {
            **row,
            "kept": phrases.kept(groups[_place_and_setting(row)]),
            "heading": phrases.heading(row["task"], metrics.get(row["task"])),
        }
        for row in rows
    ]


def full_depth_once(rows: list[Row]) -> list[Row]:
    """Keeps one row for K=0, the most complete: it is one network for all strategies."""
    merged: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        known = merged.setdefault(_place_and_setting(row), row)
        if (row["n_tasks"], row["n_seeds_all"]) > (known["n_tasks"], known["n_seeds_all"]):
            merged[_place_and_setting(row)] = row
    return list(merged.values())


def named_shortly(rows: list[Row]) -> list[Row]:
    """Moves the procedure into the distillation's name, so that it has no column of its own."""
    return [
        {**row, "distill": phrases.distillation(row), "procedure": None, "change": row["gain"]}
        for row in rows
    ]


# -- rows that no view has


def with_credible_sets(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
    import pyarrow as pa

    from lp_sweep.analysis.statistics.minimum import credible_sets

    long = rows_of_view(table, catalog, wanted)  # only searches have these sets
    found = credible_sets(catalog, long.to_pylist())
    return long.append_column("credible", pa.array(found, pa.list_(pa.int64())))


def min_layers_sets(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
    from lp_sweep.analysis.statistics.minimum import with_sets

    return with_sets(catalog, rows_of_view(table, catalog, wanted))


def by_statistics(name: str) -> Fetch:
    """Fetches rows by a function of `statistics.intervals`, imported late since it loads numpy."""

    def fetch(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
        from lp_sweep.analysis.statistics import intervals

        return getattr(intervals, name)(catalog, wanted.models, wanted.strategies)

    return fetch


def setups(table: TableDef, catalog: Catalog, wanted: TableSelection) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema(
        [
            ("sweep", pa.string()),
            ("setup", pa.int64()),
            ("differences", pa.list_(pa.string())),
            ("cells", pa.int64()),
            ("trials_finished", pa.int64()),
        ]
    )
    rows = [
        (setup.sweep, setup.number, list(setup.differences), setup.cells, setup.finished)
        for setup in catalog.earlier_setups()
    ]
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)
