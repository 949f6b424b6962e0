"""The options of a run, from `lp-sweep run`, `resume` and `retry` or from Python."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from lp_sweep.orchestrator.options import (
    ADVANCED,
    CacheDirOption,
    InlineOption,
    MirrorKind,
    ProcessesOption,
    Request,
    words_of,
)
from lp_sweep.storage.places import node_folder

# set before torch is loaded: threads that wait for each other sleep. Else they spin, and beside
# other work a trial takes many times as long. It changes no value; a number of threads does
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
GPUS = "gpus"  # of `processes`: as many as trials fit on the GPUs


@dataclass(frozen=True, kw_only=True)
class RunOptions(Request):
    """An annotated field is an option. `retry`: run only what has failed, narrowed down by
    `trials` and `error_type`. `command`: the command line, for records."""

    inline: InlineOption = False
    processes: ProcessesOption = None
    address: Annotated[
        str | None,
        Option(
            "--address", envvar=["LP_SWEEP_ADDRESS", "RAY_ADDRESS"], help="Ray cluster to join."
        ),
    ] = None
    cache_dir: CacheDirOption = None
    even_if_not_learned: Annotated[
        bool,
        Option(
            "--even-if-not-learned",
            envvar="LP_SWEEP_EVEN_IF_NOT_LEARNED",
            help="Also prune full models that score no better than guessing.",
            rich_help_panel=ADVANCED,
        ),
    ] = False
    fail_fast: Annotated[
        bool,
        Option("--fail-fast", envvar="LP_SWEEP_FAIL_FAST", help="Stop at the first failed trial."),
    ] = False
    max_failures: Annotated[
        int | None,
        Option(
            "--max-failures",
            envvar="LP_SWEEP_MAX_FAILURES",
            min=1,
            help="Start no more trials after N failures.",
            rich_help_panel=ADVANCED,
        ),
    ] = None
    max_hours: Annotated[
        float | None,
        Option("--max-hours", envvar="LP_SWEEP_MAX_HOURS", min=0.0, help="Hours to train at most."),
    ] = None
    mirrors: Annotated[
        list[MirrorKind],
        Option(
            "--mirror",
            envvar="LP_SWEEP_MIRROR",
            metavar="<tool>",
            help=f"Also copy each finished trial to {', '.join(MirrorKind)}. May be repeated.",
            rich_help_panel=ADVANCED,
        ),
    ] = field(default_factory=list)
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

    def again(self, verb: str, **changed: Any) -> str:
        """The command that runs or retries with these options, the limits of this run included;
        `changed` are other values of fields."""
        if self.inline or self.processes:  # they overrule the variables that name a cluster
            changed = {"address": None} | changed
        same = replace(self, **changed)
        words = ["lp-sweep", verb, same.file, *same.overrides]
        if verb == "retry":
            words += [*same.trials, *(("--type", same.error_type) if same.error_type else ())]
        return shlex.join([*words, *words_of(same)])
