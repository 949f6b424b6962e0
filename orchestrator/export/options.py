"""The options of `lp-sweep export`. Imports nothing heavy: `--help` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from lp_sweep.orchestrator.options import (
    ADVANCED,
    CacheDirOption,
    DataDirOption,
    ForceOption,
    ManifestOption,
    OfflineOption,
    OutOption,
    SetupOption,
    StoreOption,
    SweepOption,
    UnitOption,
    strategies,
    tasks,
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Each field is an option. Either `trial`, or `best` with a `task`, a loss and what narrows
    the choice down."""

    trial: Annotated[
        str | None, Argument(help="A trial's identifier, or the beginning of one.")
    ] = None
    best: Annotated[
        bool, Option("--best", help="Choose the smallest network that loses at most --within.")
    ] = False
    task: Annotated[
        str,
        Option("--task", autocompletion=tasks, show_default=False, help="--best: on this task."),
    ] = ""
    within: Annotated[float, Option("--within", help="--best: the allowed loss.")] = 1.0
    unit: UnitOption = "points"
    model: Annotated[str | None, Option("--model", help="--best: only this model.")] = None
    strategy: Annotated[
        str | None,
        Option("--strategy", autocompletion=strategies, help="--best: only this strategy. [all]"),
    ] = None
    seed: Annotated[
        int | None, Option("--seed", help="--best: this seed. [the one with the median score]")
    ] = None
    store: StoreOption = None
    data_dir: DataDirOption = None
    offline: OfflineOption = False
    manifest: ManifestOption = None
    out: OutOption
    sweep: SweepOption = None
    setup: SetupOption = None
    file: Annotated[
        str | None,
        Option(
            "--file",
            envvar="LP_SWEEP_FILE",
            help="Sweep file that names model and data. [sweep.yaml]",
        ),
    ] = None
    cache_dir: CacheDirOption = None
    force: ForceOption = False
    accept_retrained: Annotated[
        bool,
        Option(
            "--accept-retrained",
            help="Accept a score that changed after training again.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    onnx: Annotated[
        bool, Option("--onnx", envvar="LP_SWEEP_ONNX", help="Also write onnx/model.onnx.")
    ] = False
