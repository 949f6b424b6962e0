"""Typer's side of the options: what `Commands` makes of Flags, and arguments and options that
several commands share. `root` gives each option its environment variable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from lp_sweep.orchestrator.cli import completion
from lp_sweep.orchestrator.flags import Flag, flag_in, flags_of
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN

_Command = TypeVar("_Command", bound=Callable[..., None])


def strategy_option(help: str) -> Any:
    return typer.Option("--strategy", autocompletion=completion.strategies, help=help)


class Format(StrEnum):
    """How a table is printed."""

    table = "table"
    csv = "csv"
    json = "json"
    markdown = "markdown"
    latex = "latex"


class QueryFormat(StrEnum):
    """How the rows of a query are written."""

    table = "table"
    csv = "csv"
    json = "json"
    markdown = "markdown"
    latex = "latex"
    parquet = "parquet"


def _not_empty(value: str | None) -> str | None:
    """Rejects "": an unset variable of a script must not mean the current folder."""
    if value is not None and not value.strip():
        raise typer.BadParameter("it is empty. Name a folder or s3://bucket/prefix.")
    return value


FileArgument = Annotated[
    str, typer.Argument(help=f"Sweep file, or `{BUILT_IN}` for the built-in one.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value, such as task=rte,mrpc seed=42,43 recipe.lr=3e-5"),
]
JsonOption = Annotated[bool, Flag("Print JSON.", name="--json")]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
QueryFormatOption = Annotated[QueryFormat, typer.Option("--format", "-f", help="Output format.")]
TrialArgument = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.records,
        help="A trial's or profile's identifier, or the beginning of one.",
    ),
]


def losses(within: str) -> tuple[float, ...]:
    """Parses `--within`. Raises SpecError."""
    try:
        return tuple(float(part) for part in within.split(","))
    except ValueError:
        raise SpecError(
            f"--within {within!r}: give numbers separated by commas, such as 1,2,3"
        ) from None


@dataclass(frozen=True, kw_only=True)
class Printing:
    """The options of a command that trains, for its terminal only."""

    as_json: JsonOption = False
    events: Annotated[
        bool, Flag("Print events as they happen, one JSON object per line.", advanced=True)
    ] = False


class Commands(typer.Typer):
    """Commands whose parameters may be Flags, or dataclasses with Flags: an option for each."""

    def command(self, *name: Any, **settings: Any) -> Callable[[_Command], _Command]:
        register = super().command(*name, **settings)

        def added(command: _Command) -> _Command:
            register(spread(command))
            return command

        return added


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command with typer's parameters in place of Flags and of dataclasses with Flags."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if kind := groups.get(name):
            defaults = {field.name: field.default for field in fields(kind)}
            parameters += [
                _parameter(option, flag, None if flag.read else defaults[option])
                for option, flag in flags_of(kind).items()
            ]
        elif own := flag_in(name, hints[name]):
            parameters.append(_parameter(name, own, parameter.default))
        else:
            given = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
            parameters.append(given)

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = _made(kind, given)
        command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(name: str, flag: Flag, default: Any) -> inspect.Parameter:
    """Typer's parameter for a Flag; `default` is MISSING or empty if it is required."""
    make: Any = typer.Argument if flag.argument else typer.Option
    made = make(
        ... if default in (MISSING, inspect.Parameter.empty) else default,
        *([] if flag.argument else [flag.name]),
        help=flag.help,
        metavar=flag.metavar,
        min=flag.min,
        callback=_not_empty if flag.filled else None,
        envvar=[*flag.variables] if flag.others else None,  # else `root` gives it one
        autocompletion=getattr(completion, flag.completes) if flag.completes else None,
        rich_help_panel="Advanced" if flag.advanced else None,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=made, annotation=flag.typed
    )


def _made(kind: Any, given: dict[str, Any]) -> Any:
    """The dataclass, whose options are taken from `given`."""
    values = {}
    for name, flag in flags_of(kind).items():
        value = given.pop(name)
        if flag.read is None:
            values[name] = value
        elif value:
            values[name] = flag.read(value)
    return kind(**values)
