"""Runs a plain function once on each node of the connected cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lp_sweep.orchestrator.engine.raycompat import NodeTable

_SECONDS = 120  # for a process to start and the function to end
_SECONDS_TO_ANSWER = 10
_SECONDS_SILENT = 60.0
_nodes = NodeTable()
_silent: dict[str, float] = {}  # node -> when it last did not answer


def on_each_node(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Returns node id -> the function's value there, without nodes that do not answer."""
    nodes = [node["NodeID"] for node in _nodes() if node["Alive"]]
    return _ask(nodes, function, arguments, _SECONDS)


def answers(node: str | None) -> bool:
    """Whether a node still works; the cluster's own view lags by a minute. A silent node is not
    asked again for that minute, since each of its trials is lost in turn."""
    if not node or time.monotonic() - _silent.get(node, -_SECONDS_SILENT) < _SECONDS_SILENT:
        return False
    answered = bool(_ask([node], os.getpid, (), _SECONDS_TO_ANSWER))
    if not answered:
        _silent[node] = time.monotonic()
    return answered


def _ask(
    nodes: list[str], function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float
) -> dict[str, Any]:
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # a task that has no GPU of its own must still see the node's GPUs
    see = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    remote = ray.remote(num_cpus=0, max_retries=0, runtime_env=see)(lambda: function(*arguments))
    tasks = {
        remote.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote(): node
        for node in nodes
    }
    ready, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=seconds)
    for task in late:
        ray.cancel(task, force=True)
    found = {}
    for task in ready:
        with suppress(RayError):
            found[tasks[task]] = ray.get(task)
    return found


def alive_nodes() -> set[str]:
    """The ids of the nodes that can take work now."""
    return {
        node["NodeID"]
        for node in _nodes()
        if node["Alive"] and (node["Resources"].get("CPU") or node["Resources"].get("GPU"))
    }
