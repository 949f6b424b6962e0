"""The shipped `cluster.yaml` as `ray up` takes it to AWS: Ray's own bootstrap and its own launcher
of machines, against a fake EC2 on loopback (moto). What is seen is what the server got.

There it ends: the fake machines have no sshd, and what the images hold only AWS knows.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
import pytest
import yaml
from ray.autoscaler._private.aws import config as bootstrap
from ray.autoscaler._private.aws import utils
from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler._private.util import prepare_config
from ray.autoscaler.tags import (
    NODE_KIND_WORKER,
    TAG_RAY_LAUNCH_CONFIG,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from tests.support import s3server

pytestmark = pytest.mark.slow  # the file itself is golden: test_cluster_files.py
FILE = Path(__file__).resolve().parents[3] / "cluster.yaml"
REGION = "us-west-2"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = s3server.Server(tmp_path_factory.mktemp("ec2") / "server.log")
    yield server.endpoint
    server.kill()


@pytest.fixture
def account(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """An account with the two profiles of docs/cluster.md, and nothing else of ours."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray keeps the key pair that it makes
    forget()
    clients = {name: boto3.client(name, region_name=REGION) for name in ("ec2", "iam")}
    urlopen(f"{endpoint}/moto-api/reset", data=b"", timeout=30).close()
    for name in ("lp-sweep-head", "lp-sweep-worker"):
        clients["iam"].create_instance_profile(InstanceProfileName=name)
    yield clients
    forget()


def forget() -> None:
    """Ray keeps its clients, and with them the endpoint, for the process."""
    utils.resource_cache.cache_clear()
    utils.client_cache.cache_clear()
    bootstrap._get_subnets_or_die.cache_clear()


def up_to_the_cloud() -> dict[str, Any]:
    """Prepares the file as `ray up` does before it starts a machine."""
    content = yaml.safe_load(FILE.read_text())
    return dict(AWSNodeProvider.bootstrap_config(prepare_config(content)))


def start(config: dict[str, Any], kind: str, ec2: Any) -> list[dict[str, Any]]:
    """As the autoscaler starts a worker."""
    provider = AWSNodeProvider(config["provider"], config["cluster_name"])
    tags = {
        TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
        TAG_RAY_USER_NODE_TYPE: kind,
        TAG_RAY_NODE_NAME: f"ray-{kind}",
        TAG_RAY_NODE_STATUS: "uninitialized",
        TAG_RAY_LAUNCH_CONFIG: "x",
    }
    node_config = copy.deepcopy(config["available_node_types"][kind]["node_config"])
    made = provider.create_node(node_config, tags, 1)
    found = ec2.describe_instances(InstanceIds=list(made))
    return [machine for group in found["Reservations"] for machine in group["Instances"]]


def test_a_spot_machine_with_its_profile_and_disk(account: dict[str, Any]) -> None:
    [machine] = start(up_to_the_cloud(), "gpu", account["ec2"])
    assert (machine["InstanceType"], machine["InstanceLifecycle"]) == ("g5.xlarge", "spot")
    assert machine["IamInstanceProfile"]["Arn"].endswith("/lp-sweep-worker")
    assert machine["MetadataOptions"]["HttpTokens"] == "required"
    [disk] = machine["BlockDeviceMappings"]
    [volume] = account["ec2"].describe_volumes(VolumeIds=[disk["Ebs"]["VolumeId"]])["Volumes"]
    assert (volume["Size"], disk["Ebs"]["DeleteOnTermination"]) == (200, True)
    assert account["iam"].list_roles()["Roles"] == [], "Ray's own may do everything in EC2 and S3"


def test_from_outside_nothing_is_open_but_ssh(account: dict[str, Any]) -> None:
    config = up_to_the_cloud()
    kinds = config["available_node_types"].values()
    [[group]] = {tuple(kind["node_config"]["SecurityGroupIds"]) for kind in kinds}
    [told] = account["ec2"].describe_security_groups(GroupIds=[group])["SecurityGroups"]
    assert told["GroupName"] == "ray-autoscaler-lp-sweep"
    outside = [rule for rule in told["IpPermissions"] if rule["IpRanges"]]
    assert [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in outside] == [
        ("tcp", 22, 22)
    ]
    inside = [rule for rule in told["IpPermissions"] if not rule["IpRanges"]]
    assert [pair["GroupId"] for rule in inside for pair in rule["UserIdGroupPairs"]] == [group]


def test_the_policies_of_the_docs_are_ones(account: dict[str, Any]) -> None:
    """That AWS would take them; what they are good for only AWS knows."""
    text = (FILE.parent / "docs" / "cluster.md").read_text(encoding="utf-8")
    policies = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert len(policies) == 2
    for number, policy in enumerate(policies):
        account["iam"].create_policy(PolicyName=f"lp-sweep-{number}", PolicyDocument=policy)
