"""The commands that work on a sweep file: run, resume, retry, plan, prefetch, quickstart."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.cli.output import INTERRUPTED, emit, say, warn_unreadable
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.options import (
    ADVANCED,
    DataDirOption,
    InlineOption,
    JsonOption,
    ManifestOption,
    Request,
    SmallerOptions,
    names_in_store,
    takes_options,
)
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN, DEFAULT_STORE
from lp_sweep.storage.printable import on_terminal
from lp_sweep.storage.redact import redact_command

if TYPE_CHECKING:
    from lp_sweep.orchestrator.service.run import RunResult

_IDENTIFIER = re.compile(r"^[tp]\d+-\w*$")

app = typer.Typer()

FileArgument = Annotated[str, Argument(help=f"Sweep file, or `{BUILT_IN}` for the built-in one.")]
OverridesArgument = Annotated[
    list[str] | None, Argument(help="key=value, such as task=rte,mrpc seed=42,43 recipe.lr=3e-5")
]
EventsOption = Annotated[
    bool,
    Option(
        "--events",
        envvar="LP_SWEEP_EVENTS",
        help="Print events as they happen, one JSON object per line.",
        rich_help_panel=ADVANCED,
    ),
]


@app.command()
@takes_options
def run(
    file: FileArgument = "sweep.yaml",
    overrides: OverridesArgument = None,
    *,
    options: RunOptions,
    rows: SmallerOptions,
    dry_run: Annotated[bool, Option("--dry-run", help="Only plan.")] = False,
    as_json: JsonOption = False,
    events: EventsOption = False,
) -> None:
    """Train what a sweep file asks for and the store does not have yet. With --data, first write
    the sweep file, and at the end the smaller model.

    Example: lp-sweep run sweep.yaml task=rte seed=42,43
    """
    options = replace(options, file=file, overrides=overrides or ())
    if rows.from_rows:
        options, notes = service.smaller.written(rows, options)
        for note in notes:
            say(note)
    if dry_run:
        if events:
            raise SpecError("--events is for a run. For a plan use --json.")
        _plan(options, as_json)
        return
    then = partial(_say_smaller, rows, options) if rows.from_rows else None
    _prepared(options, as_json, events, then)()


def _say_smaller(rows: SmallerOptions, options: RunOptions, result: RunResult) -> None:
    from lp_sweep.orchestrator.cli.store import export_lines

    found = service.smaller.finished(rows, options, result)
    shipped = export_lines(found.exported) if found.exported else result.held_out
    for line in (*found.notes, *shipped):
        say(line)


# a name that users of other tools expect
app.command(
    "resume",
    help="Continue an interrupted sweep: another name of `run`, which always trains only what is "
    "missing.\n\nExample: lp-sweep resume sweep.yaml",
)(run)


def _failures(ctx: typer.Context, incomplete: str) -> Collection[str]:
    """Failed work, once its first letter is typed; before that the shell offers sweep files."""
    from lp_sweep.orchestrator.plan.known import attempted_work

    if not incomplete.startswith(("t", "p")):
        return []
    return names_in_store(ctx, lambda store: set(map(attempted_work, store.names("attempts"))))


@app.command()
@takes_options
def retry(
    what: Annotated[
        list[str] | None,
        Argument(
            autocompletion=_failures,
            help="[sweep file] [failed trials] [key=value]; default sweep.yaml, all.",
        ),
    ] = None,
    failed: Annotated[bool, Option("--failed", help="All failures (the default).")] = False,
    error_type: Annotated[
        str | None, Option("--type", help="Only failures of this type, such as bug.")
    ] = None,
    *,
    options: RunOptions,
    as_json: JsonOption = False,
    events: EventsOption = False,
) -> None:
    """Retry failed trials, including those that `run` skips because they would fail again.

    Example: lp-sweep retry sweep.yaml --type out_of_memory
    """
    words = what or []
    names = [word for word in words if _IDENTIFIER.match(word)]
    overrides = [word for word in words if "=" in word]
    files = [word for word in words if word not in (*names, *overrides)]
    if len(files) > 1:
        raise SpecError(f"two sweep files: {', '.join(files)}. A trial is named t1-0c1f...")
    if names and (error_type or failed):
        raise SpecError("name trials, or choose them with --failed or --type: not both.")
    file = (files or ["sweep.yaml"])[0]
    options = replace(options, file=file, overrides=overrides)
    options = replace(options, retry=True, trials=names, error_type=error_type)
    _prepared(options, as_json, events)()


def _prepared(
    options: RunOptions,
    as_json: bool,
    events: bool = False,
    then: Callable[[RunResult], None] | None = None,
) -> Callable[[], object]:
    """Checks a run. The function that is returned does it, prints how it ended, does what comes
    `then`, and exits."""
    if as_json and events:
        raise SpecError("--events is JSON already: its last line has what --json prints.")
    if sys.stderr.isatty():  # at once: imports and a hub may take seconds
        say(f"reading {options.file}, the store, models and data ...")
    command = ("lp-sweep", *sys.argv[1:])
    options = replace(options, command=command)
    try:
        from lp_sweep.orchestrator.cli.farewell import farewell

        prepared = service.run.prepare(options)
    except KeyboardInterrupt:
        say(f"stopped by Ctrl-C: nothing was trained yet. Go on: {redact_command(command)}")
        raise typer.Exit(INTERRUPTED) from None

    def told(result: RunResult) -> None:
        code = farewell(result, options, as_json=as_json, same=redact_command(command) * bool(then))
        if then:
            then(result)
        if connection := sys.modules.get("lp_sweep.orchestrator.engine.connection"):
            connection.end_process(code)
        raise typer.Exit(code)

    return partial(prepared.run, partial(emit, to=sys.stdout) if events else None, told)


@app.command()
@takes_options
def plan(
    file: FileArgument = "sweep.yaml",
    overrides: OverridesArgument = None,
    *,
    inputs: Request,
    as_json: JsonOption = False,
) -> None:
    """Show what a sweep trains and measures, what the store has, and an estimate of hours.

    Example: lp-sweep plan sweep.yaml --json | jq .totals
    """
    _plan(replace(inputs, file=file, overrides=overrides or ()), as_json)


def _plan(request: Request, as_json: bool) -> None:
    made = service.plan.plan(request)
    warn_unreadable(made.made.ledger.unreadable)
    emit(json.dumps(made.to_dict()) if as_json else on_terminal(made.text(), sys.stdout))


@app.command()
def prefetch(
    file: FileArgument = "sweep.yaml",
    overrides: OverridesArgument = None,
    data_dir: DataDirOption = None,
    manifest: ManifestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download the models and data sets of a sweep at pinned revisions, for `run --offline`.

    Example: lp-sweep prefetch sweep.yaml
    """
    request = Request(file, overrides or (), data_dir=data_dir, manifest=manifest)
    fetched = service.plan.prefetch(request)
    emit(json.dumps(fetched.plain()) if as_json else fetched.text())


@app.command()
def quickstart(
    overrides: OverridesArgument = None,
    out: Annotated[
        Path, Option("--out", help="Folder for the sweep file, model, data and store.")
    ] = Path("lp-sweep-quickstart"),
    inline: InlineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a toy sweep with its model and data into a folder, and run it.

    Example: lp-sweep quickstart task=toy-sentiment
    """
    file = service.init.write_quickstart(out)
    say(f"{file}: a toy model and toy tasks. Its store: {out / DEFAULT_STORE}")
    options = RunOptions(
        file=str(file),
        overrides=overrides or (),
        store=str(out / DEFAULT_STORE),
        inline=inline or find_spec("ray") is None,
    )
    _prepared(options, as_json)()
