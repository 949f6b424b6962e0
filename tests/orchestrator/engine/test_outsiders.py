"""The Ray of a local run listens to this machine alone, and to who has its token."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.faults import with_changes
from tests.support.program import python
from tests.support.toyworld import save_world

pytestmark = pytest.mark.ray

LISTENING = """
import json, psutil, ray
from lp_sweep.orchestrator.engine.connection import connection
with connection(None):
    ray.get(ray.remote(lambda: 1).remote())
    us = [psutil.Process(), *psutil.Process().children(recursive=True)]
    open_ = [(p.name(), c) for p in us for c in p.net_connections()]
    found = [(name, c.laddr.ip) for name, c in open_ if c.status == "LISTEN"]
    print(json.dumps(found))
"""
# folder, Python's, root's home: /tmp/ray is another one; and the home, where Python may be, can be
# entered by anyone
ALONE = """
mkdir -p /tmp/ray
mount -t tmpfs tmpfs /tmp/ray
chmod 1777 /tmp/ray
mount -t tmpfs tmpfs /dev/shm -o size=2g
ip link set lo up
case "$2" in "$3"/*)
  mkdir -p "$1/python"
  mount --bind "$2" "$1/python"
  mount -t tmpfs tmpfs "$3" -o mode=755
  mkdir -p "$2"
  mount --bind "$1/python" "$2"
esac
shift 3
exec "$@"
"""


@pytest.mark.slow
def test_a_local_ray_listens_on_loopback_alone(tmp_path: Path) -> None:
    listening = json.loads(python(LISTENING, cwd=tmp_path).stdout.splitlines()[-1])
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert {ip.removeprefix("::ffff:") for _, ip in listening} <= {"127.0.0.1", "::1"}, listening


@pytest.mark.slow
def test_who_gets_in(tmp_path: Path) -> None:
    """Another user, and another machine (a network namespace with a cable to this one): into Ray as
    it is without a token all of them, into ours nobody."""
    if os.geteuid() != 0 or not shutil.which("ip", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        pytest.skip("only root can make namespaces, with ip")
    save_world(tmp_path, seeds=[1, 2, 3, 4])
    program = Path(__file__).parents[2] / "support" / "outsiders.py"
    scene = [sys.executable, str(program), str(tmp_path)]
    places = [str(tmp_path), sys.base_prefix, str(Path.home())]
    alone = ["unshare", "--pid", "--mount", "--net", "--ipc", "--fork", "--mount-proc"]
    settings = with_changes(LP_SWEEP_TEST_NOOP="1", LP_SWEEP_TEST_SECONDS="300")
    done = subprocess.run(
        [*alone, "--kill-child", "sh", "-c", ALONE, "sh", *places, *scene],
        cwd=tmp_path,
        env=os.environ
        | settings
        | {"LP_SWEEP_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
        | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    got_in = {(row["ray"], row["who"]) for row in told if row["told"] == "written"}
    everybody = {("plain", who) for who in ("this user", "another user", "another machine")}
    assert got_in == everybody | {("ours", "this user, with the token")}, told
    assert len(told) == 8
    assert not [child for child in psutil.Process().children() if child.name() == "sleep"]
