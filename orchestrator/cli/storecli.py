"""The commands over a store that need no sweep file: ask it, and keep it in order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lp_sweep.orchestrator.cli import completion
from lp_sweep.orchestrator.cli.interrupt import ends_promptly
from lp_sweep.orchestrator.cli.options import (
    DEFAULT_STORE,
    Format,
    FormatOption,
    JsonOption,
    SetupOption,
    StoreOption,
    SweepOption,
    TableName,
    TrialArgument,
    Unit,
    losses,
)
from lp_sweep.orchestrator.cli.output import emit, say
from lp_sweep.storage.errors import SpecError

app = typer.Typer()


@app.command()
def status(
    store: StoreOption = None,
    sweep: SweepOption = None,
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Follow one sweep until Ctrl-C.")] = False,
    every: Annotated[
        str | None, typer.Option("--every", help="With --watch: time between two looks. [5s]")
    ] = None,
) -> None:
    """Say how far each sweep of a store is, and which runs work on it.

    Example: lp-sweep status --store lp-sweep-store --watch
    """
    if every is not None and not watch:
        raise SpecError("--every is for --watch.")
    if watch:
        from lp_sweep.orchestrator.cli import watching

        watching.watch(store or DEFAULT_STORE, sweep, every or "5s", as_json)
        return
    from lp_sweep.orchestrator.cli import verbs

    emit(verbs.status(store or DEFAULT_STORE, sweep, as_json))


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over the views; `-` reads stdin.")],
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    form: FormatOption = Format.table,
    as_json: JsonOption = False,
) -> None:
    """Ask the store in SQL (DuckDB, read-only). Views: trials cells epochs layers predictions
    attempts min_layers task_table strategy_table random_control speed_table
    recipe_differences.

    Example: lp-sweep query "SELECT strategy, k, avg(score) FROM cells GROUP BY ALL"
    """
    from lp_sweep.orchestrator.cli import verbs

    try:
        text = sys.stdin.read() if sql == "-" else sql
    except UnicodeDecodeError as error:
        raise SpecError(f"can't read the SQL on stdin: {error}. Send UTF-8.") from None
    form = Format.json if as_json else form
    with ends_promptly():
        found = verbs.query(store or DEFAULT_STORE, sweep, text, form, setup)
        emit(found, end="", form=form)


@app.command()
def table(
    name: Annotated[
        TableName,
        typer.Argument(metavar="NAME", show_choices=False, help=f"One of {', '.join(TableName)}."),
    ],
    store: StoreOption = None,
    sweep: SweepOption = None,
    setup: SetupOption = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Only this model. May be repeated.")
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy",
            autocompletion=completion.strategies,
            help="Only this one, or such as 'random*'. May be repeated.",
        ),
    ] = None,
    form: FormatOption = Format.table,
    as_json: JsonOption = False,
    within: Annotated[
        str, typer.Option("--within", help="min-layers: allowed losses, comma-separated.")
    ] = "1,2,3",
    unit: Annotated[
        Unit, typer.Option("--unit", help="min-layers: points, or percent of the full score.")
    ] = Unit.points,
) -> None:
    """Print a table of the paper from the store's records.

    Example: lp-sweep table min-layers --within 1,2,3 --strategy top --format markdown
    """
    from lp_sweep.analysis.render import render
    from lp_sweep.orchestrator.cli import tableview, verbs

    asked = tableview.Asked(name.value, unit.value, model or (), strategy or ())
    views = tableview.VIEWS_READ[name.value]
    with ends_promptly():
        catalog = verbs.opened(store or DEFAULT_STORE, sweep, losses(within), views, setup)
        made = tableview.make_table(catalog, asked)
    form = Format.json if as_json else form
    if form in (Format.csv, Format.json):  # which have no notes
        for note in tableview.first_notes(catalog, asked):
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
        bool, typer.Option("--check", help="Exit 1 where a number differs, or none agrees.")
    ] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            envvar="LP_SWEEP_PAPER_MODEL",  # `table --model` is another
            help="OURS=PAPER'S, such as ./bert=bert-base-cased.",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Write figures 2 to 5 into this folder, too.")
    ] = None,
    form: FormatOption = Format.table,
    as_json: JsonOption = False,
) -> None:
    """Print the tables of Poor Man's BERT from the store, with the paper's number beside each.

    Example: lp-sweep paper --table 1 --check --figures figures
    """
    from lp_sweep.orchestrator.cli import paperview, verbs

    asked = paperview.Asked(
        number or (), Format.json if as_json else form, paperview.model_names(model or ())
    )
    with ends_promptly():
        catalog = verbs.opened(store or DEFAULT_STORE, sweep)
        emit(paperview.tables_text(catalog, asked), end="", form=asked.form)
    for path in paperview.draw(catalog, figures) if figures else ():
        say(f"wrote {path}")
    if check and not paperview.checked(catalog, asked):
        raise typer.Exit(1)


@app.command()
def show(trial: TrialArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print all that is stored of a trial: scores, recipe, data, model, versions, machine, command.

    Example: lp-sweep show t1-0c1f --store lp-sweep-store
    """
    from lp_sweep.orchestrator.cli import ledgerview, verbs

    found = ledgerview.history(verbs.existing(store or DEFAULT_STORE), trial)
    emit(ledgerview.history_json(found) if as_json else ledgerview.show_text(found))


@app.command()
def logs(trial: TrialArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print how a trial went: each failed attempt with its traceback, then its epochs.

    Example: lp-sweep logs t1-0c1f
    """
    from lp_sweep.orchestrator.cli import ledgerview, verbs

    found = ledgerview.history(verbs.existing(store or DEFAULT_STORE), trial)
    emit(ledgerview.history_json(found) if as_json else ledgerview.logs_text(found))


@app.command()
def compact(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Merge small records into large files, so that queries read fewer. Safe while a sweep runs.

    Example: lp-sweep compact --store lp-sweep-store
    """
    from lp_sweep.orchestrator.cli import upkeep

    emit(upkeep.compact(store or DEFAULT_STORE, as_json))


@app.command()
def doctor(
    store: StoreOption = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Set damaged files aside, in the store's set-aside/.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Name the files of a store that are torn, foreign or litter; exit 1 while there are some.

    Example: lp-sweep doctor --fix
    """
    from lp_sweep.orchestrator.cli import upkeep

    report = upkeep.doctor(store or DEFAULT_STORE, fix=fix, as_json=as_json)
    emit(report.text)
    raise typer.Exit(report.exit_code)


@app.command()
def migrate(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Give the records of an older lp-sweep the identifiers of this one; the old ones stay.

    Example: lp-sweep migrate --store lp-sweep-store
    """
    from lp_sweep.orchestrator.cli import upkeep

    emit(upkeep.migrate(store or DEFAULT_STORE, as_json))
