"""The commands that work on a sweep file: run, resume, retry, plan, prefetch, quickstart."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lp_sweep.orchestrator import flags
from lp_sweep.orchestrator.cli import completion
from lp_sweep.orchestrator.cli.interrupt import told_if_interrupted
from lp_sweep.orchestrator.cli.options import (
    Commands,
    FileArgument,
    JsonOption,
    Overrides,
    Printing,
)
from lp_sweep.orchestrator.cli.output import emit, say, warn_unreadable
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import DEFAULT_STORE
from lp_sweep.storage.printable import on_terminal

if TYPE_CHECKING:
    from lp_sweep.orchestrator.service.run import RunResult

_IDENTIFIER = re.compile(r"^[tp]\d+-\w*$")

app = Commands()


@app.command()
def run(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    *,
    options: RunOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan.")] = False,
    printing: Printing,
) -> None:
    """Train what a sweep file asks for and the store does not have yet.

    Example: lp-sweep run sweep.yaml task=rte seed=42,43
    """
    options = replace(options, file=file, overrides=overrides or ())
    if dry_run:
        if printing.events:
            raise SpecError("--events is for a run. For a plan use --json.")
        _plan(options, printing.as_json)
        return
    _start(options, printing)


# a name that users of other tools expect
app.command(
    "resume",
    help="Continue an interrupted sweep: another name of `run`, which always trains only what is "
    "missing.\n\nExample: lp-sweep resume sweep.yaml",
)(run)


@app.command()
def retry(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.failures,
            help="[sweep file] [failed trials] [key=value]; default sweep.yaml, all.",
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failures (the default).")] = False,
    error_type: Annotated[
        str | None, typer.Option("--type", help="Only failures of this type, such as bug.")
    ] = None,
    *,
    options: RunOptions,
    printing: Printing,
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
    _start(replace(options, retry=True, trials=names, error_type=error_type), printing)


def _start(options: RunOptions, printing: Printing) -> NoReturn:
    """Runs the sweep, prints how it ended, and exits."""
    if printing.as_json and printing.events:
        raise SpecError(
            "--events is JSON already, and its last line has what --json prints. Keep one of them."
        )
    if sys.stderr.isatty():  # at once: imports and a hub may take seconds
        say(f"reading {options.file}, the store, models and data ...")
    with told_if_interrupted():
        options = replace(options, command=("lp-sweep", *sys.argv[1:]))
        from lp_sweep.orchestrator.cli.farewell import farewell
        from lp_sweep.orchestrator.service.run import prepare

        prepared = prepare(options, say)

    def told(result: RunResult) -> None:
        code = farewell(result, options, as_json=printing.as_json)
        if connection := sys.modules.get("lp_sweep.orchestrator.engine.connection"):
            connection.end_process(code)
        raise typer.Exit(code)

    prepared.run(partial(emit, to=sys.stdout) if printing.events else None, told)
    raise AssertionError("unreachable")


@app.command()
def plan(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    *,
    inputs: Request,
    as_json: JsonOption = False,
) -> None:
    """Show a sweep's cells and trials, what the store has, and an estimate of hours.

    Example: lp-sweep plan sweep.yaml --json | jq .totals
    """
    _plan(replace(inputs, file=file, overrides=overrides or ()), as_json)


def _plan(request: Request, as_json: bool) -> None:
    from lp_sweep.orchestrator.service import plan as service

    made = service.plan(request)
    warn_unreadable(made.made.ledger.unreadable)
    emit(json.dumps(made.plain()) if as_json else on_terminal(made.text(), sys.stdout))


@app.command()
def prefetch(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    data_dir: flags.DataDirOption = None,
    manifest: flags.ManifestOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download the models and data sets of a sweep at pinned revisions, for `run --offline`.

    Example: lp-sweep prefetch sweep.yaml
    """
    from lp_sweep.orchestrator.service import plan as service

    request = Request(file, overrides or (), data_dir=data_dir, manifest=manifest)
    fetched = service.prefetch(request)
    emit(json.dumps(fetched.plain()) if as_json else fetched.text())


@app.command()
def quickstart(
    overrides: Overrides = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the sweep file, model, data and store.")
    ] = Path("lp-sweep-quickstart"),
    inline: flags.InlineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a toy sweep with its model and data into a folder, and run it.

    Example: lp-sweep quickstart task=toy-sentiment
    """
    from lp_sweep.orchestrator.service.init import write_quickstart

    file = write_quickstart(out)
    say(f"{file}: a toy model and toy tasks. Its store: {out / DEFAULT_STORE}")
    options = RunOptions(
        file=str(file),
        overrides=overrides or (),
        store=str(out / DEFAULT_STORE),
        inline=inline or find_spec("ray") is None,
    )
    _start(options, Printing(as_json=as_json))
