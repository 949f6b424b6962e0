"""The commands that answer from a store: query, table, paper, report, cka."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lp_sweep.analysis.sqlfiles import VIEWS
from lp_sweep.analysis.tabledef import Unit
from lp_sweep.analysis.tables import TABLES
from lp_sweep.orchestrator.cli.interrupt import ends_promptly
from lp_sweep.orchestrator.cli.options import (
    Commands,
    Format,
    FormatOption,
    JsonOption,
    QueryFormat,
    QueryFormatOption,
    losses,
    strategy_option,
)
from lp_sweep.orchestrator.cli.output import doing, emit, emit_parquet, say, stored, warn_unreadable
from lp_sweep.orchestrator.flags import SetupOption, StoreOption, SweepOption
from lp_sweep.storage.errors import SpecError

app = Commands()


@app.command(
    help=f"Query the store in SQL (DuckDB, read-only). Views: {' '.join(VIEWS)}.\n\n"
    'Example: lp-sweep query "SELECT strategy, k, avg(score) FROM cells GROUP BY ALL"'
)
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over the views; `-` reads stdin.")],
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    form: QueryFormatOption = QueryFormat.table,
    as_json: JsonOption = False,
) -> None:
    from lp_sweep.analysis.render import render_rows
    from lp_sweep.analysis.views import open_views

    try:
        text = sys.stdin.read() if sql == "-" else sql
    except UnicodeDecodeError as error:
        raise SpecError(f"can't read the SQL on stdin: {error}. Send UTF-8.") from None
    form = QueryFormat.json if as_json else form
    if form is QueryFormat.parquet and sys.stdout.isatty():
        raise SpecError("Parquet is no text: write it to a file, such as `... > cells.parquet`.")
    with ends_promptly():
        catalog = open_views(stored(store), sweep=sweep, setup=setup, once=True)
        with catalog.bounded_memory():
            rows = catalog.query(text)
            warn_unreadable(
                catalog.unreadable
            )  # after the query: it reads predictions only if it names them
            if form is QueryFormat.parquet:
                emit_parquet(rows)
            else:
                emit(render_rows(rows, form), end="", form=form)


def _known_table(name: str) -> str:
    if name not in TABLES:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(map(repr, TABLES))}.")
    return name


@app.command()
def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=lambda: [*TABLES],
            callback=_known_table,
            help=f"One of {', '.join(TABLES)}.",
        ),
    ],
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Only this model. May be repeated.")
    ] = None,
    strategy: Annotated[
        list[str] | None,
        strategy_option("Only this strategy; patterns such as 'random*' work. May be repeated."),
    ] = None,
    form: FormatOption = Format.table,
    as_json: JsonOption = False,
    within: Annotated[
        str, typer.Option("--within", help="min-layers: allowed losses, comma-separated.")
    ] = "1,2,3",
    unit: Annotated[
        Unit,
        typer.Option("--unit", help="min-layers: points, or percent of the full model's score."),
    ] = "points",
) -> None:
    """Print a table of results: layers needed, scores, speed, intervals.

    Example: lp-sweep table min-layers --within 1,2,3 --strategy top --format markdown
    """
    from lp_sweep.analysis.render import render
    from lp_sweep.analysis.views import open_views
    from lp_sweep.orchestrator.service import tables

    asked = tables.TableAsked(name, unit, model or (), strategy or ())
    views = TABLES[name].views
    with ends_promptly():
        location = stored(store)
        catalog = open_views(location, sweep=sweep, setup=setup, deltas=losses(within), only=views)
        warn_unreadable(catalog.unreadable)
        made = tables.make_table(catalog, asked)
    form = Format.json if as_json else form
    if form in (Format.csv, Format.json):  # forms without notes
        for note in tables.first_notes(catalog, asked):
            say(f"warning: {note}")
    emit(render(made, form), end="", form=form)


@app.command()
def paper(
    store: StoreOption = None,
    sweep: SweepOption = None,
    number: Annotated[
        list[int] | None, typer.Option("--table", help="1 to 6; default: all. May be repeated.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 1 if a number differs, or none agrees.")
    ] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            envvar="LP_SWEEP_PAPER_MODEL",  # `table --model` is another
            help="YOURS=PAPER'S, such as ./bert=bert-base-cased.",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write figures 2 to 5 into this folder.")
    ] = None,
    form: FormatOption = Format.table,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of Poor Man's BERT from the store, next to the paper's numbers.

    Example: lp-sweep paper --table 1 --check --figures figures
    """
    from lp_sweep.analysis.views import open_views
    from lp_sweep.orchestrator.cli import paperview
    from lp_sweep.orchestrator.service.tables import draw

    form = Format.json if as_json else form
    names = paperview.model_names(model or ())
    with ends_promptly():
        catalog = open_views(stored(store), sweep=sweep)
        warn_unreadable(catalog.unreadable)
        compared = paperview.compared(catalog, number or (), names, form)
        emit(paperview.tables_text(compared, form), end="", form=form)
    if figures:
        drawn = draw(catalog, figures)
        for note in (*drawn.absent, *(f"wrote {path}" for path in drawn.files)):
            say(note)
    if check and not paperview.checked(compared):
        raise typer.Exit(1)


@app.command()
def report(
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write its figures into this folder.")
    ] = None,
    within: Annotated[
        str, typer.Option("--within", help="Allowed losses in points, comma-separated.")
    ] = "1,2,3",
) -> None:
    """Write one HTML page: answer, tables, figures, missing cells. It loads nothing from a network.

    Example: lp-sweep report --out report.html --figures figures
    """

    opened, deltas = stored(store), losses(within)
    from lp_sweep.analysis.report.writing import write_report

    with doing("report") as tell:
        written = write_report(
            opened, out, sweep=sweep, setup=setup, within=deltas, figures=figures, tell=tell
        )
    warn_unreadable(written.unreadable)
    for path in written.figures:
        say(f"wrote {path}")
    say(f"wrote {written.page} ({written.size / 1e3:,.0f} kB)")
