"""A run on a cluster that grows for it: all machines at once, and no longer than there is work.

Machines of Ray's autoscaler are processes here. Ray's own `AutoscalingCluster` begins with
`ray stop`, which would end every Ray of this user.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import MARK, kill_marked, sweep, wait_for, with_changes
from tests.support.s3server import free_port
from tests.support.toyworld import save_world

WORKERS, TRIALS = 4, 24
ADDED = r"Adding (\d+) node\(s\) of type gpu"
REMOVED = r"Removing (\d+) nodes of type gpu \(idle\)"
_RAY = [sys.executable, "-c", "import sys; from ray.scripts.scripts import main; sys.exit(main())"]
_FAKE = "ray.autoscaler._private.fake_multi_node.node_provider"
_MEMORY = 100 * 2**20  # bytes of a node's object store


class Autoscaled:
    """`of_a_run`: the environment of one on the head, in whose home `ray up` has left the cluster
    file."""

    def __init__(self, session: Path, address: str, of_a_run: dict[str, str]) -> None:
        self.address, self.of_a_run = address, of_a_run
        self._session = session

    def said(self, pattern: str) -> list[str]:
        """Matches of the pattern in the autoscaler's log, in order."""
        log = self._session / "session_latest" / "logs" / "monitor.log"
        return re.findall(pattern, log.read_text(encoding="utf-8")) if log.exists() else []


def cluster_file(gcs: str, workers: int) -> dict[str, Any]:
    """A cluster file: a head without slots, and up to so many machines with a (fake) GPU each. As
    in cluster.yaml, all may start at once."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    gpu = {"CPU": 1, "GPU": 1, "object_store_memory": _MEMORY}
    nothing = ("auth", "docker", "file_mounts")
    no_commands = ("initialization", "setup", "head_setup", "worker_setup")
    no_commands += ("head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "fake",
        "max_workers": workers,
        "upscaling_speed": workers,
        "idle_timeout_minutes": 0.1,
        "provider": {
            "type": "external",  # by its own name Ray reads a file that is not in the wheel
            "module": f"{_FAKE}.FakeMultiNodeProvider",
            "gcs_address": gcs,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "gpu": {"resources": gpu, "node_config": {}, "max_workers": workers},
        },
        **{key: {} for key in nothing},
        **{f"{key}_commands": [] for key in no_commands},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }


@contextmanager
def autoscaled(folder: Path, workers: int, **environment: str) -> Iterator[Autoscaled]:
    """Ends with nothing of it alive. `environment`: of all its processes."""
    import ray
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    mark, log = uuid.uuid4().hex, folder / "ray.txt"
    gcs = f"{ray.util.get_node_ip_address()}:{free_port()}"
    home = folder / "home"
    home.mkdir()
    file = home / "ray_bootstrap_config.yaml"
    file.write_text(json.dumps(cluster_file(gcs, workers)), encoding="utf-8")  # JSON is YAML
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": mark}
    settings = {
        **token,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",  # as `ray up` starts it
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
        MARK: mark,
    }
    with tempfile.TemporaryDirectory(prefix="lp-") as session, log.open("w") as stream:
        # a socket's path has room for 107 characters: pytest's folders are too long
        subprocess.Popen(
            [
                *(*_RAY, "start", "--head", "--block", "--disable-usage-stats"),
                *("--include-dashboard=false", "--num-cpus=0", f"--port={gcs.rpartition(':')[2]}"),
                *(f"--object-store-memory={_MEMORY}", f"--temp-dir={session}"),
                f"--autoscaling-config={file}",
            ],
            env=os.environ | settings | environment,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            wait_for(lambda: "Ray runtime started" in log.read_text(), f"Ray has started: {log}")
            yield Autoscaled(Path(session), gcs, {"HOME": str(home), **token})
        finally:
            kill_marked(mark)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_machines_come_at_once_and_go_when_idle(tmp_path: Path) -> None:
    """By what Ray's autoscaler itself says: one decision for all that it may start."""
    save_world(tmp_path, seeds=f"0-{TRIALS - 1}", strategies=[{"name": "top", "k": [0]}])
    short = with_changes(LP_SWEEP_TEST_NOOP="1", LP_SWEEP_TEST_SECONDS="1")
    with autoscaled(tmp_path, WORKERS, **short) as cluster:
        where = ("--address", cluster.address)
        with sweep(tmp_path, "sweep.yaml", *where, **cluster.of_a_run) as run:
            assert run.wait() == 0, run.text()
            assert f"{TRIALS} to do on {WORKERS} slots" in run.text()
            assert cluster.said(ADDED) == [str(WORKERS)]
        wait_for(lambda: sum(map(int, cluster.said(REMOVED))) == WORKERS, "all have gone")
        assert cluster.said(ADDED) == [str(WORKERS)]
    assert len(Store(tmp_path / "lp-sweep-store").names("trials")) == TRIALS
