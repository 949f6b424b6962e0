"""Places where Ray 2.60 does less, or more, than a sweep needs.

Each is a small change that does nothing if a later Ray no longer has the place.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

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


class Fate(NamedTuple):
    """Of an actor: the node it ran on, Ray's word for how it ended, and whether that node had been
    announced as one that will be taken. What Ray does not know is None, empty or False."""

    node: str | None = None
    cause: str = ""
    announced: bool = False


def fate_of(actor_id: str | None) -> Fate:
    """`announced` is in Ray's own table alone: what it makes public is told once a node is known to
    be dead, and depends on how it died."""
    import ray
    from ray._private import state
    from ray.core.generated import gcs_pb2

    try:
        accessor = state.state._connect_and_get_accessor()
        found = accessor.get_actor_info(ray.ActorID(bytes.fromhex(actor_id or "")))
        actor = gcs_pb2.ActorTableData.FromString(found)
    except Exception:  # a private interface: knowing less is no reason to stop
        return Fate()
    return Fate(actor.address.node_id.hex() or None, str(actor.death_cause), actor.preempted)


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
