"""Cluster files: what `cluster init` writes is what Ray, the cloud and a shell can read, whatever
is asked for; and the files that ship are such ones. No cloud and no Ray is started."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray.autoscaler._private.command_runner import _with_interactive
from typer.testing import CliRunner

from lp_sweep.orchestrator.cli.__main__ import app
from lp_sweep.orchestrator.cluster.clusterfile import read_cluster_file
from lp_sweep.orchestrator.cluster.compose import compose, pins, wheel_command_of
from lp_sweep.orchestrator.cluster.validate import mistakes_of
from lp_sweep.orchestrator.cluster.wanted import AWS, GCP, TAKES, Wanted
from tests.support.clusterfiles import go_home

ROOT = Path(__file__).resolve().parents[3]
OWN = {"head_ip": "10.0.0.10", "worker_ips": ("10.0.0.11", "10.0.0.12")}
SHIPPED = {
    "cluster.yaml": "aws --gpus 8 --gpu-type a10g",
    "examples/cluster-gcp.yaml": "gcp --gpus 8 --gpu-type l4",
    "examples/cluster-onprem.yaml": "onprem --head-ip 10.0.0.10 --worker-ips 10.0.0.11,10.0.0.12"
    " --store /mnt/lp-sweep",
    "examples/kuberay.yaml": "kuberay --gpus 8",
}


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    go_home(tmp_path, monkeypatch)
    return tmp_path


def text_of(**options: Any) -> str:
    if options["provider"] == "onprem":
        options = {**OWN, **options}
    return compose(Wanted(**options), pins())


def mistakes(path: Path) -> list[str]:
    """Without what only the user can fill in."""
    found = mistakes_of(path)
    return [it.text() for it in found if not it.what.startswith("still to change")]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_what_init_writes_and_right(name: str, at_home: Path) -> None:
    command = ["cluster", "init", *SHIPPED[name].split(), "--out", "written.yaml"]
    assert CliRunner().invoke(app, command).exit_code == 0
    again = f"lp-sweep cluster init {SHIPPED[name]} --out {name} --force"
    assert (ROOT / name).read_text() == (at_home / "written.yaml").read_text(), again
    assert mistakes(ROOT / name) == []


line = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1)
names = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)
prices = st.floats(0.01, 99)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "gpus": st.sampled_from([8, 16, 64]),
    "max_price": prices,
    "region": st.sampled_from(["eu-west-1", "us-gov-east-1", "us-east1"]),
    "prices": st.dictionaries(st.sampled_from(["head", "gpu"]), prices),
    "name": names | st.sampled_from(["no", "null", "true", "on"]),
    "store": line,
    "ssh_user": names,
    "ssh_key": st.just("~/.ssh/lab key #1.pem"),
    "project": names,
    "image": st.just("registry.example:5000/me/lp-sweep:0.1.0"),
    "on_demand": st.booleans(),
    "head_ip": st.sampled_from(["10.0.0.10", "lab-0.example.org", "fd00::10"]),
    "worker_ips": st.lists(names, min_size=1, max_size=3, unique=True).map(tuple),
}


@st.composite
def wanted(draw: st.DrawFn) -> dict[str, Any]:
    provider = draw(st.sampled_from(list(TAKES)))
    kinds = {"aws": AWS, "gcp": GCP}.get(provider)
    asked = {
        "provider": provider,
        "gpu_type": draw(st.sampled_from(sorted(kinds))) if kinds else None,
    }
    for name in sorted(TAKES[provider] - {"gpu_type"}):
        if draw(st.booleans()):
            asked[name] = draw(OPTIONS[name])
    if asked.get("on_demand"):
        asked.pop("max_price", None)
    return asked


@given(wanted())
def test_whatever_is_asked_for_is_a_right_file(at_home: Path, asked: dict[str, Any]) -> None:
    path = at_home / "cluster.yaml"
    path.write_text(text_of(**asked), encoding="utf-8")
    assert mistakes(path) == []
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if asked["provider"] == "kuberay":
        assert content["metadata"]["name"] == asked.get("name", "lp-sweep")
        store = content["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["env"][-1]
        assert store["value"] == asked.get("store", "s3://CHANGE-bucket/lp-sweep")
        return
    assert content["cluster_name"] == asked.get("name", "lp-sweep")
    for name, key in (("ssh_user", "ssh_user"), ("ssh_key", "ssh_private_key")):
        if name in asked:
            assert content["auth"][key] == asked[name]
    prices = {kind.name: kind.price for kind in read_cluster_file(path).kinds}
    for kind, price in asked.get("prices", {}).items():
        assert prices[kind] == pytest.approx(price, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "market"),
    [
        ({}, {"MarketType": "spot"}),
        ({"max_price": 0.45}, {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.45"}}),
        ({"on_demand": True}, None),
    ],
    ids=["spot", "capped", "on-demand"],
)
def test_how_a_machine_is_rented(options: dict[str, Any], market: dict[str, Any] | None) -> None:
    file = yaml.safe_load(text_of(provider="aws", **options))
    kinds = file["available_node_types"]
    assert kinds["gpu"]["node_config"].get("InstanceMarketOptions") == market
    assert "InstanceMarketOptions" not in kinds["head"]["node_config"]


def test_machines_of_several_gpus_are_as_many_as_the_gpus_need() -> None:
    file = yaml.safe_load(text_of(provider="aws", gpus=16, gpu_type="a100"))
    kind = file["available_node_types"]["gpu"]
    assert (file["max_workers"], kind["max_workers"]) == (2, 2)
    assert kind["resources"] == {"CPU": 96, "GPU": 8, "accelerator_type:A100": 1}


HOSTILE = ["/mnt/a 0", "/mnt/a'; echo foo; '", "s3://bucket/pre?region=x&scheme=http", "/mnt/$HOME"]


@pytest.mark.parametrize("store", HOSTILE)
def test_a_store_reaches_every_shell_as_it_was_said(store: str, tmp_path: Path) -> None:
    """The commands of the file, in the shell that Ray starts for them, twice: `ray up` repeats."""
    file = yaml.safe_load(text_of(provider="onprem", store=store))
    sets = [command for command in file["setup_commands"] if ".lp-sweep.sh" in command]
    assert len(sets) == 2
    ask = 'printf \'%s\\n\' "$LP_SWEEP_STORE" "$RAY_AUTH_MODE"'
    done = [in_shell_of_ray(command, tmp_path) for command in [*sets, *sets, ask]]
    assert done[-1].splitlines() == [store, "token"]
    assert (tmp_path / ".bashrc").read_text().count("lp-sweep") == 1


def test_a_worker_has_the_address_at_which_the_head_reached_it(tmp_path: Path) -> None:
    ray = tmp_path / "ray"
    ray.write_text('#!/bin/sh\necho "$@"\n')
    ray.chmod(0o755)
    [start] = yaml.safe_load(text_of(provider="onprem"))["worker_start_ray_commands"]
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


def test_a_machine_has_what_amazon_says_of_it() -> None:
    import gzip

    import moto

    file = Path(moto.__file__).parent / "ec2/resources/instance_types.json.gz"
    known = json.loads(gzip.decompress(file.read_bytes()))
    for gpu, machine in AWS.items():
        told = known[machine.instance]
        [gpus] = told["GpuInfo"]["Gpus"]
        assert gpus["Name"].lower() == gpu
        assert machine.gpus == gpus["Count"]
        assert machine.cpus == told["VCpuInfo"]["DefaultVCpus"]
        assert machine.memory_gib == told["MemoryInfo"]["SizeInMiB"] / 1024


def test_a_file_is_overwritten_only_by_force(at_home: Path) -> None:
    Path("cluster.yaml").write_text("mine")
    done = CliRunner().invoke(app, ["cluster", "init", "aws"])
    assert "cluster.yaml exists" in str(done.exception)
    assert Path("cluster.yaml").read_text() == "mine"
    assert CliRunner().invoke(app, ["cluster", "init", "aws", "--force"]).exit_code == 0
    assert "cluster_name" in Path("cluster.yaml").read_text()


GIT = {"url": "https://git.example/x.git", "vcs_info": {"vcs": "git", "commit_id": "0c1f"}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip download lp-sweep==0.1.0 --no-deps -d dist"),
        (
            {"url": "file:///home/me/lp%20sweep", "dir_info": {"editable": True}},
            "build --wheel --outdir dist '/home/me/lp sweep'",
        ),
        (
            {"url": "file:///tmp/x.whl", "archive_info": {}},
            "pip wheel --no-deps -w dist /tmp/x.whl",
        ),
        (GIT, "pip wheel --no-deps -w dist git+https://git.example/x.git@0c1f"),
    ],
    ids=["registry", "folder", "wheel", "git"],
)
def test_how_to_get_the_wheel_of_what_is_installed(origin: Any, command: str) -> None:
    assert wheel_command_of(origin, "0.1.0") == f"python -m {command}"
