"""How a run goes about its work: where, how many at a time, and when it gives up. Nothing here
changes what a trial's result is, or its identifier."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from lp_sweep.orchestrator.engine.budget import Budget
from lp_sweep.orchestrator.plan.policy import Limits
from lp_sweep.orchestrator.plan.selection import Selection
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec

Keep = Literal["none", "best", "all"]
STORE_PATIENCE = 600.0  # seconds over which a store that refuses is asked again


class PerTrial(NamedTuple):
    """What a trial asks of the node that it runs on; None: as the nodes are."""

    cpus: float | None = None
    gpus: float | None = None
    trials_per_gpu: int = 1  # where `gpus` is not said
    accelerator_type: str | None = None  # Ray's name of a kind of GPU

    @classmethod
    def of(cls, spec: SweepSpec) -> PerTrial:
        asked = spec.resources_per_trial
        return cls(asked.cpu, asked.gpu, spec.trials_per_gpu, asked.accelerator_type)


class Options(NamedTuple):
    """See `lp-sweep run --help` and the sweep file's `resources_per_trial`."""

    cache_dir: Path
    address: str | None = None
    per_trial: PerTrial = PerTrial()
    offline: bool = False
    part: bool = False  # of a sweep whose other cells stay listed
    overrides: str = ""  # as a shell takes them, without secrets
    checkpoint_every: float | None = None  # seconds
    keep: Keep = "none"
    command: str = ""  # without secrets
    store_patience: float = STORE_PATIENCE
    limits: Limits = Limits()
    budget: Budget | None = None  # of hours and money; None: as much as it takes
    selection: Selection = Selection()
