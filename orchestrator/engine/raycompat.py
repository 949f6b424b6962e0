"""Changes to places where Ray 2.60 does less, or more, than a sweep needs.

Each is small, and does nothing if a later Ray no longer has the place.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

_TABLE_SECONDS = 5.0
_TUNE_SECONDS = 45.0  # longer than until a silent head counts as lost: it may come back
_AUTH_MODE, _AUTH_TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


def keep_fit_alive() -> None:
    """Turns the other errors of a lost worker into a RayActorError, so that only its trial ends.
    Without this Tune aborts the whole fit, with every healthy trial, when Ray's memory monitor
    kills a worker, and in some cases of a lost node."""
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
    """Keeps `ray.init` from setting a SIGTERM handler that exits at once."""
    import ray._private.utils as utils

    if hasattr(utils, "set_sigterm_handler"):
        utils.set_sigterm_handler = lambda handler: None


@contextmanager
def private_ray() -> Iterator[None]:
    """A Ray that starts inside listens on this machine only, and obeys only those who know its own
    token. On Linux Ray has no option for the first; for the second it has one token for all Rays of
    a user, in a file that others may be able to read. RAY_AUTH_MODE=disabled is respected."""
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    before = {name: os.environ.get(name) for name in (_AUTH_MODE, _AUTH_TOKEN)}
    reachable = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    if os.environ.setdefault(_AUTH_MODE, "token") == "token":
        os.environ[_AUTH_TOKEN] = secrets.token_hex(32)
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = reachable
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute while inside, if the module has it."""
    if not hasattr(module, name):
        yield
        return
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def keep_credentials() -> Iterator[None]:
    """Keeps AWS keys out of the trials' runtime environment, where Tune puts them: Ray writes it
    into log files that every user of a node can read. The workers have the keys already."""
    from ray.tune.execution import class_cache

    names: Iterable[str] = getattr(class_cache, "ENV_VARS_TO_PROPAGATE", frozenset())
    kept = {name for name in names if not name.startswith("AWS_")}
    with _replaced(class_cache, "ENV_VARS_TO_PROPAGATE", kept):
        yield


@contextmanager
def keep_stdout() -> Iterator[None]:
    """Keeps Ray from printing the messages and logs of its daemons on our stdout, and from waiting
    for a stopped head when a driver leaves."""
    import ray._private.worker as worker

    with _replaced(worker, "listen_error_messages", lambda worker, threads_stopped: None):
        yield


class _Core:
    """Ray's core, which nothing reaches from `shutdown_driver` on."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def shutdown_driver(self) -> None:
        core, self._core = self._core, None
        core.shutdown_driver()


def keep_references() -> None:
    """Keeps references that are freed during `ray.shutdown` from Ray's core, which would end the
    process; any thread may be the one that collects cycles."""
    import ray._private.worker as worker

    if hasattr(getattr(worker.global_worker, "core_worker", None), "shutdown_driver"):
        worker.global_worker.core_worker = _Core(worker.global_worker.core_worker)


def in_thread(call: Callable[[], Any], seconds: float | None = None) -> Any:
    """Runs `call` in a thread and returns its result. Raises TimeoutError after `seconds`.

    Ctrl-C ends the wait at once, since the main thread waits in Python; inside Ray it would not
    notice the signal."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # raised in the caller
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(seconds)


class _Bounded:
    """A client of the head whose reads and writes of its key-value table have a time limit."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not name.startswith("internal_kv_"):
            return found
        limit = {"timeout": _TUNE_SECONDS}
        return lambda *given, **named: in_thread(lambda: found(*given, **{**limit, **named}))


def bound_calls() -> None:
    """Bounds the calls with which Tune asks the head about its registry before each trial."""
    from ray.experimental import internal_kv

    if getattr(internal_kv, "global_gcs_client", None) is not None:
        internal_kv.global_gcs_client = _Bounded(internal_kv.global_gcs_client)


class NodeTable:
    """Calls return the keys of `ray.nodes()` that we read. That function waits for a lost head
    without end and without reacting to signals; this class returns the last known table."""

    def __init__(self) -> None:
        self._last: list[dict[str, Any]] = []

    def __call__(self) -> list[dict[str, Any]]:
        import ray._private.worker as worker
        from ray.core.generated.gcs_pb2 import GcsNodeInfo
        from ray.exceptions import RpcError

        head: Any = worker.global_worker.gcs_client
        try:
            found = in_thread(lambda: head.get_all_node_info(timeout=_TABLE_SECONDS))
        except RpcError:
            if self._last:
                return self._last
            raise
        self._last = [
            {
                "NodeID": id_.hex(),
                "Alive": node.state == GcsNodeInfo.GcsNodeState.ALIVE,
                "Resources": dict(node.resources_total),
                "Labels": dict(node.labels),
            }
            for id_, node in found.items()
        ]
        return self._last


class Fate(NamedTuple):
    """How an actor ended: its node, and Ray's word for the cause. What Ray does not know is None or
    empty."""

    node: str | None = None
    cause: str = ""


def fate_of(actor_id: str | None) -> Fate:
    import ray
    from ray._private import state
    from ray.core.generated import gcs_pb2

    try:
        accessor = state.state._connect_and_get_accessor()
        found = accessor.get_actor_info(ray.ActorID(bytes.fromhex(actor_id or "")))
        actor = gcs_pb2.ActorTableData.FromString(found)
    except Exception:  # a private interface; without it we only know less
        return Fate()
    return Fate(actor.address.node_id.hex() or None, str(actor.death_cause))
