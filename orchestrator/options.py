"""Arguments and options that several commands share, and the words that they take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_STORE = Path("lp-sweep-store")
BUILT_IN = "quickstart"


class Format(StrEnum):
    """How a table is printed."""

    table = "table"
    csv = "csv"
    json = "json"
    markdown = "markdown"
    latex = "latex"


class TableName(StrEnum):
    """The tables that `lp-sweep table` prints."""

    min_layers = "min-layers"
    tasks = "tasks"
    strategies = "strategies"
    speed = "speed"


class Unit(StrEnum):
    """What a loss is counted in."""

    points = "points"
    percent = "percent"


FileArgument = Annotated[
    str, typer.Argument(help=f"Sweep file, or `{BUILT_IN}` for the built-in one.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="key=value, such as task=rte,mrpc seed=42,43 recipe.lr=3e-5"),
]
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", envvar="LP_SWEEP_STORE", help="Folder of records. [lp-sweep-store]"),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar="LP_SWEEP_DATA_DIR", help="GLUE as <task>/train.parquet, not the hub."
    ),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", envvar="LP_SWEEP_OFFLINE", help="Never ask the hub.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FormatOption = Annotated[Format, typer.Option("--format", "-f", help="How to print it.")]
SweepOption = Annotated[
    str | None, typer.Option("--sweep", help="Only this sweep of the store (its `name`).")
]
