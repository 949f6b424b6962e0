"""The cluster files that ship: what Ray and the cloud can read, with the versions that are tested.
No cloud and no Ray is started."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml
from botocore.validate import ParamValidator
from ray.autoscaler._private.command_runner import _with_interactive
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[3]
OF_RAY_UP = ("cluster.yaml", "examples/cluster-gcp.yaml", "examples/cluster-onprem.yaml")
KUBERAY, KUBERAY_JOB = "examples/kuberay.yaml", "examples/kuberay-job.yaml"
_PINNED = re.compile(r"\b([A-Za-z][\w-]*)(?:\[\w+\])?==([\w.]+)")


def content_of(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", OF_RAY_UP)
def test_ray_takes_the_file(name: str) -> None:
    """As `ray up` does before it contacts a cloud."""
    validate_config(prepare_config(content_of(name)))


def cluster_of(spec: dict[str, Any]) -> Any:
    """Its kinds of nodes, as Ray's autoscaler reads them."""
    cluster = {"metadata": {"name": "lp-sweep", "namespace": "default"}, "spec": spec}
    return _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]


def test_rays_autoscaler_reads_the_raycluster() -> None:
    kinds = cluster_of(content_of(KUBERAY)["spec"])
    assert kinds["gpu"]["resources"] == {"CPU": 4, "memory": 14 * 2**30, "GPU": 1}
    assert (kinds["gpu"]["min_workers"], kinds["gpu"]["max_workers"]) == (0, 8)


def test_kueue_may_start_the_rayjob() -> None:
    """It refuses one that keeps its cluster, or that grows beyond what it has reserved."""
    content = content_of(KUBERAY_JOB)
    assert "kueue.x-k8s.io/queue-name" in content["metadata"]["labels"]
    spec = content["spec"]
    assert spec["shutdownAfterJobFinishes"]
    assert not spec["rayClusterSpec"]["enableInTreeAutoscaling"]
    gpu = cluster_of(spec["rayClusterSpec"] | {"autoscalerOptions": {}})["gpu"]
    assert gpu["resources"] == {"CPU": 4, "memory": 14 * 2**30, "GPU": 1}
    assert gpu["min_workers"] == gpu["max_workers"] == 4


def test_hugging_face_takes_the_job() -> None:
    hf = Path(sys.executable).with_name("hf")
    words = ["jobs", "uv", "run", "--dry-run", "-v", "./dist:/dist", "examples/hf-job.py"]
    done = subprocess.run([hf, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    told = done.stdout + done.stderr
    for said in ("a10g-small", "4h", "hf://buckets/CHANGE-user/lp-sweep:/store", "./dist:/dist"):
        assert said in told


def test_amazon_takes_each_machine() -> None:
    """Ray passes `node_config` on unchecked: a typo would fail at the start of a machine, or make
    a spot machine an on-demand one."""
    ec2 = botocore.session.get_session().get_service_model("ec2")
    shape = ec2.operation_model("RunInstances").input_shape
    for kind in content_of("cluster.yaml")["available_node_types"].values():
        asked = kind["node_config"] | {"MinCount": 1, "MaxCount": 1}
        assert ParamValidator().validate(asked, shape).generate_report() == ""


@pytest.mark.parametrize("name", [*OF_RAY_UP, KUBERAY, KUBERAY_JOB])
def test_the_versions_are_those_of_the_constraints(name: str) -> None:
    tested = dict(_PINNED.findall((ROOT / "constraints.txt").read_text(encoding="utf-8")))
    text = (ROOT / name).read_text(encoding="utf-8")
    pinned = [pair for pair in _PINNED.findall(text) if pair[0] in tested]
    pinned += [("ray", version) for version in re.findall(r'rayVersion: "(.+)"', text)]
    assert ("ray", tested["ray"]) in pinned
    assert [pair for pair in pinned if tested[pair[0]] != pair[1]] == []


def test_two_lines_of_the_cluster_file_are_to_be_edited() -> None:
    lines = (ROOT / "cluster.yaml").read_text(encoding="utf-8").splitlines()[1:]
    assert [line.split()[0] for line in lines if "CHANGE" in line] == ["region:", "export"]


@pytest.mark.parametrize("name", OF_RAY_UP)
def test_the_exports_reach_every_shell(name: str, tmp_path: Path) -> None:
    """The commands of the file, in the shell that Ray starts for them, twice: `ray up` repeats."""
    sets = [line for line in content_of(name)["setup_commands"] if ".lp-sweep.sh" in line]
    assert len(sets) == 2
    ask = 'echo "$LP_SWEEP_STORE" $LP_SWEEP_ADDRESS $RAY_AUTH_MODE'
    done = [in_shell_of_ray(command, tmp_path) for command in [*sets, *sets, ask]]
    assert re.fullmatch(r"(s3://CHANGE-bucket|/mnt)/lp-sweep auto token\n", done[-1])
    assert (tmp_path / ".bashrc").read_text().count("lp-sweep") == 1


def test_a_worker_has_the_address_at_which_the_head_reached_it(tmp_path: Path) -> None:
    ray = tmp_path / "ray"
    ray.write_text('#!/bin/sh\necho "$@"\n')
    ray.chmod(0o755)
    [start] = content_of("examples/cluster-onprem.yaml")["worker_start_ray_commands"]
    set_before = "export RAY_HEAD_IP=10.0.0.10 SSH_CONNECTION='10.0.0.10 4711 10.0.0.12 22'; "
    told = in_shell_of_ray(
        f"{set_before}PATH={shlex.quote(str(tmp_path))}:$PATH; {start}", tmp_path
    )
    assert told.split() == ["start", "--address=10.0.0.10:6379", "--node-ip-address=10.0.0.12"]


def in_shell_of_ray(command: str, home: Path) -> str:
    """As Ray's runner starts it at the other end of ssh, whose shell takes one string."""
    done = subprocess.run(
        ["bash", "-c", " ".join(_with_interactive(command))],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
