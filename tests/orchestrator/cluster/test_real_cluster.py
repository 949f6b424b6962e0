"""`ray up` of a cluster of your own machines, and what a user does with it, for real: sshd, rsync,
token authentication, three machines that share a network and one folder (see hosts.sh)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.toyworld import RECIPE, save_world

ROOT = Path(__file__).parents[3]
HOSTS = {"head": "10.77.0.10", "one": "10.77.0.11", "two": "10.77.0.12"}
TRIALS = 15
PROGRAMS = ("sshd", "rsync", "ip", "unshare")
pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(1500)]


def absent() -> str | None:
    """Why such machines can't be made here."""
    if os.geteuid() != 0:
        return "only root can make machines out of namespaces"
    missing = [name for name in PROGRAMS if not shutil.which(name, path="/usr/sbin:/usr/bin:/bin")]
    if missing:
        return f"needs {', '.join(missing)}: `make test-cluster` installs them"
    if not os.environ.get("LP_SWEEP_CLUSTER_PYTHON"):
        return "LP_SWEEP_CLUSTER_PYTHON is not set: `make test-cluster` makes that environment"
    return None


def cluster_file(python: str, folder: Path) -> dict[str, Any]:
    """The file of `cluster init onprem`, with machines of this size, and with nothing downloaded:
    each has an environment of its own with the wheel, on top of what is installed here."""
    workers = ",".join(address for name, address in HOSTS.items() if name != "head")
    key, path = "~/.ssh/lp-sweep.pem", folder / "written.yaml"
    words = ["--head-ip", HOSTS["head"], "--worker-ips", workers, "--ssh-user", "root"]
    words += ["--ssh-key", key, "--store", "/mnt/records", "--out", str(path)]
    subprocess.run(
        [sys.executable, "-m", "lp_sweep.orchestrator.cli", "cluster", "init", "onprem", *words],
        check=True,
        capture_output=True,
    )
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["file_mounts"]["~/lp-sweep-dist"] = "/mnt/dist"
    written = content["setup_commands"]
    shell = [line for line in written if ".lp-sweep.sh" in line]
    installs = [line for line in written if "lp-sweep-uv" in line]
    assert len(shell) + len(installs) == len(written)
    content["setup_commands"] = [*shell, *installed(python)]
    for role, size in (
        ("head", "--num-cpus=0 --num-gpus=0"),
        ("worker", "--num-cpus=1 --num-gpus=1"),
    ):
        (start,) = content[f"{role}_start_ray_commands"]
        assert "ray start " in start
        small = f"ray start {size} --object-store-memory=200000000 "
        content[f"{role}_start_ray_commands"] = [start.replace("ray start ", small)]
    return content


def installed(python: str) -> list[str]:
    here = [sysconfig.get_path("purelib", vars={"base": str(Path(python).parents[1])})]
    folders = "\\n".join([*here, sysconfig.get_path("purelib")])
    ray = Path(python).with_name("ray")
    return [
        f"[ -d ~/lp-sweep ] || {python} -m venv ~/lp-sweep",
        f"printf '{folders}\\n' > $(echo ~/lp-sweep/lib/python3*/site-packages)/here.pth",
        f'sed "1s|.*|#!$HOME/lp-sweep/bin/python|" {ray} > ~/lp-sweep/bin/ray',
        "chmod +x ~/lp-sweep/bin/ray",
        "~/lp-sweep/bin/pip install -q --no-index --no-deps ~/lp-sweep-dist/*.whl",
    ]


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if why := absent():
        pytest.skip(why)
    python = os.environ["LP_SWEEP_CLUSTER_PYTHON"]
    folder = tmp_path_factory.mktemp("machines")
    shared = folder / "shared"
    long = RECIPE | {"epochs": 60}  # long enough to be killed
    strategies = [{"name": "top", "k": [0, 1, 2]}]
    save_world(shared_sweep(shared), seeds=[1, 2, 3, 4, 5], strategies=strategies, recipe=long)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", shared / "dist"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    content = yaml.safe_dump(cluster_file(python, folder), sort_keys=False, width=1000)
    (shared / "cluster.yaml").write_text(content, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "support" / "clusterscene.py", shared)
    machines = [f"{name}={address}" for name, address in HOSTS.items()]
    scene = [python, "/mnt/clusterscene.py", "/mnt/cluster.yaml", "/mnt/out.json"]
    done = subprocess.run(
        [ROOT / "tests" / "support" / "hosts.sh", folder, *machines, "--", *scene],
        env={
            **os.environ,
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    out = shared / "out.json"
    told: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{told.get('log', '')[-4000:]}"
    return told


def shared_sweep(shared: Path) -> Path:
    folder = shared / "sweep"
    folder.mkdir(parents=True)
    return folder


def test_a_sweep_on_machines_that_share_no_disk(saw: dict[str, Any]) -> None:
    """The model and the data were on the head alone; the records are of both workers."""
    printed = saw["hosts"]
    hosts = json.loads(printed[printed.index("[\n") : printed.rindex("]") + 1])
    assert {row["host"] for row in hosts} == {"one", "two"}
    assert sum(row["n"] for row in hosts) == TRIALS


def test_ctrl_c_ends_a_run(saw: dict[str, Any]) -> None:
    """By the end of ssh on the laptop, and with the terminal of the run on the head."""
    assert saw["stopped"] != 0
    assert "complete" not in saw["first"]


def test_a_second_run_goes_on(saw: dict[str, Any]) -> None:
    left = TRIALS - saw["records_when_stopped"]
    assert f"complete: {left} done in this run" in saw["second"]
    assert "nothing was missing" in saw["third"]


def test_each_machine_is_checked(saw: dict[str, Any]) -> None:
    """Their GPUs are made up, and torch says so; nothing else is wrong."""
    lines = [line for line in saw["check"].splitlines() if line.startswith("problem: ")]
    assert [line.split()[1] for line in lines] == ["one", "two"]
    assert all("GPUs: torch " in line for line in lines), lines
    assert "exit code 4" in saw["check"]
    blind = [line for line in saw["check_blind"].splitlines() if ": store: " in line]
    assert [line.split()[1] for line in blind] == ["one", "two"]
    assert all("there is no store at /tmp/records" in line for line in blind), blind


def test_a_store_that_not_all_machines_share_is_refused(saw: dict[str, Any]) -> None:
    assert "nodes don't see the store /tmp/records" in saw["blind"]
