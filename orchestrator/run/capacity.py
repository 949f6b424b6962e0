"""How many trials a cluster takes at a time: a slot is one GPU, a share of one, or some cores.

A cluster may grow and shrink while a sweep runs. What its autoscaler may still start counts as if
it were there: work has to be asked for before a machine comes for it, and all of it at once, or the
cluster would grow one machine at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from lp_sweep.orchestrator.cluster.clusterfile import ON_HEAD, read_cluster_file
from lp_sweep.orchestrator.run.runoptions import Options
from lp_sweep.storage.errors import PreflightError, SpecError

Size = tuple[float, float]  # CPUs and GPUs of a node

_SHARES = 10_000  # Ray counts in such parts: the shares of a GPU must not add up to more than one
_MOST_CORES = 8  # of a CPU slot, and CPU slots of the largest node where it has no more than 64
_HEAD = "node:__internal_head__"  # a resource that the head node has
_LOOK_SECONDS = 5.0  # between two looks at the nodes


class Slots(NamedTuple):
    """How the cluster is cut: `number` trials at a time, each with these resources."""

    number: int
    cpus: float
    gpus: float


class Capacity:
    """`slots` at the start; `now` as the cluster is by now, a slot being what it was."""

    def __init__(
        self, options: Options, nodes: Callable[[], Sequence[Mapping[str, Any]]], coming: list[Size]
    ) -> None:
        self._nodes, self._coming = nodes, coming
        self.slots = cut(self._sizes(), options)
        self._number, self._looked = self.slots.number, time.monotonic()

    def now(self) -> int:
        """At least 1: what is lost may come back."""
        if time.monotonic() - self._looked > _LOOK_SECONDS:
            self._looked = time.monotonic()
            self._number = max(1, fitting(self._sizes(), self.slots.cpus, self.slots.gpus))
        return self._number

    def _sizes(self) -> list[Size]:
        nodes = self._nodes()
        workers = [node for node in nodes if _HEAD not in node["Resources"]]
        return sizes(nodes) + still_coming(self._coming, sizes(workers))


def sizes(nodes: Sequence[Mapping[str, Any]]) -> list[Size]:
    """Of the nodes that are alive."""
    return [
        (node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0))
        for node in nodes
        if node["Alive"]
    ]


def still_coming(coming: Sequence[Size], workers: Sequence[Size]) -> list[Size]:
    """Of the nodes that an autoscaler may start those that are not among the workers there."""
    left = list(coming)
    for size in workers:
        if size in left:
            left.remove(size)
    return left


def from_head() -> list[Size]:
    """What the autoscaler of this very machine's cluster may start, where `ray up` made it."""
    if not ON_HEAD.expanduser().exists():
        return []
    try:
        return read_cluster_file(ON_HEAD).coming()
    except SpecError:  # not ours to judge: the cluster runs
        return []


def fitting(nodes: Sequence[Size], cpus: float, gpus: float) -> int:
    """Trials of this size that fit at a time. A trial fits into one node."""
    return sum(
        min(int(cores / cpus), int(devices / gpus) if gpus else int(cores / cpus))
        for cores, devices in nodes
    )


def cut(nodes: Sequence[Size], options: Options) -> Slots:
    """One trial per GPU, or as many as `trials_per_gpu` says; on a CPU cluster one per core group.
    Raises PreflightError where no trial fits."""
    gpus = options.gpus_per_trial
    if gpus is None:
        share = int(_SHARES / options.trials_per_gpu) / _SHARES
        gpus = share if any(devices >= 1 for _, devices in nodes) else 0.0
    cpus = options.cpus_per_trial
    if cpus is None:
        most = max((cores for cores, _ in nodes), default=0)
        cpus = 1.0 if gpus else float(min(_MOST_CORES, max(1, int(most) // _MOST_CORES)))
    number = fitting(nodes, cpus, gpus)
    if number < 1:
        have = ", ".join(f"{cores:g} CPU and {devices:g} GPU" for cores, devices in nodes)
        raise PreflightError(
            f"no slot: a trial asks for {cpus:g} CPU and {gpus:g} GPU on one node; the nodes have "
            f"{have or 'nothing'}. Lower resources_per_trial, or wait for the cluster's nodes."
        )
    return Slots(number, cpus, gpus)
