"""The command line: parse, call one function, print. Data goes to stdout, all else to stderr.

Exit codes: 0 complete, 1 some trials failed, 2 usage or sweep file, 3 stopped and resumable,
4 preflight (no data, no model, no space, no cluster), 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from shlex import quote
from typing import Annotated, Any

import typer
from typer import Argument, Option

from lp_sweep.orchestrator.cli import runcli, store, tables
from lp_sweep.orchestrator.cli.output import INTERRUPTED, complain, emit, guard, say
from lp_sweep.orchestrator.cli.root import Root
from lp_sweep.orchestrator.options import InitOptions, takes_options
from lp_sweep.storage.errors import LpSweepError

_ALIASES = {"md": "markdown", "tex": "latex"}  # short forms of values

app = typer.Typer(
    name="lp-sweep",
    cls=Root,
    help="How many layers of an encoder does your task need? Fine-tunes layer-pruned networks in a "
    "sweep on Ray, and answers in tables, SQL and a report.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda word: _ALIASES.get(word, word),
    },
)


def main() -> None:
    """Entry point: a user's mistake is one message and an exit code, a bug keeps its traceback."""
    guard()
    try:
        _command()()  # leaves by SystemExit; a wrong option is shown there, Ctrl-C is 130
    except LpSweepError as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # before any command runs
        sys.exit(INTERRUPTED)


@cache
def _command() -> Any:
    """Cached, since building all commands takes longer than most of them run."""
    return typer.main.get_command(app)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        emit(f"lp-sweep {version('lp-sweep')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


app.add_typer(runcli.app)
app.add_typer(store.app)
app.add_typer(tables.app)


@app.command("help")
def show_help(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        Argument(metavar="[command]...", help="A command, or `more` for all of them."),
    ] = None,
) -> None:
    """Print the help of a command; with `more`, of all commands.

    Example: lp-sweep help more
    """
    root = ctx.find_root()
    if words == ["more"]:
        assert isinstance(root.command, Root)
        emit(root.command.everything(root))
    else:
        root.command.main([*(words or ()), "--help"], prog_name=root.info_name)


@app.command()
@takes_options
def init(options: InitOptions) -> None:
    """Write a sweep file that runs as it is, for GLUE or your own rows.

    Example: lp-sweep init --data reviews.csv --text text --label verdict
    """
    from lp_sweep.orchestrator.service.init import write_sweep

    written = write_sweep(options)
    for note in written.notes:
        say(note)
    next_command = f"lp-sweep plan {quote(str(options.file))}"
    say(f"wrote {', '.join(map(str, written.files))}. Next: {next_command}")


@app.command()
def schema(
    markdown: Annotated[
        bool, Option("--markdown", envvar="LP_SWEEP_MARKDOWN", help="Print a Markdown page.")
    ] = False,
) -> None:
    """Print every key of a sweep file, as a JSON Schema or as a page.

    Example: lp-sweep schema > sweep.schema.json
    """
    from lp_sweep.orchestrator.sweepfile.reference import reference
    from lp_sweep.orchestrator.sweepfile.spec import SweepSpec

    if markdown:
        emit(reference(), end="")
    else:
        emit(json.dumps(SweepSpec.model_json_schema(), indent=2))


if __name__ == "__main__":
    main()
