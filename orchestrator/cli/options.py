"""Arguments and options that several commands share. `root` gives each option its environment
variable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from lp_sweep.orchestrator.cli import completion
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN


def advanced(flag: str, help: str, **settings: Any) -> Any:
    """A rarely needed option, which the help of a command lists last."""
    return typer.Option(flag, help=help, rich_help_panel="Advanced", **settings)


def strategy_option(help: str) -> Any:
    return typer.Option("--strategy", autocompletion=completion.strategies, help=help)


class Format(StrEnum):
    """How a table is printed."""

    table = "table"
    csv = "csv"
    json = "json"
    markdown = "markdown"
    latex = "latex"


class Unit(StrEnum):
    """The unit of a loss."""

    points = "points"
    percent = "percent"


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
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        callback=_not_empty,
        help="Records: a folder or s3://bucket/prefix. [lp-sweep-store]",
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="GLUE from files <task>/train.parquet, not from the hub."),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="Use cached models and data; never contact the hub.")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address", envvar=["LP_SWEEP_ADDRESS", "RAY_ADDRESS"], help="Ray cluster to join."
    ),
]
InlineOption = Annotated[
    bool,
    typer.Option("--inline", help="Train one trial after another in this process, without Ray."),
]
CacheDirOption = Annotated[
    Path | None,
    advanced("--cache-dir", "Folder on each node for cached tokens and unsent records."),
]
ClusterFileOption = Annotated[
    Path | None,
    advanced("--cluster", "Cluster file for `ray up`, with sizes and prices."),
]
ManifestOption = Annotated[
    Path | None,
    advanced("--manifest", "File of pinned revisions. [sweep.manifest.json next to sweep.yaml]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="Output format.")]
SweepOption = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        autocompletion=completion.sweeps,
        help="Only this sweep of the store (its `name`).",
    ),
]
SetupOption = Annotated[
    int | None,
    advanced(
        "--setup", "Show an earlier recipe, data or model: its number in `table setups`.", min=1
    ),
]
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
class InputFlags:
    """The options that say where a sweep's store, models and data are: fields of `Request`."""

    store: StoreOption = None
    data_dir: DataDirOption = None
    offline: OfflineOption = False
    manifest: ManifestOption = None


@dataclass(frozen=True, kw_only=True)
class RunFlags(InputFlags):
    """The options of `run`, `resume` and `retry`."""

    inline: InlineOption = False
    address: AddressOption = None
    cache_dir: CacheDirOption = None
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first failed trial.")
    ] = False
    max_failures: Annotated[
        int | None,
        advanced("--max-failures", "Start no more trials after N failures.", min=1),
    ] = None
    stop_if_nothing_learned: Annotated[
        bool,
        advanced(
            "--stop-if-nothing-learned",
            "Stop if a full model scores no better than the majority class.",
        ),
    ] = False
    max_hours: Annotated[
        float | None,
        typer.Option("--max-hours", min=0.0, help="Stop after this many hours."),
    ] = None
    max_cost: Annotated[
        float | None,
        advanced(
            "--max-cost",
            "Stop at this cost of the machines, at the cluster file's prices.",
            min=0.0,
        ),
    ] = None
    cluster: ClusterFileOption = None
    mirrors: Annotated[
        list[MirrorKind] | None,
        advanced(
            "--mirror",
            f"Also copy each finished trial to {', '.join(MirrorKind)}. May be repeated.",
            metavar="<tool>",
        ),
    ] = None
    detach: Annotated[
        bool,
        advanced("--detach", "Run as a job of the cluster, independent of this terminal."),
    ] = False


@dataclass(frozen=True, kw_only=True)
class Printing:
    """The output options of a command that trains."""

    as_json: JsonOption = False
    events: Annotated[
        bool,
        advanced("--events", "Print events as they happen, one JSON object per line."),
    ] = False


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces each parameter whose type is a dataclass by one option for each field, for typer."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            given = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
            parameters.append(given)
            continue
        of_fields = get_type_hints(groups[name], include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=of_fields[field.name],
            )
            for field in fields(groups[name])
        ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called
