"""Cuts a cluster into slots, one per trial: a slot is one GPU, a share of one, or some cores.

A cluster may grow and shrink during a sweep. Machines that its autoscaler may still start count as
if they were there: an autoscaler starts machines for work that is requested, so all of it has to be
requested at once, or the cluster would grow one machine at a time.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lp_sweep.orchestrator.engine.clusterfile import (
    ACCELERATOR,
    ClusterFile,
    accelerator_of,
    workers,
)
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.printable import did_you_mean
from lp_sweep.storage.runs import Announcement

if TYPE_CHECKING:
    from lp_sweep.orchestrator.sweepfile.spec import SweepSpec

Size = tuple[float, float]  # CPUs and GPUs of a node

_SHARES = 10_000  # Ray counts in such parts: the shares of a GPU must not add up to more than one
_MOST_CORES = 8  # of a CPU slot, and CPU slots of the largest node where it has no more than 64
_LOOK_SECONDS = 5.0  # between two looks at the nodes


class PerTrial(NamedTuple):
    """The resources that a trial asks for; None: derived from the nodes."""

    cpus: float | None = None
    gpus: float | None = None
    trials_per_gpu: int = 1  # without `gpus`
    accelerator_type: str | None = None  # Ray's name for a kind of GPU

    @classmethod
    def of(cls, spec: SweepSpec) -> PerTrial:
        asked = spec.resources_per_trial
        return cls(asked.cpu, asked.gpu, spec.trials_per_gpu, asked.accelerator_type)


class Slots(NamedTuple):
    """How the cluster is cut: `number` trials at a time, each with these resources."""

    number: int
    cpus: float
    gpus: float
    accelerator_type: str | None = None

    def bundle(self) -> dict[str, float]:
        """The request to Ray. A tiny amount of a kind of GPU keeps the trial on that kind."""
        kind = {f"{ACCELERATOR}{self.accelerator_type}": 0.001} if self.accelerator_type else {}
        return {"CPU": self.cpus, "GPU": self.gpus, **kind}


class Capacity:
    """`slots`: the cluster at the start; `now`: how many slots of that size it has now."""

    def __init__(
        self,
        per_trial: PerTrial,
        nodes: Callable[[], Sequence[Mapping[str, Any]]],
        file: ClusterFile | None = None,
    ) -> None:
        self._nodes, self._kind = nodes, per_trial.accelerator_type
        machines = file.coming if file else ()
        self._coming = [
            (machine.cpus, machine.gpus)
            for machine in machines
            if self._kind in (None, machine.accelerator)
        ]
        there = {accelerator_of(node["Resources"]) for node in nodes() if node["Alive"]}
        may_come = {machine.accelerator for machine in machines}
        self.accelerators = sorted(kind for kind in there | may_come if kind)
        _check_kind(self._kind, self.accelerators, file)
        self.slots = cut(self._sizes(), per_trial)
        self._number, self._looked = self.slots.number, time.monotonic()

    def now(self) -> int:
        """At least 1, since lost machines may come back."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            self._number = max(1, fitting(self._sizes(), self.slots.cpus, self.slots.gpus))
        return self._number

    def _sizes(self) -> list[Size]:
        nodes = self._nodes()
        joined = sizes(workers(nodes), self._kind)
        still_coming = Counter(self._coming) - Counter(joined)
        return [*sizes(nodes, self._kind), *still_coming.elements()]


def sizes(nodes: Sequence[Mapping[str, Any]], accelerator: str | None = None) -> list[Size]:
    """CPUs and GPUs of each node that is alive; `accelerator`: only nodes with such GPUs."""
    return [
        (node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0))
        for node in nodes
        if node["Alive"] and accelerator in (None, accelerator_of(node["Resources"]))
    ]


def _check_kind(asked: str | None, kinds: Sequence[str], file: ClusterFile | None) -> None:
    """Raises PreflightError where no node has such GPUs, now or later."""
    if asked is None or asked in kinds:
        return
    name = f'"{ACCELERATOR}{asked}": 1'
    hint = f" In the cluster file a machine declares its kind in its resources: {name}."
    raise PreflightError(
        f"no GPU of kind {asked!r}, which resources_per_trial.accelerator_type names: the nodes "
        f"have {', '.join(kinds) or 'no GPU that Ray can name'}."
        f"{did_you_mean(asked, kinds)} Name one of them, leave the key out, or wait for the "
        f"cluster's nodes.{hint if file else ''}"
    )


def mixed_note(slots: Slots, accelerators: Sequence[str]) -> str | None:
    """Warns that trials will run on GPUs of several kinds."""
    if not slots.gpus or slots.accelerator_type or len(accelerators) < 2:
        return None
    return (
        f"trials run on GPUs of several kinds ({', '.join(accelerators)}): the seconds in a record "
        "depend on its kind; estimates and speeds never mix kinds. To use one kind: "
        f"resources_per_trial: {{accelerator_type: {accelerators[0]}}}"
    )


def crowded_note(slots: Slots, other: Announcement) -> str:
    """Warns about another run on this machine: each has its own Ray, which counts all devices."""
    theirs = f"{other.slots} slot{'' if other.slots == 1 else 's'}" if other.slots else "its slots"
    together = f": together {other.slots + slots.number}" if other.slots else ""
    device = "GPUs" if slots.gpus else f"{os.cpu_count()} cores"
    fix = "separate them with CUDA_VISIBLE_DEVICES, or stop" if slots.gpus else "stop"
    return (
        f"another run on this machine (pid {other.pid}) has {theirs}, this one {slots.number}"
        f"{together} on the same {device}, so both are slower: {fix} one. Nothing is lost"
    )


def fitting(nodes: Sequence[Size], cpus: float, gpus: float) -> int:
    """How many trials of this size fit at a time, each on one node."""
    return sum(
        min(int(cores / cpus), int(devices / gpus) if gpus else int(cores / cpus))
        for cores, devices in nodes
    )


def cut(nodes: Sequence[Size], per_trial: PerTrial) -> Slots:
    """One slot per GPU, or `trials_per_gpu` of them; without GPUs one per group of cores. Raises
    PreflightError if no trial fits."""
    gpus = per_trial.gpus
    if gpus is None:
        share = int(_SHARES / per_trial.trials_per_gpu) / _SHARES
        gpus = share if any(devices >= 1 for _, devices in nodes) else 0.0
    cpus = per_trial.cpus
    if cpus is None:
        most = max((cores for cores, _ in nodes), default=0)
        cpus = 1.0 if gpus else float(min(_MOST_CORES, max(1, int(most) // _MOST_CORES)))
    number = fitting(nodes, cpus, gpus)
    if number < 1:
        have = ", ".join(f"{cores:g} CPU and {devices:g} GPU" for cores, devices in nodes)
        raise PreflightError(
            f"no slot: a trial needs {cpus:g} CPU and {gpus:g} GPU on one node; the nodes have "
            f"{have or 'nothing'}. Lower resources_per_trial, or wait for the cluster's nodes."
        )
    return Slots(number, cpus, gpus, per_trial.accelerator_type)
