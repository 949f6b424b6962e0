"""The options of `lp-sweep export`. Imports nothing heavy: `--help` reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from lp_sweep.orchestrator import flags
from lp_sweep.orchestrator.flags import Flag


@dataclass(frozen=True)
class Asked:
    """The options of `--best`: a task, a loss and what narrows the choice down."""

    task: Annotated[
        str, Flag("--best: on this task.", completes="tasks", typed=str | None, read=str)
    ] = ""
    within: Annotated[float, Flag("--best: the allowed loss.")] = 1.0
    unit: Annotated[
        Literal["points", "percent"], Flag("--best: points, or percent of the full model's score.")
    ] = "points"
    model: Annotated[str | None, Flag("--best: only this model.")] = None
    strategy: Annotated[
        str | None, Flag("--best: only this strategy. [all]", completes="strategies")
    ] = None
    seed: Annotated[int | None, Flag("--best: this seed. [the one with the median score]")] = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """A field with a Flag is an option. `trial`: an identifier or its beginning; without it the
    `best` network."""

    trial: str | None = None
    best: Asked | None = None
    store: flags.StoreOption = None
    data_dir: flags.DataDirOption = None
    offline: flags.OfflineOption = False
    manifest: flags.ManifestOption = None
    out: flags.OutOption
    sweep: flags.SweepOption = None
    setup: flags.SetupOption = None
    file: Annotated[str | None, Flag("Sweep file that names model and data. [sweep.yaml]")] = None
    cache_dir: flags.CacheDirOption = None
    force: flags.ForceOption = False
    accept_retrained: Annotated[
        bool, Flag("Accept a score that changed after training again.", advanced=True)
    ] = False
    onnx: Annotated[bool, Flag("Also write onnx/model.onnx.")] = False
