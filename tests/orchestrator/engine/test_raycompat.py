"""Each patch of Ray does what it is for, and nothing where another Ray lacks its place.
`test_outsiders.py` tries `private_ray`."""

from __future__ import annotations

import signal
from unittest import mock

import pytest
import ray._private.utils as ray_utils
import ray._private.worker as ray_worker
import ray._raylet
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import NodeDiedError, RayActorError
from ray.tune.execution import class_cache

from lp_sweep.orchestrator.engine import raycompat
from lp_sweep.storage.errors import PreflightError


def test_a_worker_lost_to_its_node_ends_its_trial_and_not_the_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = mock.Mock(spec=[])
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", original)
    for _ in range(2):
        raycompat.keep_fit_alive()
    RayActorManager._actor_task_failed(None, None, NodeDiedError("gone"))
    assert isinstance(original.mock_calls[0].kwargs["exception"], RayActorError)


def test_ray_sets_no_handler_of_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_utils, "set_sigterm_handler", ray_utils.set_sigterm_handler)
    before = signal.getsignal(signal.SIGTERM)
    raycompat.keep_sigterm()
    ray_utils.set_sigterm_handler(lambda *_: None)
    assert signal.getsignal(signal.SIGTERM) == before


def test_tune_hands_on_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write it into a log of Ray's, in a folder that everybody may read."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    before = class_cache.ENV_VARS_TO_PROPAGATE
    with raycompat.keep_credentials():
        actor = class_cache._ActorClassCache().get(type("Trial", (), {}))
    assert before is class_cache.ENV_VARS_TO_PROPAGATE
    handed_on = actor._default_options["runtime_env"]["env_vars"]
    assert handed_on
    assert "planted" not in handed_on.values()


def test_a_ray_without_the_places_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(RayActorManager, "_actor_task_failed")
    monkeypatch.delattr(ray_utils, "set_sigterm_handler")
    monkeypatch.delattr(class_cache, "ENV_VARS_TO_PROPAGATE")
    monkeypatch.delattr(ray_worker, "listen_error_messages")
    raycompat.keep_fit_alive()
    raycompat.keep_sigterm()
    with raycompat.keep_credentials(), raycompat.keep_stdout():
        pass
    monkeypatch.delattr(ray._raylet, "AuthenticationTokenLoader")
    with pytest.raises(PreflightError, match=r"for this user alone"), raycompat.private_ray():
        pass
