"""Changes to places where Ray 2.60 does less, or more, than a sweep needs.

Each is small, and does nothing if another Ray does not have the place. Only `private_ray` refuses
such a Ray, which would be open to others.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lp_sweep.storage.errors import PreflightError

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
    a user, in a file that others may be able to read. RAY_AUTH_MODE=disabled is respected. Raises
    PreflightError for another version of Ray."""
    import ray
    from ray._private import ray_constants

    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

        reachable = ray_constants.ENABLE_RAY_CLUSTER
    except (ImportError, AttributeError) as error:
        raise PreflightError(
            f"Ray {ray.__version__} can't be started for this user alone: {error}. Use Ray 2.60, "
            "start one yourself (ray start --head) and name it by --address, or run --inline."
        ) from error
    before = {name: os.environ.get(name) for name in (_AUTH_MODE, _AUTH_TOKEN)}
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
