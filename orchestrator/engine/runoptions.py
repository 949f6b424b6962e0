"""The options of a run, from `lp-sweep run`, `resume` and `retry` or from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind
from lp_sweep.storage.places import node_folder


@dataclass(frozen=True, kw_only=True)
class RunOptions(Request):
    """One field for each option; `lp-sweep run --help` describes them. `retry`: run only what has
    failed, narrowed down by `trials` and `error_type`. `command`: the command line, for records."""

    inline: bool = False
    address: str | None = None
    cluster: Path | None = None
    cache_dir: Path | None = None
    fail_fast: bool = False
    max_failures: int | None = None
    stop_if_nothing_learned: bool = False
    max_hours: float | None = None
    max_cost: float | None = None
    mirrors: Sequence[MirrorKind] = ()
    retry: bool = False
    trials: Sequence[str] = ()
    error_type: str | None = None
    command: Sequence[str] = ()

    @property
    def node_folder(self) -> Path:
        """Each node's cache: tokens, and finished records on their way to the store."""
        return node_folder(self.cache_dir)

    def too_many(self, failed: int) -> bool:
        if self.fail_fast and failed:
            return True
        return self.max_failures is not None and failed >= self.max_failures
