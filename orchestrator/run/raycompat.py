"""Places where Ray 2.60 does less, or more, than a sweep needs.

Each is a small change that does nothing if a later Ray no longer has the place.
"""

from __future__ import annotations

import time
from typing import Any

_RPC_SECONDS = 10.0


def keep_fit_alive() -> None:
    """A worker that Ray's memory monitor kills, and some ways of losing a node, raise errors that
    are no RayActorError: Tune then aborts the whole fit, with every healthy trial in it. Here they
    become one, so that only that trial ends."""
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import RayActorError, RayError, RayTaskError

    original = getattr(RayActorManager, "_actor_task_failed", None)
    if original is None or getattr(original, "lp_sweep", False):
        return

    def failed(self: Any, tracked_actor_task: Any, exception: Exception) -> Any:
        if isinstance(exception, RayError) and not isinstance(
            exception, (RayActorError, RayTaskError)
        ):
            message = f"{type(exception).__name__}: {exception}"
            exception = RayActorError(error_msg=message)
        return original(self, tracked_actor_task=tracked_actor_task, exception=exception)

    failed.lp_sweep = True  # type: ignore[attr-defined]
    RayActorManager._actor_task_failed = failed


def keep_sigterm() -> None:
    """`ray.init` sets a SIGTERM handler that exits at once, with the number of the signal."""
    import ray._private.utils as utils

    if hasattr(utils, "set_sigterm_handler"):
        utils.set_sigterm_handler = lambda handler: None


def node_of(actor_id: str | None) -> tuple[str | None, str]:
    """The node an actor ran on, and Ray's word for how it ended; (None, "") where unknown."""
    import ray._private.state as state

    try:
        entry = state.actors(actor_id) if actor_id else {}
        address = entry.get("Address") or entry.get("address") or {}
        return address.get("NodeID") or None, str(entry.get("DeathCause") or "")
    except Exception:  # a private interface: knowing less is no reason to stop
        return None, ""


def drain_nodes(address: str, ip: str, message: str, seconds: float) -> None:
    """As `ray drain-node` does: the nodes at this IP will be gone in so many seconds. Ray has no
    public call for it. Raises ConnectionError where Ray has no such node, or refuses."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated import autoscaler_pb2, gcs_pb2

    gcs = GcsClient(address=address)
    nodes = gcs.get_all_node_info(
        timeout=_RPC_SECONDS, state_filter=gcs_pb2.GcsNodeInfo.GcsNodeState.ALIVE
    )
    here = [id_.hex() for id_, node in nodes.items() if node.node_manager_address == ip]
    if not here:
        raise ConnectionError(f"it has no node at {ip}")
    reason = autoscaler_pb2.DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION
    deadline_ms = int(1000 * (time.time() + seconds))
    for id_ in here:
        accepted, refusal = gcs.drain_node(id_, reason, message, deadline_ms)
        if not accepted:
            raise ConnectionError(f"node {id_[:8]}: {refusal}")
