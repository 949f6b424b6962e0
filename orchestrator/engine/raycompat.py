"""Changes to places where Ray 2.60 does less, or more, than a sweep needs.

Each holds while inside, and does nothing if another Ray does not have the place. Only `private_ray`
refuses such a Ray, which would be open to others.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lp_sweep.storage.errors import PreflightError


@contextmanager
def _replaced(place: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces an attribute, if it is there, by what `make` makes of it."""
    before = getattr(place, name, None)
    if before is None:
        yield
        return
    setattr(place, name, make(before))
    try:
        yield
    finally:
        setattr(place, name, before)


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables while inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


@contextmanager
def keep_fit_alive() -> Iterator[None]:
    """Turns the other errors of a lost worker into a RayActorError, so that only its trial ends.
    Without this Tune aborts the whole fit, with every healthy trial, when Ray's memory monitor
    kills a worker, and in some cases of a lost node. Also keeps Tune from a SIGUSR1 handler of its
    own, which ends the fit and forgets its live trials."""
    from ray import exceptions, tune
    from ray.air.execution._internal.actor_manager import RayActorManager

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def failed(self: Any, tracked_actor_task: Any, exception: Exception) -> Any:
            ours = isinstance(exception, (exceptions.RayActorError, exceptions.RayTaskError))
            if isinstance(exception, exceptions.RayError) and not ours:
                message = f"{type(exception).__name__}: {exception}"
                exception = exceptions.RayActorError(error_msg=message)
            return original(self, tracked_actor_task=tracked_actor_task, exception=exception)

        return failed

    with (
        _replaced(RayActorManager, "_actor_task_failed", make),
        _replaced(tune.tune, "_setup_signal_catching", lambda original: threading.Event),
    ):
        yield


@contextmanager
def keep_sigterm() -> Iterator[None]:
    """Keeps `ray.init` from setting a SIGTERM handler that exits at once."""
    import ray._private.utils as utils

    with _replaced(utils, "set_sigterm_handler", lambda original: lambda handler: None):
        yield


@contextmanager
def keep_credentials() -> Iterator[None]:
    """Keeps AWS keys out of the trials' runtime environment, where Tune puts them: Ray writes it
    into log files that every user of a node can read. The workers have the keys already."""
    from ray.tune.execution import class_cache

    def make(names: frozenset[str]) -> frozenset[str]:
        return frozenset(name for name in names if not name.startswith("AWS_"))

    with _replaced(class_cache, "ENV_VARS_TO_PROPAGATE", make):
        yield


@contextmanager
def keep_stdout() -> Iterator[None]:
    """Keeps Ray from printing the messages and logs of its daemons on our stdout, and from waiting
    for a stopped head when a driver leaves."""
    import ray._private.worker as worker

    with _replaced(worker, "listen_error_messages", lambda original: lambda worker, stopped: None):
        yield


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

        ray_constants.ENABLE_RAY_CLUSTER  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise PreflightError(
            f"Ray {ray.__version__} can't be started for this user alone: {error}. Use Ray 2.60, "
            "start one yourself (ray start --head) and name it by --address, or run --inline."
        ) from error

    def read_settings() -> None:
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()

    ours = {"RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "token")}
    if ours["RAY_AUTH_MODE"] == "token":
        ours["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        with _replaced(ray_constants, "ENABLE_RAY_CLUSTER", lambda there: False), variables(ours):
            read_settings()
            yield
    finally:
        read_settings()
