"""The command line: parse, call one function, print. Data goes to stdout, all else to stderr.

Exit codes: 0 complete, 1 some trials failed, 2 usage or sweep file, 3 stopped and resumable,
4 preflight (no data, no model, no space, no cluster), 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lp_sweep.orchestrator.options import (
    DEFAULT_STORE,
    DataDirOption,
    FileArgument,
    Format,
    FormatOption,
    JsonOption,
    OfflineOption,
    Overrides,
    StoreOption,
    SweepOption,
    TableName,
    Unit,
)
from lp_sweep.storage.errors import LpSweepError, SpecError

app = typer.Typer(
    name="lp-sweep",
    help="How many layers of an encoder does your task need? Sweeps of layer-pruned, fine-tuned "
    "networks on Ray; every number in SQL.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point: a user's mistake is one message and an exit code, a bug keeps its traceback."""
    try:
        app()  # leaves by SystemExit; a wrong option or command is shown there, Ctrl-C is 130
    except LpSweepError as error:
        _complain(str(error))
        sys.exit(error.exit_code)


def _print(text: str, end: str = "\n") -> None:
    """Data, to stdout. A reader that has gone (`lp-sweep query ... | head`) is no error."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise LpSweepError(f"can't write the answer: {error.strerror}") from None


def _complain(message: str) -> None:
    for line in message.splitlines():
        print(f"error: {line}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        _print(f"lp-sweep {version('lp-sweep')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def run(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    address: Annotated[
        str | None, typer.Option("--address", envvar="RAY_ADDRESS", help="Ray cluster to join.")
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option("--cache-dir", envvar="LP_SWEEP_CACHE_DIR", help="Tokens, on each node."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only plan.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Do what a sweep file asks for and the store does not have yet.

    Example: lp-sweep run sweep.yaml task=rte seed=42,43
    """
    from lp_sweep.orchestrator import commands

    if dry_run:
        plan(file, overrides, store, data_dir, offline, as_json)
        return
    code = commands.run(
        commands.Request(file, overrides or [], store, data_dir, offline),
        address=address,
        cache_dir=cache_dir,
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command()
def resume(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    address: Annotated[
        str | None, typer.Option("--address", envvar="RAY_ADDRESS", help="Ray cluster to join.")
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option("--cache-dir", envvar="LP_SWEEP_CACHE_DIR", help="Tokens, on each node."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with an interrupted sweep. The same as `run`, which always does what is missing.

    Example: lp-sweep resume sweep.yaml
    """
    run(file, overrides, store, data_dir, offline, address, cache_dir, False, as_json)


@app.command()
def plan(
    file: FileArgument = "sweep.yaml",
    overrides: Overrides = None,
    store: StoreOption = None,
    data_dir: DataDirOption = None,
    offline: OfflineOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a sweep file asks for, what the store has, and an estimate of the hours.

    Example: lp-sweep plan sweep.yaml --json | jq .totals
    """
    from lp_sweep.orchestrator import commands

    request = commands.Request(file, overrides or [], store, data_dir, offline)
    _print(commands.plan(request, as_json))


@app.command()
def status(
    store: StoreOption = None, sweep: SweepOption = None, as_json: JsonOption = False
) -> None:
    """Say how far each sweep of a store is; works while one is running.

    Example: lp-sweep status --store lp-sweep-store
    """
    from lp_sweep.orchestrator import commands

    _print(commands.status(store or DEFAULT_STORE, sweep, as_json))


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over the views; `-` reads stdin.")],
    store: StoreOption = None,
    sweep: SweepOption = None,
    form: FormatOption = Format.table,
    as_json: JsonOption = False,
) -> None:
    """Ask the store in SQL (DuckDB, read-only). Views: trials cells epochs layers predictions
    attempts min_layers task_table strategy_table speed_table.

    Example: lp-sweep query "SELECT strategy, k, avg(score) FROM cells GROUP BY ALL"
    """
    from lp_sweep.orchestrator import commands

    text = sys.stdin.read() if sql == "-" else sql
    form = Format.json if as_json else form
    _print(commands.query(store or DEFAULT_STORE, sweep, text, form), end="")


@app.command()
def table(
    name: Annotated[TableName, typer.Argument(help="Which table.")],
    store: StoreOption = None,
    sweep: SweepOption = None,
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

    Example: lp-sweep table min-layers --within 1,2,3 --format markdown
    """
    from lp_sweep.orchestrator import commands

    try:
        deltas = tuple(float(part) for part in within.split(","))
    except ValueError:
        raise SpecError(f"--within {within!r}: numbers with commas, such as 1,2,3") from None
    request: dict[str, Any] = {"deltas": deltas, "unit": unit.value}
    form = Format.json if as_json else form
    _print(commands.table(store or DEFAULT_STORE, sweep, name.value, form, request), end="")


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="File to write.")] = Path("sweep.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite it.")] = False,
) -> None:
    """Write a commented sweep file.

    Example: lp-sweep init sweep.yaml
    """
    from importlib.resources import files

    if file.exists() and not force:
        raise SpecError(f"{file} exists. Name another file, or overwrite it with --force.")
    text = (files("lp_sweep.orchestrator") / "templates" / "sweep.yaml").read_text(encoding="utf-8")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(f"can't write {file}: {error.strerror}. Name another file.") from None
    print(f"wrote {file}. Next: lp-sweep plan {file}", file=sys.stderr)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a sweep file.

    Example: lp-sweep schema > sweep.schema.json
    """
    from lp_sweep.orchestrator.spec import SweepSpec

    _print(json.dumps(SweepSpec.model_json_schema(), indent=2))


if __name__ == "__main__":
    main()
