"""Places where Ray 2.60 does less, or more, than a sweep needs.

Each is a small change that does nothing if a later Ray no longer has the place.
"""

from __future__ import annotations

from typing import Any


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
