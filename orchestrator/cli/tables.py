"""The commands that answer from a store: query, table, paper, report."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from lp_sweep.analysis.rows import VIEWS, ServingBudget
from lp_sweep.analysis.tables import TABLES
from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.cli.output import (
    INTERRUPTED,
    emit,
    emit_bytes,
    say,
    stored,
    warn_unreadable,
)
from lp_sweep.orchestrator.options import (
    Format,
    FormatOption,
    JsonOption,
    MaxMbOption,
    MaxMsOption,
    SetupOption,
    SmallestOption,
    StoreOption,
    SweepOption,
    UnitOption,
    strategies,
)
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import said_if_slow

if TYPE_CHECKING:
    from lp_sweep.storage.catalog import Catalog

app = typer.Typer()
_PROMPT_SECONDS = 1.0  # after Ctrl-C; then the process is ended

WithinOption = Annotated[
    str,
    Option(
        "--within", envvar="LP_SWEEP_WITHIN", help="Losses that min-layers allows, comma-separated."
    ),
]
FiguresOption = Annotated[
    Path | None,
    Option("--figures", envvar="LP_SWEEP_FIGURES", help="Also write the figures into this folder."),
]


def _losses(within: str) -> tuple[float, ...]:
    """Parses `--within`. Raises SpecError."""
    try:
        return tuple(float(part) for part in within.split(","))
    except ValueError:
        raise SpecError(f"--within {within!r}: give numbers, such as 1,2,3") from None


@contextmanager
def _opened(store: str | None, **settings: Any) -> Iterator[Catalog]:
    """The views of a store, and at the end a warning for each file that could not be read."""
    from lp_sweep.analysis.views import open_views

    with _ends_promptly():
        catalog = open_views(stored(store), **settings)
        yield catalog
        warn_unreadable(catalog.unreadable)  # predictions are read only where a query names them


@contextmanager
def _ends_promptly() -> Iterator[None]:
    """For commands that only read: there is nothing to clean up, so the process ends if it still
    computes a second after Ctrl-C (one huge value, many files on a slow disk)."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, or another program's
        yield
        return
    late = threading.Timer(_PROMPT_SECONDS, os._exit, [INTERRUPTED])
    late.daemon = True

    def interrupted(*_: object) -> None:
        if late.ident is None:
            late.start()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        late.cancel()
        reading = sys.modules.get("lp_sweep.storage.reading")  # loading it takes a while
        if reading is not None and reading.busy():
            os._exit(INTERRUPTED)


@app.command(
    help=f"Query the store in SQL (DuckDB, read-only). Views: {' '.join(VIEWS)}.\n\n"
    'Example: lp-sweep query "SELECT strategy, k, avg(score) FROM cells GROUP BY ALL"'
)
def query(
    sql: Annotated[str, Argument(help="One SELECT over the views; `-` reads stdin.")],
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    form: Annotated[
        Literal[Format, "parquet"],
        Option("--format", "-f", envvar="LP_SWEEP_FORMAT", help="Output format."),
    ] = "table",
    as_json: JsonOption = False,
) -> None:
    from lp_sweep.analysis.render import render_rows

    try:
        text = sys.stdin.read() if sql == "-" else sql
    except UnicodeDecodeError as error:
        raise SpecError(f"can't read the SQL on stdin: {error}. Send UTF-8.") from None
    form = "json" if as_json else form
    if form == "parquet" and sys.stdout.isatty():
        raise SpecError("Parquet is no text: write it to a file, such as `... > cells.parquet`.")
    opened = _opened(store, sweep=sweep, setup=setup, once=True)
    with opened as catalog, catalog.bounded_memory():
        rows = catalog.query(text)
        if form == "parquet":
            emit_bytes(service.tables.parquet_bytes(rows))
        else:
            emit(render_rows(rows, form), end="", form=form)


@app.command()
def table(
    name: Annotated[
        str,
        Argument(
            metavar="NAME", autocompletion=lambda: [*TABLES], help=f"One of {', '.join(TABLES)}."
        ),
    ],
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    model: Annotated[
        list[str] | None,
        Option("--model", envvar="LP_SWEEP_MODEL", help="Only this model. May be repeated."),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        Option(
            "--strategy",
            envvar="LP_SWEEP_STRATEGY",
            autocompletion=strategies,
            help="Only this strategy; patterns such as 'random*' work. May be repeated.",
        ),
    ] = None,
    form: FormatOption = "table",
    as_json: JsonOption = False,
    within: WithinOption = "1,2,3",
    unit: UnitOption = "points",
    max_ms: MaxMsOption = None,
    max_mb: MaxMbOption = None,
    smallest: SmallestOption = False,
    against: Annotated[
        str,
        Option(
            "--against",
            envvar="LP_SWEEP_AGAINST",
            help="significance: compare with this strategy at the same number of layers, instead "
            "of with all layers.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Print a table of results: layers needed, scores, speed, intervals.

    Example: lp-sweep table min-layers --within 1,2,3 --strategy top --format markdown
    """
    tables = service.tables
    needed = {"deltas": _losses(within), "only": tables.table_named(name).views}
    with _opened(store, sweep=sweep, setup=setup, **needed) as catalog:
        made = tables.make_table(
            catalog,
            name,
            unit=unit,
            models=model or (),
            strategies=strategy or (),
            budget=ServingBudget(max_ms, max_mb, smallest),
            against=against,
        )
    form = "json" if as_json else form
    if form in ("csv", "json"):  # forms without notes
        for note in tables.first_notes(catalog, name, model or ()):
            say(f"warning: {note}")
    emit(tables.tables_text([made], form), end="", form=form)


@app.command()
def paper(
    store: StoreOption = None,
    sweep: SweepOption = None,
    number: Annotated[
        list[int] | None,
        Option("--table", envvar="LP_SWEEP_TABLE", help="1 to 6; default: all. May be repeated."),
    ] = None,
    check: Annotated[
        bool,
        Option(
            "--check", envvar="LP_SWEEP_CHECK", help="Exit 1 if a number differs, or none agrees."
        ),
    ] = False,
    model: Annotated[
        list[str] | None,
        Option(
            "--model",
            envvar="LP_SWEEP_PAPER_MODEL",  # `table --model` is another
            help="YOURS=PAPER'S, such as ./bert=bert-base-cased.",
        ),
    ] = None,
    figures: FiguresOption = None,
    form: FormatOption = "table",
    as_json: JsonOption = False,
) -> None:
    """Print the tables of Poor Man's BERT from the store, next to the paper's numbers.

    Example: lp-sweep paper --table 1 --check --figures figures
    """
    tables = service.tables
    form = "json" if as_json else form
    names = tables.paper_names(model or ())
    with _opened(store, sweep=sweep) as catalog:
        compared = tables.beside_paper(catalog, number or (), names, form)
        emit(tables.tables_text(compared, form), end="", form=form)
    if figures:
        for path in tables.draw(catalog, figures):
            say(f"wrote {path}")
    if check and not tables.agrees_with_paper(compared):
        raise typer.Exit(1)


@app.command()
def report(
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    out: Annotated[Path, Option("--out", help="The page to write.")] = Path("report.html"),
    figures: FiguresOption = None,
    within: WithinOption = "1,2,3",
    dev_rows: Annotated[
        bool,
        Option(
            "--dev-rows",
            envvar="LP_SWEEP_DEV_ROWS",
            help="With classes, also list dev rows that only the smaller network gets wrong.",
        ),
    ] = False,
) -> None:
    """Write one HTML page to decide from: answer, candidates, figures, tables. It loads nothing
    from a network.

    Example: lp-sweep report --out report.html --figures figures
    """
    opened, deltas = stored(store), _losses(within)
    from lp_sweep.analysis.report.writing import write_report

    with said_if_slow(say, "reading the store, and drawing figures ..."):
        written = write_report(
            opened,
            out,
            sweep=sweep,
            setup=setup,
            within=deltas,
            figures=figures,
            texts=partial(service.export.dev_texts, opened) if dev_rows else None,
        )
    warn_unreadable(written.unreadable)
    for path in written.figures:
        say(f"wrote {path}")
    say(f"wrote {written.page} ({written.page.stat().st_size / 1e3:,.0f} kB)")
