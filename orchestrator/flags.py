"""An option, declared once: `Annotated[type, Flag("its help")]` as the type of a dataclass's field.

The command line makes its options of these fields (`cli/options.py`), Python reads their
environment variables, and commands to paste are written from them. Imports no typer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from lp_sweep.storage.errors import SpecError

PREFIX = "LP_SWEEP_"


@dataclass(frozen=True)
class Flag:
    """How a field is an option."""

    help: str
    _: KW_ONLY
    name: str = ""  # by default that of the field
    advanced: bool = False  # rarely needed: the help lists it last
    argument: bool = False  # a word without dashes
    metavar: str | None = None
    min: float | None = None
    filled: bool = False  # "" is refused: an unset variable of a script is no place
    others: tuple[str, ...] = ()  # variables of other programs that also give it
    completes: str = ""  # a function of `cli/completion.py`
    typed: Any = None  # its type on the command line, by default that of the field
    read: Callable[[Any], Any] | None = None  # makes the value of what was typed, if anything was

    @property
    def variables(self) -> tuple[str, ...]:
        return (variable_of(self.name), *self.others)


def variable_of(flag: str) -> str:
    """LP_SWEEP_DATA_DIR of `--data-dir`."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def flag_in(name: str, hint: Any) -> Flag | None:
    """The Flag of a field or parameter of this type, with its name and its type filled in."""
    for flag in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        if isinstance(flag, Flag):
            spelled = flag.name or f"--{name.replace('_', '-')}"
            return replace(flag, name=spelled, typed=flag.typed or get_args(hint)[0])
    return None


@cache
def flags_of(kind: Any) -> dict[str, Flag]:
    """The options of a dataclass by field, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    found = {field.name: flag_in(field.name, hints[field.name]) for field in fields(kind)}
    return {name: flag for name, flag in found.items() if flag}


def words_of(options: Any) -> list[str]:
    """The options as typed: `--store`, `records`, `--offline`."""
    words: list[str] = []
    for name, flag in flags_of(options.__class__).items():
        value = getattr(options, name)
        if isinstance(value, bool):
            words += [flag.name] if value else []
        elif value is not None:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [flag.name, str(one)]
    return words


def from_environment(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass whose variables are set. Raises SpecError for a wrong value."""
    found = {}
    for name, flag in flags_of(kind).items():
        told = ((variable, os.environ.get(variable, "").strip()) for variable in flag.variables)
        if first := next(((variable, text) for variable, text in told if text), None):
            found[name] = _value(flag, *first)
    return found


def _value(flag: Flag, variable: str, text: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    several = get_origin(flag.typed) is list
    try:
        value = TypeAdapter(flag.typed).validate_python(text.split() if several else text)
    except ValidationError as error:
        why = "give 1 or 0" if flag.typed is bool else error.errors()[0]["msg"]
        raise SpecError(f"{variable} is {text!r}: {why}.") from None
    if flag.min is not None and not value >= flag.min:
        raise SpecError(f"{variable} is {text!r}: give {flag.min:g} or more.")
    return flag.read(value) if flag.read else value


# -- options of several commands

StoreOption = Annotated[
    str | None, Flag("Records: a folder or s3://bucket/prefix. [lp-sweep-store]", filled=True)
]
DataDirOption = Annotated[
    Path | None, Flag("GLUE from files <task>/train.parquet, not from the hub.")
]
OfflineOption = Annotated[bool, Flag("Use cached models and data; never contact the hub.")]
ManifestOption = Annotated[
    Path | None,
    Flag("File of pinned revisions. [sweep.manifest.json next to sweep.yaml]", advanced=True),
]
AddressOption = Annotated[str | None, Flag("Ray cluster to join.", others=("RAY_ADDRESS",))]
CacheDirOption = Annotated[
    Path | None, Flag("Folder on each node for cached tokens and unsent records.", advanced=True)
]
InlineOption = Annotated[bool, Flag("Train one trial after another in this process, without Ray.")]
SweepOption = Annotated[
    str | None, Flag("Only this sweep of the store (its `name`).", completes="sweeps")
]
SetupOption = Annotated[
    int | None,
    Flag(
        "Show an earlier recipe, data or model: its number in `table setups`.", advanced=True, min=1
    ),
]
OutOption = Annotated[str | Path, Flag("Folder to create.", typed=Path)]
ForceOption = Annotated[bool, Flag("Overwrite an earlier export there.")]
