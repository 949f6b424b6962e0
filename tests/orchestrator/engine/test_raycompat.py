"""Each patch of Ray does what it is for, and nothing where another Ray lacks its place."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from unittest import mock

import pytest
import ray._private.utils as ray_utils
import ray._private.worker as ray_worker
import ray._raylet
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import NodeDiedError, RayActorError
from ray.tune import tune
from ray.tune.execution import class_cache

from lp_sweep.orchestrator.engine import raycompat
from lp_sweep.storage.errors import PreflightError
from tests.support.program import python


def test_a_worker_lost_to_its_node_ends_its_trial_and_not_the_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = mock.Mock(spec=[])
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", original)
    with raycompat.keep_fit_alive():
        RayActorManager._actor_task_failed(None, None, NodeDiedError("gone"))
    assert RayActorManager._actor_task_failed is original
    assert isinstance(original.mock_calls[0].kwargs["exception"], RayActorError)


def test_ray_sets_no_handler_of_sigterm() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with raycompat.keep_sigterm():
        ray_utils.set_sigterm_handler(lambda *_: None)
    assert signal.getsignal(signal.SIGTERM) == before


def test_tune_sets_no_handler_of_sigusr1() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with raycompat.keep_fit_alive():
        assert not tune._setup_signal_catching().is_set()
    assert signal.getsignal(signal.SIGUSR1) == before


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
    monkeypatch.delattr(tune, "_setup_signal_catching")
    with raycompat.keep_fit_alive(), raycompat.keep_sigterm():
        pass
    with raycompat.keep_credentials(), raycompat.keep_stdout():
        pass
    monkeypatch.delattr(ray._raylet, "AuthenticationTokenLoader")
    with pytest.raises(PreflightError, match=r"for this user alone"), raycompat.private_ray():
        pass


WHO_GETS_IN = """
import json, os, psutil, ray, subprocess, sys
from lp_sweep.orchestrator.engine.connection import connection

# whoever may write to the head's table can have code run by the workers
attempt = (
    "import sys; from ray._raylet import GcsClient; client = GcsClient(address=sys.argv[1]);"
    "client.internal_kv_put(b'outsider', b'was here', True, b'', timeout=5); print('written')"
)
with connection(None):
    ray.get(ray.remote(lambda: 1).remote())
    us = [psutil.Process(), *psutil.Process().children(recursive=True)]
    open_ = [(p.name(), c) for p in us for c in p.net_connections()]
    command = [sys.executable, "-c", attempt, ray.get_runtime_context().gcs_address]
    others = {name: value for name, value in os.environ.items() if "RAY_AUTH" not in name}
    told = [
        subprocess.run(command, env=env, capture_output=True, text=True).stdout.strip()
        for env in (os.environ, others)
    ]
    print(json.dumps([told, [(name, c.laddr.ip) for name, c in open_ if c.status == "LISTEN"]]))
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_local_ray_listens_on_loopback_alone_and_obeys_its_token(tmp_path: Path) -> None:
    told, listening = json.loads(python(WHO_GETS_IN, cwd=tmp_path).stdout.splitlines()[-1])
    assert told == ["written", ""]
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert {ip.removeprefix("::ffff:") for _, ip in listening} <= {"127.0.0.1", "::1"}, listening
