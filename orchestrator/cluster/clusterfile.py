"""Reads a cluster file of `ray up`: how many machines of which kind may start, and the CPUs, GPUs
and price per hour of each. Ray checks the rest itself.

Ray's launcher copies the completed file to the head node as `~/ray_bootstrap_config.yaml`, where a
run reads how far its cluster can grow. `ray up` returns when the head is up; the other machines
join one after another.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lp_sweep.storage.errors import SpecError

ON_HEAD = Path("~/ray_bootstrap_config.yaml")
ACCELERATOR = "accelerator_type:"  # prefix of the kind of GPU, in the resources of a node
HEAD = "node:__internal_head__"  # a resource of the head node alone
_FOR_ONE, _FOR_ALL = 600.0, 60.0  # seconds to wait for a first worker, and from then on for all
_LOOK_SECONDS = 2.0
PRICES = "price_per_hour"  # under `metadata`, which Ray leaves alone: kind -> money


class Kind(NamedTuple):
    """One of `available_node_types`. `cpus` and `gpus` of a machine are None if Ray has to detect
    them; `accelerator` is Ray's name of its GPUs, if known; `least` and `most` count machines at a
    time; `price` is per hour, None if not stated."""

    name: str
    head: bool
    least: int
    most: int
    cpus: float | None
    gpus: float | None
    accelerator: str | None
    price: float | None


class ClusterFile(NamedTuple):
    """`content` is as the user wrote it, or as Ray completed it."""

    path: Path
    content: dict[str, Any]
    kinds: tuple[Kind, ...]

    @property
    def name(self) -> str:
        return str(self.content["cluster_name"])

    @property
    def workers(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if not kind.head)

    @property
    def promised(self) -> int:
        """How many workers start even without work."""
        provider = self.content["provider"]
        if provider.get("type") == "local" and "worker_ips" in provider:
            own = len(provider["worker_ips"])
            return min(own, int(self.content.get("max_workers", own)))
        return sum(kind.least for kind in self.workers)

    @property
    def idle_minutes(self) -> float:
        """How long a worker without work stays."""
        return float(self.content.get("idle_timeout_minutes", 5.0))  # Ray's default

    def largest(self, accelerator: str | None = None) -> list[Kind]:
        """Each worker that the autoscaler may start, if the file states its resources. A cluster of
        your own machines has none. `accelerator`: only workers with such GPUs."""
        most = int(self.content.get("max_workers", 2))  # Ray's default
        machines = [
            kind
            for kind in sorted(self.workers, key=lambda kind: -(kind.gpus or 0.0))
            for _ in range(min(kind.most, most))
            if kind.cpus is not None and accelerator in (None, kind.accelerator)
        ]
        return machines[:most]

    def coming(self, accelerator: str | None = None) -> list[tuple[float, float]]:
        """(CPUs, GPUs) of each of `largest`."""
        return [(kind.cpus or 0.0, kind.gpus or 0.0) for kind in self.largest(accelerator)]


def read_cluster_file(path: Path) -> ClusterFile:
    """Raises SpecError if the file can't be read or is not a cluster file."""
    path = path.expanduser()
    content = cluster_content(path)
    return ClusterFile(path, content, tuple(_kinds(content, path)))


def cluster_content(path: Path) -> dict[str, Any]:
    """The content as written. Checks only that the main keys are there. Raises SpecError."""
    content = yaml_content(path)
    if not isinstance(content, dict) or not {"cluster_name", "provider"} <= content.keys():
        raise SpecError(
            f"{path} is not a cluster file for `ray up`: it needs `cluster_name` and `provider`. "
            "`lp-sweep cluster init` writes one."
        )
    return content


def yaml_content(path: Path) -> object:
    """Raises SpecError if the file is missing or not YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(
            f"no cluster file {path}: {error.strerror}. `lp-sweep cluster init` writes one."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None


def _kinds(content: Mapping[str, Any], path: Path) -> list[Kind]:
    prices = _prices(content, path)
    head, types = content.get("head_node_type"), content.get("available_node_types") or {}
    kinds = []
    for name, entry in types.items():
        resources = entry.get("resources") or {}
        kinds.append(
            Kind(
                name=name,
                head=name == head,
                least=int(entry.get("min_workers", 0)),
                most=1 if name == head else int(entry.get("max_workers", 0)),
                cpus=_amount(resources, "CPU"),
                gpus=_amount(resources, "GPU"),
                accelerator=accelerator_of(resources),
                price=prices.pop(name, None),
            )
        )
    if prices and types:
        raise SpecError(
            f"{path}: metadata.{PRICES} has {', '.join(map(repr, prices))}, which is not in "
            f"available_node_types: {', '.join(types)}."
        )
    return kinds


def accelerator_of(resources: Mapping[str, Any]) -> str | None:
    """Ray's name of a machine's GPUs, from the keys of its resources."""
    found = [name for name in resources if name.startswith(ACCELERATOR)]
    return found[0].removeprefix(ACCELERATOR) if found else None


def _amount(resources: Mapping[str, Any], name: str) -> float | None:
    """An amount that is left out is 0; without any resources Ray detects them at the start."""
    if not resources:
        return None
    return float(resources.get(name, 0))


def _prices(content: Mapping[str, Any], path: Path) -> dict[str, float]:
    told = (content.get("metadata") or {}).get(PRICES) or {}
    if not isinstance(told, dict):
        raise SpecError(f"{path}: metadata.{PRICES} is {told!r}: give it as {{gpu: 0.35}}.")
    for kind, price in told.items():
        if type(price) not in (int, float) or price < 0:
            raise SpecError(
                f"{path}: metadata.{PRICES}.{kind} is {price!r}: give a price such as 0.35."
            )
    return {str(kind): float(price) for kind, price in told.items()}


def workers(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The nodes that are alive, without the head."""
    return [node for node in nodes if node["Alive"] and HEAD not in node["Resources"]]


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


def knock(address: str) -> None:
    """Raises OSError at once if nothing listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
