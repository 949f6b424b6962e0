"""`cluster validate`: what Ray, AWS and lp-sweep find wrong with a cluster file, with its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lp_sweep.orchestrator.cli.__main__ import app
from lp_sweep.orchestrator.cluster.validate import mistakes_of
from lp_sweep.storage.errors import SpecError
from tests.support.clusterfiles import go_home

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_home(tmp_path, monkeypatch)


def validated(content: object) -> list[str]:
    """The lines of the command for this content, its name cut off."""
    text = content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False)
    Path("cluster.yaml").write_text(text.replace("CHANGE-", "my-"), encoding="utf-8")
    done = CliRunner().invoke(app, ["cluster", "validate", "cluster.yaml"])
    if done.exit_code == 0:
        assert done.stdout.startswith("cluster.yaml: nothing wrong")
        return []
    assert isinstance(done.exception, SpecError), done.exception
    lines = str(done.exception).splitlines()
    assert all(line.startswith("cluster.yaml") for line in lines)
    return [line.removeprefix("cluster.yaml:").strip() for line in lines]


def shipped(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        inner(content, path)[path[-1]] = value

    return change


def rename(*path: Any, to: str) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        holder = inner(content, path)
        holder[to] = holder.pop(path[-1])

    return change


def inner(content: Any, path: tuple[Any, ...]) -> Any:
    """The mapping that holds the last key of the path."""
    return reduce(getitem, path[:-1], content)


GPU = ("available_node_types", "gpu")
NODE = (*GPU, "node_config")
POD = ("spec", "workerGroupSpecs", 0, "template", "spec", "containers", 0)
EBS = (*NODE, "BlockDeviceMappings", 0, "Ebs")
AWS, ONPREM, KUBERAY = "cluster.yaml", "examples/cluster-onprem.yaml", "examples/kuberay.yaml"
ONE_KIND = {"gpu": {"resources": {}, "node_config": {}}}
DEAR = {"price_per_hour": {"cpu": 1}}
SLIPS: list[tuple[str, Callable[[Any], None], str]] = [
    (AWS, rename("max_workers", to="max_wokers"), "max_wokers: unknown .*mean 'max_workers'"),
    (AWS, rename(*GPU, "max_workers", to="max_worker"), "gpu.max_worker: unknown key"),
    (AWS, put("max_workers", value="8"), "max_workers: '8' is not of type"),
    (AWS, put("head_node_type", value="haed"), "must be one of"),
    (
        AWS,
        rename(*NODE, "InstanceMarketOptions", to="InstanceMarketOption"),
        "node_config: .*InstanceMarketOption.*Did you mean 'InstanceMarketOptions'",
    ),
    (
        AWS,
        rename(*EBS, "VolumeSize", to="VolumSize"),
        r"BlockDeviceMappings\[0\].Ebs: .*Did you mean 'VolumeSize'",
    ),
    (
        AWS,
        put("file_mounts", "~/lp-sweep-dist", value="./dits"),
        "file_mounts.~/lp-sweep-dist: './dits' is not here",
    ),
    (AWS, put("metadata", value=DEAR), "metadata.price_per_hour has 'cpu'.*: head, gpu"),
    (
        ONPREM,
        put("available_node_types", value=ONE_KIND),
        "Ray says: .*available_node_types is not supported for on-premise clusters",
    ),
    (
        KUBERAY,
        put(*POD, "resources", value={}),
        "Ray's autoscaler can't read it: ValueError: .*detect `CPU` resources",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), SLIPS)
def test_a_slip_is_found(name: str, change: Callable[[Any], None], message: str) -> None:
    content = shipped(name)
    change(content)
    found = validated(content)
    assert any(re.search(message, line) for line in found), found


def test_a_mistake_and_what_is_still_to_change_have_their_line() -> None:
    content = shipped("cluster.yaml")
    rename(*GPU, "max_workers", to="max_worker")(content)
    [found] = validated(content)
    lines = Path("cluster.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[int(found.partition(":")[0]) - 1] == "    max_worker: 8"

    [found] = mistakes_of(ROOT / "cluster.yaml")
    lines = (ROOT / "cluster.yaml").read_text().splitlines()
    assert found.line
    assert lines[found.line - 1].strip() == "export LP_SWEEP_STORE=s3://CHANGE-bucket/lp-sweep"


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (AWS, "ray[default]==2.60.0", "ray[default]==2.55.1", "ray 2.55.1, and this"),
        (AWS, "lp_sweep-0.1.0-py3", "lp_sweep-0.0.9-py3", "lp-sweep 0.0.9, and this"),
        (KUBERAY, 'rayVersion: "2.60.0"', 'rayVersion: "2.9.0"', "ray 2.9.0, and"),
    ],
)
def test_another_version_than_this_machine_has(name: str, old: str, new: str, message: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert old in text
    [found] = validated(text.replace(old, new))
    assert message in found
    assert "cluster init" in found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "a: [",
        "kind: RayCluster",
        "kind: RayCluster\napiVersion: ray.io/v1\nspec: []\nmetadata: 3",
        "cluster_name: a\nprovider: {type: azur}",
        "cluster_name: a\nprovider: {type: aws}\navailable_node_types: {gpu: 3}",
        "cluster_name: a\nprovider: {type: aws}\nfile_mounts: [a]\nauth: 3",
    ],
)
def test_any_file_has_an_answer(text: str) -> None:
    assert validated(text)


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
