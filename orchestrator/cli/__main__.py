"""The command line: parse, call one function, print. Data goes to stdout, all else to stderr.

Exit codes: 0 complete, 1 some trials failed, 2 usage or sweep file, 3 stopped and resumable,
4 preflight (no data, no model, no space, no cluster), 130 interrupted.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, get_args

import typer

from lp_sweep.orchestrator.cli import (
    clustercli,
    exporting,
    jobcli,
    runcli,
    store,
    tables,
)
from lp_sweep.orchestrator.cli.interrupt import INTERRUPTED
from lp_sweep.orchestrator.cli.options import spread
from lp_sweep.orchestrator.cli.output import complain, emit, guard, say
from lp_sweep.orchestrator.cli.root import Root
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.specs import TaskKind

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
        _leave(error.exit_code)
    except KeyboardInterrupt:  # before any command runs
        _leave(INTERRUPTED)
    except SystemExit as end:
        _leave(end.code)


def _leave(code: Any) -> None:
    """Exits; at once if a lost Ray would keep the process alive."""
    if lifeline := sys.modules.get("lp_sweep.orchestrator.engine.lifeline"):
        lifeline.leave_process(code if isinstance(code, int) else int(code is not None))
    sys.exit(code)


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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


app.add_typer(runcli.app)
app.add_typer(store.app)
app.add_typer(tables.app)
app.add_typer(exporting.app)
app.add_typer(jobcli.app)
app.add_typer(clustercli.app, name="cluster")


@app.command("help")
def show_help(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[command]...", help="A command, or `more` for all of them."),
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


@dataclass(frozen=True, kw_only=True)
class _InitFlags:
    """The options of `init`: fields of `InitOptions`."""

    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="File of your rows: CSV, JSONL, Parquet, CoNLL; split if no --dev."
        ),
    ] = None
    text: Annotated[
        list[str] | None, typer.Option("--text", help="Its column of texts; twice for pairs.")
    ] = None
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="Its column of labels; several of 0 and 1 for multi_label."),
    ] = None
    group: Annotated[
        str | None,
        typer.Option("--group", help="Keep rows with the same value of this column together."),
    ] = None
    dev: Annotated[Path | None, typer.Option("--dev", help="A dev set of your own.")] = None
    kind: Annotated[
        TaskKind | None,
        typer.Option("--kind", metavar="KIND", help=f"{', '.join(get_args(TaskKind))}."),
    ] = None
    corpus: Annotated[
        Path | None,
        typer.Option("--corpus", help="For search, instead of --data: the documents (BEIR)."),
    ] = None
    queries: Annotated[
        Path | None, typer.Option("--queries", help="With --corpus: the queries.")
    ] = None
    qrels: Annotated[
        Path | None, typer.Option("--qrels", help="With --corpus: the judgements.")
    ] = None
    model: Annotated[
        str | None,
        typer.Option("--model", help="An encoder: hub id or folder (default bert-base-cased)."),
    ] = None
    full: Annotated[bool, typer.Option("--full", help="Write every key, commented.")] = False
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False


@app.command()
@spread
def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("sweep.yaml"),
    *,
    flags: _InitFlags,
) -> None:
    """Write a sweep file that runs as it is, for GLUE or your own rows.

    Example: lp-sweep init --data reviews.csv --text text --label verdict
    """
    from lp_sweep.orchestrator.service.init import write_sweep
    from lp_sweep.orchestrator.service.initrows import InitOptions

    options = vars(flags) | {"text": tuple(flags.text or ()), "label": tuple(flags.label or ())}
    written = write_sweep(InitOptions(file=file, **options))
    for note in written.notes:
        say(note)
    say(f"wrote {', '.join(map(str, written.files))}. Next: lp-sweep plan {quote(str(file))}")


@app.command()
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown page.")] = False,
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
