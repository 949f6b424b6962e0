"""Detached runs on a real Ray with its job server and its token, in namespaces of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobscene import SECRET, SERVER
from tests.support.toyworld import save_world

ROOT = Path(__file__).parents[3]
ROOMS = ("storage", "trials", "analysis", "orchestrator", "quickstart")
# /tmp/ray is where Ray looks for clusters of this machine
ALONE = """
mkdir -p /tmp/ray
mount -t tmpfs tmpfs /tmp/ray
mount -t tmpfs tmpfs /dev/shm -o size=2g
ip link set lo up
exec "$@"
"""
pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    python = os.environ.get("LP_SWEEP_CLUSTER_PYTHON")
    if python is None:
        pytest.skip(
            "LP_SWEEP_CLUSTER_PYTHON is not set: `make test-cluster` makes that environment"
        )
    if os.geteuid() != 0 or not shutil.which("ip", path="/usr/sbin:/usr/bin:/sbin:/bin"):
        pytest.skip("only root can make namespaces, with ip: `make test-cluster` installs it")
    folder = tmp_path_factory.mktemp("detached")
    for name in ("home", "my sweep", "laptop/my sweep", "code/lp_sweep", "bin"):
        (folder / name).mkdir(parents=True)
    program = folder / "bin" / "lp-sweep"
    program.write_text(f'#!/bin/sh\nexec {python} -m lp_sweep.orchestrator.cli "$@"\n')
    program.chmod(0o755)
    for name in ("my sweep", "laptop/my sweep"):
        save_world(folder / name)
    for room in ROOMS:  # as they are here; that environment may have another lp-sweep
        (folder / "code" / "lp_sweep" / room).symlink_to(ROOT / room)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LP_SWEEP_", "RAY_", "HF_"))}
    alone = ["unshare", "--pid", "--mount", "--net", "--ipc", "--fork", "--mount-proc"]
    scene = ROOT / "tests" / "support" / "jobscene.py"
    words = [python, str(scene), str(folder), str(folder / "out.json")]
    done = subprocess.run(
        [*alone, "--kill-child", "sh", "-c", ALONE, "sh", *words],
        cwd=folder,
        env={
            **clean,
            "HOME": str(folder / "home"),
            "PATH": f"{folder / 'bin'}:{Path(python).parent}:{os.environ['PATH']}:/usr/sbin",
            "PYTHONPATH": str(folder / "code"),
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    told: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{json.dumps(told, indent=1)[-6000:]}"
    return told


def test_a_cluster_that_is_up_is_checked(saw: dict[str, Any]) -> None:
    assert saw["check"]["code"] == 0, saw["check"]
    assert "  ok  " in saw["check"]["out"]
    assert "2 through the store" in saw["check"]["out"]


def test_a_run_goes_on_by_itself_and_is_followed(saw: dict[str, Any]) -> None:
    started, log = saw["short"], saw["short log"]
    assert (started["code"], log["code"]) == (0, 0), (started, log)
    assert started["out"].startswith("lp-sweep-")
    assert f"lp-sweep attach {started['out'].strip()}" in started["err"]
    assert "complete: 1 done in this run" in log["out"]


def test_ctrl_c_leaves_the_run_alone_and_stop_ends_it_in_order(saw: dict[str, Any]) -> None:
    left = saw["left"]
    assert left["code"] == 130, left
    assert left["first"] or left["out"]
    assert "the run continues. Look again: lp-sweep attach lp-sweep-" in left["err"]
    assert "Traceback" not in left["err"]

    assert saw["stop"]["code"] == 0, saw["stop"]
    assert "stopped by SIGTERM: " in saw["stop"]["err"]
    assert saw["stopped log"]["code"] == 3
    assert "Go on: lp-sweep run sweep.yaml" in saw["stopped log"]["out"]
    assert saw["stop again"]["code"] == 0
    assert "it has ended before" in saw["stop again"]["err"]


def test_a_run_is_sent_from_another_machine_and_ends_with_its_own_code(
    saw: dict[str, Any],
) -> None:
    """One of its two trials was done before; its model and data came along."""
    sent, log = saw["sent"], saw["sent log"]
    assert (sent["code"], log["code"]) == (0, 0), (sent, log)
    assert f"--address {SERVER}" in sent["err"]
    assert "complete: 1 done in this run" in log["out"]
    assert saw["records"] == 2

    assert saw["resumed"]["code"] == 0
    assert saw["resumed log"]["code"] == 4, saw["resumed log"]
    assert "can't make a store at /proc/no-store" in saw["resumed log"]["out"]


def test_what_there_is_is_said_and_who_has_not_the_token_is_told_so(saw: dict[str, Any]) -> None:
    assert saw["none"]["code"] == 4
    assert "none was started with `lp-sweep run --detach`" in saw["none"]["err"]
    assert saw["unknown"]["code"] == 4
    assert "RUNNING, sweep 'toy', since " in saw["unknown"]["err"]

    told = saw["wrong token"]
    assert told["code"] == 4, told
    assert "Traceback" not in told["err"]
    assert "oken" in told["err"]


def test_no_secret_is_kept_of_a_job(saw: dict[str, Any]) -> None:
    jobs = saw["jobs"]
    assert "lp_sweep.orchestrator.cli run" in jobs
    assert SECRET not in json.dumps(saw)
    assert not saw["cache"]
