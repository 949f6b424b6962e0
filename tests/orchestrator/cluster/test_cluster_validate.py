"""`cluster validate`: what is wrong with a cluster file is said, each with its place and, where it
is a slip, with the right word. And what Ray reads is what we take for right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray.autoscaler._private.aws
import ray.autoscaler._private.gcp
import ray.autoscaler._private.local
import yaml
from typer.testing import CliRunner

from lp_sweep.orchestrator.cli.__main__ import app
from lp_sweep.orchestrator.cluster.validate import PROVIDER_KEYS, mistakes_of
from lp_sweep.storage.errors import SpecError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("dist", ".ssh", ".ray"):
        (tmp_path / folder).mkdir()
    for file in (".ssh/id_ed25519", ".ray/auth_token"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


def validated(content: object) -> list[str]:
    """The lines of the command for this content, its name cut off."""
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    Path("cluster.yaml").write_text(text.replace("CHANGE-", "my-"), encoding="utf-8")
    done = CliRunner().invoke(app, ["cluster", "validate", "cluster.yaml"])
    if done.exit_code == 0:
        assert done.stdout.startswith("cluster.yaml: nothing wrong")
        return []
    assert isinstance(done.exception, SpecError), done.exception
    return [line.removeprefix("cluster.yaml: ") for line in str(done.exception).splitlines()]


def shipped(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def _put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


def _rename(*path: Any, to: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        for key in path[:-1]:
            content = content[key]
        content[to] = content.pop(path[-1])

    return change


GPU = ("available_node_types", "gpu")
NODE = (*GPU, "node_config")
POD = ("spec", "workerGroupSpecs", 0, "template", "spec", "containers", 0)
SLIPS: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "top": ("cluster.yaml", _rename("max_workers", to="max_wokers"), "Did you mean 'max_workers'?"),
    "min-workers": ("cluster.yaml", _put("min_workers", value=2), "unknown key 'min_workers'"),
    "kind": (
        "cluster.yaml",
        _rename(*GPU, "max_workers", to="max_worker"),
        "available_node_types.gpu: unknown key 'max_worker'. Did you mean 'max_workers'?",
    ),
    "type": ("cluster.yaml", _put("max_workers", value="8"), "max_workers: '8' is not of type"),
    "head": ("cluster.yaml", _put("head_node_type", value="haed"), "must be one of"),
    "provider": (
        "cluster.yaml",
        _rename("provider", "cache_stopped_nodes", to="cached_stopped_nodes"),
        "provider: unknown key 'cached_stopped_nodes'. Did you mean 'cache_stopped_nodes'?",
    ),
    "region": ("cluster.yaml", _rename("provider", "region", to="regoin"), "region is missing."),
    "node": (
        "cluster.yaml",
        _rename(*NODE, "InstanceMarketOptions", to="InstanceMarketOption"),
        "available_node_types.gpu.node_config: unknown key 'InstanceMarketOption'. Did you mean "
        "'InstanceMarketOptions'?",
    ),
    "deep": (
        "cluster.yaml",
        _rename(*NODE, "BlockDeviceMappings", 0, "Ebs", "VolumeSize", to="VolumSize"),
        "node_config.BlockDeviceMappings[0].Ebs: unknown key 'VolumSize'. Did you mean "
        "'VolumeSize'?",
    ),
    "deep-type": (
        "cluster.yaml",
        _put(*NODE, "BlockDeviceMappings", 0, "Ebs", "VolumeSize", value="200"),
        "Ebs.VolumeSize: '200' is no integer.",
    ),
    "price": (
        "cluster.yaml",
        _put(*NODE, "InstanceMarketOptions", "SpotOptions", value={"MaxPrice": 0.6}),
        "SpotOptions.MaxPrice: 0.6 is no string.",
    ),
    "market": (
        "cluster.yaml",
        _put(*NODE, "InstanceMarketOptions", "MarketType", value="sport"),
        "MarketType: unknown value 'sport'. Did you mean 'spot'?",
    ),
    "instance": (
        "cluster.yaml",
        _put(*NODE, "InstanceType", value="g5.xlrge"),
        "InstanceType: unknown value 'g5.xlrge'. Did you mean 'g5.xlarge'?",
    ),
    "own-key": (
        "cluster.yaml",
        _put("auth", "ssh_private_key", value="~/.ssh/id_ed25519"),
        "available_node_types.gpu.node_config: KeyName is missing",
    ),
    "mount": (
        "cluster.yaml",
        _put("file_mounts", "~/lp-sweep-dist", value="./dits"),
        "file_mounts.~/lp-sweep-dist: './dits' is not here",
    ),
    "priced": (
        "cluster.yaml",
        _put("metadata", value={"price_per_hour": {"cpu": 1}}),
        "metadata.price_per_hour has 'cpu'",
    ),
    "priced-alike": (
        "cluster.yaml",
        _put("metadata", value={"price_per_hour": 0.6}),
        "metadata.price_per_hour is 0.6",
    ),
    "gcp-provider": (
        "examples/cluster-gcp.yaml",
        _rename("provider", "project_id", to="project"),
        "provider: unknown key 'project'. Did you mean 'project_id'?",
    ),
    "gcp-node": (
        "examples/cluster-gcp.yaml",
        _rename(*NODE, "machineType", to="MachineType"),
        "unknown key 'MachineType'. Did you mean 'machineType'?",
    ),
    "gcp-scheduling": (
        "examples/cluster-gcp.yaml",
        _rename(*NODE, "scheduling", "provisioningModel", to="provisionModel"),
        "node_config.scheduling: unknown key 'provisionModel'. Did you mean 'provisioningModel'?",
    ),
    "onprem": (
        "examples/cluster-onprem.yaml",
        _rename("provider", "worker_ips", to="workers_ips"),
        "provider: unknown key 'workers_ips'. Did you mean 'worker_ips'?",
    ),
    "onprem-kinds": (
        "examples/cluster-onprem.yaml",
        _put("available_node_types", value={"gpu": {"resources": {}, "node_config": {}}}),
        "Ray says: The field available_node_types is not supported for on-premise clusters",
    ),
    "onprem-workers": (
        "examples/cluster-onprem.yaml",
        _put("max_workers", value=3),
        "Ray says: The value of `max_workers` supplied (3) is greater than",
    ),
    "kuberay-spec": (
        "examples/kuberay.yaml",
        _rename("spec", "enableInTreeAutoscaling", to="enableIntreeAutoscaling"),
        "spec: unknown key 'enableIntreeAutoscaling'. Did you mean 'enableInTreeAutoscaling'?",
    ),
    "kuberay-group": (
        "examples/kuberay.yaml",
        _rename("spec", "workerGroupSpecs", 0, "maxReplicas", to="maxReplica"),
        "spec.workerGroupSpecs[0]: unknown key 'maxReplica'. Did you mean 'maxReplicas'?",
    ),
    "kuberay-number": (
        "examples/kuberay.yaml",
        _put("spec", "headGroupSpec", "rayStartParams", value={"num-cpus": 0}),
        "spec.headGroupSpec.rayStartParams.num-cpus: 0 is no string: write '0'.",
    ),
    "kuberay-size": (
        "examples/kuberay.yaml",
        _put(*POD, "resources", value={}),
        "Ray's autoscaler can't read it: ValueError: Autoscaler failed to detect `CPU` resources",
    ),
    "kuberay-version": (
        "examples/kuberay.yaml",
        _put("apiVersion", value="ray.io/v1alpha1"),
        "apiVersion: 'ray.io/v1alpha1' is not ray.io/v1.",
    ),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_found(slip: str) -> None:
    name, change, message = SLIPS[slip]
    content = shipped(name)
    assert validated(content) == []
    change(content)
    found = validated(content)
    assert any(message in line for line in found), found


def test_every_mistake_has_a_line() -> None:
    content = shipped("cluster.yaml")
    for slip in ("provider", "node", "deep-type", "mount"):
        SLIPS[slip][1](content)
    assert len(validated(content)) == 4


def test_what_is_still_to_change_is_named_with_its_line() -> None:
    found = [mistake for mistake in mistakes_of(ROOT / "cluster.yaml") if mistake.where]
    lines = (ROOT / "cluster.yaml").read_text().splitlines()
    [where] = [mistake.where for mistake in found]
    assert lines[int(where.removeprefix("line ")) - 1].strip() == (
        "export LP_SWEEP_STORE=s3://CHANGE-bucket/lp-sweep"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "a: [",
        "kind: RayCluster",
        "kind: RayCluster\napiVersion: ray.io/v1\nspec: []\nmetadata: 3",
        "cluster_name: a\nprovider: aws",
        "cluster_name: a\nprovider: {type: azur}",
        "cluster_name: a\nprovider: {type: aws}\navailable_node_types: []",
        "cluster_name: a\nprovider: {type: aws}\navailable_node_types: {gpu: 3}",
        "cluster_name: a\nprovider: {type: aws}\nfile_mounts: [a]\nauth: 3",
    ],
)
def test_any_file_has_an_answer(text: str) -> None:
    assert validated(text)


@pytest.mark.parametrize("kind", PROVIDER_KEYS)
def test_the_keys_of_a_provider_are_those_that_ray_reads(kind: str) -> None:
    package = getattr(ray.autoscaler._private, kind)
    source = "".join(file.read_text() for file in Path(package.__path__[0]).rglob("*.py"))
    read = set(re.findall(r'provider(?:_config)?"?\]?(?:\.get\(|\[)\s*"([a-z]\w*)"', source))
    read -= {"list_of_node_ips"}  # of the coordinator's own server
    assert read <= PROVIDER_KEYS[kind]
    general = Path(ray.autoscaler.__file__).parent.rglob("*.py")
    everything = "".join(file.read_text() for file in general)
    assert all(f'"{key}"' in everything for key in PROVIDER_KEYS[kind])


def test_the_docs_show_what_validate_says() -> None:
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = text.partition("### What `validate` finds")[2]
    edit, command, *shown = section.partition("```\n")[2].partition("\n```")[0].splitlines()
    source = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
    for old, new in re.findall(r"-e s/(.+?)/(.+?)/", edit):
        source = source.replace(old, new)
    Path("slips.yaml").write_text(source, encoding="utf-8")
    assert command == "$ lp-sweep cluster validate slips.yaml"
    done = CliRunner().invoke(app, ["cluster", "validate", "slips.yaml"])
    said = [f"error: {line}" for line in str(done.exception).splitlines()]
    assert said == shown
