"""The options of a run, from `lp-sweep run`, `resume` and `retry` or from Python."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from lp_sweep.orchestrator import flags
from lp_sweep.orchestrator.flags import Flag, words_of
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind
from lp_sweep.storage.places import node_folder

# set before torch is loaded: threads that wait for each other sleep. Else they spin, and beside
# other work a trial takes many times as long. It changes no value; a number of threads does
PATIENT_THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True, kw_only=True)
class RunOptions(Request):
    """A field with a Flag is an option. `retry`: run only what has failed, narrowed down by
    `trials` and `error_type`. `command`: the command line, for records."""

    inline: flags.InlineOption = False
    address: flags.AddressOption = None
    cache_dir: flags.CacheDirOption = None
    fail_fast: Annotated[bool, Flag("Stop at the first failed trial.")] = False
    max_failures: Annotated[
        int | None, Flag("Start no more trials after N failures.", advanced=True, min=1)
    ] = None
    stop_if_nothing_learned: Annotated[
        bool, Flag("Stop if a full model scores no better than guessing.", advanced=True)
    ] = False
    max_hours: Annotated[float | None, Flag("Stop after this many hours.", min=0.0)] = None
    mirrors: Annotated[
        Sequence[MirrorKind],
        Flag(
            f"Also copy each finished trial to {', '.join(MirrorKind)}. May be repeated.",
            name="--mirror",
            advanced=True,
            metavar="<tool>",
            typed=list[MirrorKind],
            read=tuple,
        ),
    ] = ()
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
        if self.inline:  # it overrules the variables that name a cluster
            changed = {"address": None} | changed
        same = replace(self, **changed)
        words = ["lp-sweep", verb, same.file, *same.overrides]
        if verb == "retry":
            words += [*same.trials, *(("--type", same.error_type) if same.error_type else ())]
        return shlex.join([*words, *words_of(same)])
