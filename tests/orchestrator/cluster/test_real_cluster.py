"""`ray up` of a cluster of your own machines, and what a user does with it, for real: sshd, rsync,
token authentication, and three machines that share a network and no disk (see hosts.sh)."""

from __future__ import annotations

import json
import os
import re
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
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
S3 = KEYS | {"AWS_ENDPOINT_URL": "http://10.77.0.254:5000", "AWS_REGION": "us-east-1"}
EDITED = {  # lines of the example with CHANGE, as for these machines
    "10.0.0.": "10.77.0.",
    "CHANGE-user": "root",
    "~/.ssh/id_ed25519": "~/.ssh/lp-sweep.pem",
    "./dist": "/mnt/dist",
    "LP_SWEEP_STORE=/mnt/lp-sweep": " ".join(
        ["LP_SWEEP_STORE=s3://sweeps/records", *(f"{name}={value}" for name, value in S3.items())]
    ),
}
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


def cluster_file(python: str) -> dict[str, Any]:
    """The example, with machines of this size, and with nothing downloaded: each has an environment
    of its own with the wheel, on top of what is installed here."""
    text = (ROOT / "examples" / "cluster-onprem.yaml").read_text(encoding="utf-8")
    for old, new in EDITED.items():
        assert old in text
        text = text.replace(old, new)
    content: dict[str, Any] = yaml.safe_load(text)
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
    laptop = folder / "mnt"
    (laptop / "sweep").mkdir(parents=True)
    long = RECIPE | {"epochs": 60}  # long enough to be killed
    strategies = [{"name": "top", "k": [0, 1, 2]}]
    save_world(laptop / "sweep", seeds=[1, 2, 3, 4, 5], strategies=strategies, recipe=long)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", laptop / "dist"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    content = yaml.safe_dump(cluster_file(python), sort_keys=False, width=1000)
    (laptop / "cluster.yaml").write_text(content, encoding="utf-8")
    shutil.copy(ROOT / "tests" / "support" / "clusterscene.py", laptop)
    machines = [f"{name}={address}" for name, address in HOSTS.items()]
    scene = [python, "/mnt/clusterscene.py", "/mnt/cluster.yaml", "/mnt/out.json"]
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "tests" / "support" / "hosts.sh", folder, *machines, "--", *scene],
        env={**os.environ, **KEYS, "PATH": path, "RAY_AUTH_MODE": "token"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    out = laptop / "out.json"
    told: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{told.get('first', '')[-4000:]}"
    return told


def test_a_sweep_on_machines_that_share_no_disk(saw: dict[str, Any]) -> None:
    """The model and the data were on the head alone; the records are of both workers, of which one
    was killed amid its trial: none is lost, and none is there twice."""
    printed = saw["hosts"]
    hosts = json.loads(printed[printed.index("[\n") : printed.rindex("]") + 1])
    assert {row["host"] for row in hosts} == {"one", "two"}
    assert sum(row["n"] for row in hosts) == TRIALS


def test_a_run_that_ctrl_c_has_ended_goes_on(saw: dict[str, Any]) -> None:
    assert saw["stopped"] != 0
    assert "complete" not in saw["first"]
    [done] = re.findall(r"complete: (\d+) done in this run", saw["second"])
    assert 0 < int(done) <= TRIALS - saw["records"]
    assert "nothing was missing" in saw["third"]
