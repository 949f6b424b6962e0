"""The command line: parse, call one function, print. Data goes to stdout, all else to stderr.

Exit codes: 0 complete, 1 some trials failed, 2 usage or sweep file, 3 stopped and resumable,
4 preflight (no data, no model, no space, no cluster), 130 interrupted.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from copy import copy
from functools import cache, partial
from shlex import quote
from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.cli import runcli, store, tables
from lp_sweep.orchestrator.cli.output import INTERRUPTED, complain, emit, guard, say
from lp_sweep.orchestrator.options import InitOptions, takes_options
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.printable import did_you_mean

# -- the help, with examples to copy, and errors that suggest the nearest word

# what `--help` lists; `help more` has all
FIRST = ("init", "plan", "run", "status", "table", "report", "export")
ELSEWHERE = {
    "lp-sweep quickstart": "a toy sweep, to see it work",
    "lp-sweep help more": "every command, exit code and variable",
    "lp-sweep help COMMAND": "the same as lp-sweep COMMAND --help",
}
SECTIONS = {
    "Train": ("quickstart", "init", "plan", "prefetch", "run", "retry"),
    "Read results": ("status", "table", "query", "report", "logs"),
    "Export": ("measure", "export"),
    "Maintain a store": ("compact", "doctor", "mirror"),
    "Help": ("help",),
}
# rarely needed: `help more` lists the names, `help COMMAND` describes them
RARE = ("resume", "schema", "paper", "show", "prune")
EXIT_CODES = {
    "0": "complete",
    "1": "some trials failed",
    "2": "wrong usage, or a mistake in the sweep file",
    "3": "stopped; the same command continues",
    "4": "a check before the start failed: no data, model, space, cluster or store",
    "130": "interrupted",
}
ENVIRONMENT = {
    "LP_SWEEP_<OPTION>": "an option's default, in every command: "
    "LP_SWEEP_STORE, LP_SWEEP_DATA_DIR, LP_SWEEP_JSON=1, ...",
    "HF_HOME, HF_TOKEN, HF_HUB_OFFLINE": "the hub's cache, its token, and 1 to never contact it",
    "RAY_ADDRESS": "the cluster to join",
    "CUDA_VISIBLE_DEVICES": "the GPUs to use",
}
# names that other programs give our commands
SYNONYMS = {
    "run": ("train", "start", "fit", "sweep", "finetune", "fine-tune"),
    "plan": ("check", "dry-run", "validate", "estimate"),
    "status": ("list", "ls", "ps", "info"),
    "table": ("results", "scores", "summary"),
    "query": ("sql", "ask", "select"),
    "logs": ("log", "errors"),
    "show": ("describe", "trial"),
    "export": ("save", "best"),
    "doctor": ("fix", "repair"),
    "prefetch": ("download", "fetch", "pull"),
    "resume": ("continue",),
    "quickstart": ("demo", "example", "tutorial"),
}
_PYDANTICS = "Value error, "  # before each of its messages
_ALL = 10_000  # characters of a summary: none is cut
_EXAMPLE = re.compile(r"^Example: ", re.MULTILINE)

# dimensions of a sweep, which users take for options
_OVERRIDE = re.compile("model|task|strategy|procedure|distill|bridge|seed|k|threshold")


class Root(TyperGroup):
    """Lists the commands that everyone needs, or all commands by purpose."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        commands: Iterable[Any] = self.commands.values()
        for command in commands:
            # \b keeps the example on one line, so it can be copied
            command.help = _EXAMPLE.sub("\b\nExample:\n  ", command.help or "")
            command.format_options = partial(_format_options, command)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows = [row for name in FIRST for row in _rows(name, self.commands.get(name))]
        own = [p for p in self.get_params(ctx) if not str(p.name).endswith("_completion")]
        listed = {"Commands": rows, "More": ELSEWHERE.items(), "Options": _records(own, ctx)}
        _write(formatter, listed)

    def everything(self, ctx: Any) -> str:
        """The help with all commands, including those that `--help` omits."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        by_use = {
            title: [row for name in names for row in _rows(name, self.commands.get(name))]
            for title, names in SECTIONS.items()
        }
        by_use["Rarely needed"] = [("lp-sweep help COMMAND", "describes " + ", ".join(RARE))]
        meanings = {"Exit codes": EXIT_CODES.items(), "Environment": ENVIRONMENT.items()}
        options = {"Options": _records(self.get_params(ctx), ctx)}
        _write(formatter, {**by_use, **options, **meanings})
        return str(formatter.getvalue())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Suggests the command for a synonym; typer suggests the nearest name for others."""
        meant = [name for name, others in SYNONYMS.items() if args and args[0].lower() in others]
        if meant and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            said = error.message.removeprefix(_PYDANTICS)
            error.message = said + _meant(said)
            raise
        except Exception as problem:  # an unknown option; typer does not export its class
            unknown: Any = problem
            key = str(getattr(unknown, "option_name", "")).lstrip("-")
            if _OVERRIDE.fullmatch(key) and _takes_overrides(unknown.ctx.command):
                unknown.message += f". To change the sweep, write {key}=VALUE without dashes"
                unknown.possibilities = None
            raise


def _takes_overrides(command: Any) -> bool:
    return any(parameter.name in ("overrides", "what") for parameter in command.params)


def _format_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Arguments, options, and advanced options."""
    panels: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        kind = f"{parameter.param_type_name.title()}s"
        panels.setdefault(getattr(parameter, "rich_help_panel", None) or kind, []).append(parameter)
    _write(formatter, {title: _records(items, ctx) for title, items in panels.items()})


def _records(parameters: Iterable[Any], ctx: Any) -> list[tuple[str, str]]:
    """Help without the variables: errors name them, and docs/environment.md explains them."""
    quiet = [copy(parameter) for parameter in parameters]
    for parameter in quiet:
        parameter.show_envvar = False
    return [record for item in quiet if (record := item.get_help_record(ctx))]


def _write(formatter: Any, lists: Mapping[str, Iterable[tuple[str, str]]]) -> None:
    for title, rows in lists.items():
        if rows:
            with formatter.section(title):
                formatter.write_dl([*rows])


def _rows(name: str, command: Any) -> list[tuple[str, str]]:
    """A line for a command that is not rare."""
    if command is None or command.hidden or name in RARE:
        return []
    return [(name, command.get_short_help_str(_ALL))]


def _meant(message: str) -> str:
    """Suggests the nearest word for `'tabel' is not one of 'tasks', 'speed'.`"""
    given, sign, allowed = message.partition(" is not one of ")
    if not sign:
        return ""
    return did_you_mean(given.strip("'"), re.findall(r"'([^']*)'", allowed))


# -- the program

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
    written = service.init.write_sweep(options)
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
