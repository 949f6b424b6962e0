"""Reads the cluster file that `ray up` has left on the head: which machines may still come, and
which CPUs and GPUs they have. `ray up` returns when the head is up; the others join one by one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ACCELERATOR = "accelerator_type:"  # prefix of the kind of GPU, in the resources of a node
_ON_HEAD = Path("~/ray_bootstrap_config.yaml")
_HEAD = "node:__internal_head__"  # a resource of the head node alone
_FOR_ONE, _FOR_ALL = 600.0, 60.0  # seconds to wait for a first worker, and from then on for all
_LOOK_SECONDS = 2.0


class Machine(NamedTuple):
    """A worker that the autoscaler may start."""

    cpus: float
    gpus: float
    accelerator: str | None  # Ray's name of its GPUs, if known


class ClusterFile(NamedTuple):
    """`promised`: how many workers start even without work. `coming`: each worker that may start at
    the same time, if the file states its resources; a cluster of your own machines has none."""

    name: str
    promised: int
    coming: Sequence[Machine]


def file_on_head() -> ClusterFile | None:
    """The file of the cluster whose head is this machine; None if it is no head."""
    try:
        return _parsed(yaml.safe_load(_ON_HEAD.expanduser().read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        return None  # not ours to judge: the cluster runs


def _parsed(content: Any) -> ClusterFile:
    kinds = content.get("available_node_types") or {}
    workers = [kind for name, kind in kinds.items() if name != content.get("head_node_type")]
    own = content["provider"].get("worker_ips")
    if own is not None:
        promised = min(len(own), int(content.get("max_workers", len(own))))
    else:
        promised = sum(int(kind.get("min_workers", 0)) for kind in workers)
    most = int(content.get("max_workers", 2))  # Ray's default
    coming = [
        _machine(kind["resources"])
        for kind in workers
        if kind.get("resources")  # else Ray detects them at the start
        for _ in range(min(most, int(kind.get("max_workers", 0))))
    ]
    largest = sorted(coming, key=lambda machine: -machine.gpus)[:most]
    return ClusterFile(str(content["cluster_name"]), promised, largest)


def _machine(resources: Mapping[str, Any]) -> Machine:
    cpus, gpus = (float(resources.get(name, 0)) for name in ("CPU", "GPU"))
    return Machine(cpus, gpus, accelerator_of(resources))


def accelerator_of(resources: Mapping[str, Any]) -> str | None:
    """Ray's name of a machine's GPUs, from the keys of its resources."""
    found = [name for name in resources if name.startswith(ACCELERATOR)]
    return found[0].removeprefix(ACCELERATOR) if found else None


def workers(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The nodes that are alive, without the head."""
    return [node for node in nodes if node["Alive"] and _HEAD not in node["Resources"]]


def await_workers(
    file: ClusterFile, nodes: Callable[[], Sequence[Mapping[str, Any]]], tell: Callable[[str], None]
) -> None:
    """Waits until the promised workers have joined, but not forever: late ones can still join."""
    promised, joined = file.promised, len(workers(nodes()))
    if joined >= promised:
        return
    tell(f"waiting for machines of cluster {file.name}: {joined} of {promised} have joined")
    end, alone = time.monotonic() + _FOR_ONE, True
    while (joined := len(workers(nodes()))) < promised:
        if joined and alone:
            end, alone = time.monotonic() + _FOR_ALL, False
        if time.monotonic() > end:
            late = f"{promised - joined} of {promised} machines have not joined"
            tell(f"{late}; `ray status` says more. They are taken in when they come")
            return
        time.sleep(_LOOK_SECONDS)
    tell(f"all {promised} machines of cluster {file.name} have joined")
