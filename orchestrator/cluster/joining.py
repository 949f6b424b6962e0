"""The first minutes of a cluster: `ray up` returns when the head is up, and the machines that its
file promises join one after the other."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lp_sweep.orchestrator.cluster.clusterfile import ClusterFile

HEAD = "node:__internal_head__"  # a resource that the head node has
_FOR_ONE, _FOR_ALL = 600.0, 60.0  # seconds to wait for a first worker, and then for the others
_LOOK_SECONDS = 2.0


def workers(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that are alive, without the head."""
    return [node for node in nodes if node["Alive"] and HEAD not in node["Resources"]]


def await_workers(
    file: ClusterFile, nodes: Callable[[], Sequence[Mapping[str, Any]]], tell: Callable[[str], None]
) -> None:
    """Until all that come by themselves are there; what is late is taken in when it comes."""
    promised, begun = file.promised, time.monotonic()
    joined = len(workers(nodes()))
    if joined >= promised:
        return
    tell(f"waiting for machines of cluster {file.name}: {joined} of {promised} have joined")
    while (joined := len(workers(nodes()))) < promised:
        if time.monotonic() - begun > (_FOR_ALL if joined else _FOR_ONE):
            late = f"{promised - joined} of {promised} machines have not joined"
            tell(f"{late}; `ray status` says more. They are taken in when they come")
            return
        time.sleep(_LOOK_SECONDS)
    tell(f"all {promised} machines of cluster {file.name} have joined")


def knock(address: str) -> None:
    """Raises OSError where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()
