"""Cuts a cluster into slots, one per trial: a slot is one GPU, a share of one, or some cores.

`ray up` leaves its cluster file on the head, which states the machines that may still come. It
returns when the head is up; the others join one by one.

A cluster may grow and shrink during a sweep. Machines that its autoscaler may still start count as
if they were there: an autoscaler starts machines for work that is requested, so all of it has to be
requested at once, or the cluster would grow one machine at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.printable import did_you_mean

if TYPE_CHECKING:
    from lp_sweep.orchestrator.sweepfile.spec import SweepSpec

Node = Mapping[str, Any]  # as `ray.nodes()` has it
Size = tuple[float, float]  # CPUs and GPUs of a node

_SHARES = 10_000  # Ray counts in such parts: the shares of a GPU must not add up to more than one
MOST_CORES = 8  # of a CPU slot, and CPU slots of the largest node where it has no more than 64
_LOOK_SECONDS = 5.0  # between two looks at the nodes
ACCELERATOR = "accelerator_type:"  # prefix of the kind of GPU, in the resources of a node
_ON_HEAD = Path("~/ray_bootstrap_config.yaml")
_HEAD = "node:__internal_head__"  # a resource of the head node alone
_JOIN_SECONDS = 300.0  # the longest wait for workers
_WAIT_SECONDS = 2.0  # between two looks at the workers that have joined


class ClusterFile(NamedTuple):
    """`promised`: how many workers start even without work. `coming`: each worker that may start at
    the same time, as Ray will list it, if the file states its resources; a cluster of your own
    machines has none."""

    name: str
    promised: int
    coming: Sequence[Node]


def file_on_head() -> ClusterFile | None:
    """The file of the cluster whose head is this machine; None if it is no head."""
    try:
        content = yaml.safe_load(_ON_HEAD.expanduser().read_text(encoding="utf-8"))
        kinds = content.get("available_node_types") or {}
        workers = [kind for name, kind in kinds.items() if name != content.get("head_node_type")]
        promised = sum(int(kind.get("min_workers", 0)) for kind in workers)
        most = int(content.get("max_workers", 2))  # Ray's default
        if (own := content["provider"].get("worker_ips")) is not None:
            promised = min(len(own), int(content.get("max_workers", len(own))))
        coming: list[dict[str, Any]] = [
            {"Alive": True, "Resources": {name: float(n) for name, n in kind["resources"].items()}}
            for kind in workers
            if kind.get("resources")  # else Ray detects them at the start
            for _ in range(min(most, int(kind.get("max_workers", 0))))
        ]
        largest = sorted(coming, key=lambda node: -node["Resources"].get("GPU", 0.0))[:most]
        return ClusterFile(str(content["cluster_name"]), promised, largest)
    except (OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        return None  # not ours to judge: the cluster runs


def accelerator_of(resources: Mapping[str, Any]) -> str | None:
    """Ray's name of a machine's GPUs, from the keys of its resources."""
    found = (name for name in resources if name.startswith(ACCELERATOR))
    return next(found, "").removeprefix(ACCELERATOR) or None


def workers(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that are alive, without the head."""
    return [node for node in nodes if node["Alive"] and _HEAD not in node["Resources"]]


def await_workers(
    file: ClusterFile, nodes: Callable[[], Sequence[Node]], tell: Callable[[str], None]
) -> None:
    """Waits until the promised workers have joined, so that slots are cut from all of them; but not
    forever: late ones can still join."""
    end, waited = time.monotonic() + _JOIN_SECONDS, False
    while (joined := len(workers(nodes()))) < file.promised and time.monotonic() < end:
        if not waited:
            tell(f"waiting for {file.promised} machines of cluster {file.name}: {joined} are here")
        waited = True
        time.sleep(_WAIT_SECONDS)
    if joined < file.promised:
        late = f"{file.promised - joined} of {file.promised} machines have not joined"
        tell(f"{late}; `ray status` says more. They are taken in when they come")


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

    @property
    def share_gpus(self) -> bool:
        """Whether several trials would share a GPU."""
        return self.trials_per_gpu > 1 if self.gpus is None else 0 < self.gpus < 1


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
        nodes: Callable[[], Sequence[Node]],
        file: ClusterFile | None = None,
    ) -> None:
        self._nodes, self._kind = nodes, per_trial.accelerator_type
        machines = file.coming if file else ()
        self._coming = sizes(machines, self._kind)
        kinds = {accelerator_of(n["Resources"]) for n in [*nodes(), *machines] if n["Alive"]}
        self.accelerators = sorted(kind for kind in kinds if kind)
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


def sizes(nodes: Sequence[Node], accelerator: str | None = None) -> list[Size]:
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
        cpus = 1.0 if gpus else float(min(MOST_CORES, max(1, int(most) // MOST_CORES)))
    number = fitting(nodes, cpus, gpus)
    if number < 1:
        have = ", ".join(f"{cores:g} CPU and {devices:g} GPU" for cores, devices in nodes)
        raise PreflightError(
            f"no slot: a trial needs {cpus:g} CPU and {gpus:g} GPU on one node; the nodes have "
            f"{have or 'nothing'}. Lower resources_per_trial, or wait for the cluster's nodes."
        )
    return Slots(number, cpus, gpus, per_trial.accelerator_type)
