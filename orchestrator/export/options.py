"""The options of an export, from `lp-sweep export` or from Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lp_sweep.orchestrator.export.choice import Asked as Best


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of an export. `trial`: an identifier or the beginning of one; else the `best`
    network. `file`: the sweep file (default sweep.yaml, if it exists) that names your own models
    and data."""

    out: str | Path
    trial: str | None = None
    best: Best | None = None
    store: str | None = None
    sweep: str | None = None
    setup: int | None = None
    file: str | None = None
    data_dir: Path | None = None
    manifest: Path | None = None
    cache_dir: Path | None = None
    offline: bool = False
    force: bool = False  # an earlier export may go
    accept_retrained: bool = False
    onnx: bool = False
