"""What is wrong with a cluster file, found before `ray up` spends money: all of it, not the first.

Ray's own checks leave `provider` and `node_config` to the cloud, which answers minutes later, or
never: Ray's providers ignore the keys that they do not know. So they are checked here, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.cluster.clusterfile import (
    cluster_content,
    read_cluster_file,
    yaml_content,
)
from lp_sweep.orchestrator.cluster.mistake import Mistake, unknown_keys
from lp_sweep.orchestrator.cluster.nodeconfig import node_config_mistakes
from lp_sweep.orchestrator.cluster.raycluster import is_ray_cluster, ray_cluster_mistakes
from lp_sweep.orchestrator.cluster.rayschema import refused_by_ray, schema_mistakes
from lp_sweep.orchestrator.cluster.wanted import CHANGE
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import short, shown

# What Ray 2.60 reads under `provider`: ray/autoscaler/_private/<type>, and of every type
# updater.py and commands.py.
_ANY = {"type", "use_internal_ips", "use_external_head_ip"}
_ANY |= {"disable_node_updaters", "disable_launch_config_check", "foreground_node_launch"}
_ZONED = _ANY | {"region", "availability_zone", "cache_stopped_nodes"}
PROVIDER_KEYS = {
    "aws": _ZONED | {"aws_credentials", "cloudwatch", "key_pair", "security_group"},
    "gcp": _ZONED | {"gcp_credentials", "project_id"},
    "local": _ANY | {"coordinator_address", "external_head_ip", "head_ip", "worker_ips"},
}
_NEEDED = {"aws": ["region"], "gcp": ["region", "availability_zone", "project_id"], "local": []}


def mistakes_of(path: Path) -> list[Mistake]:
    """Everything found wrong, of a file of `ray up` or of KubeRay.

    Raises SpecError for a file that can't be read, or is no cluster file at all, and
    PreflightError where what the check needs is not installed.
    """
    path = path.expanduser()
    if is_ray_cluster(content := yaml_content(path)):
        return [*ray_cluster_mistakes(content), *_left_to_change(path)]
    file = cluster_content(path)
    # Only a file of the right shape can be read further.
    found = list(schema_mistakes(file)) or [
        *refused_by_ray(file),
        *_of_prices(path),
        *_of_provider(file),
        *_of_paths(file),
    ]
    return [*found, *_left_to_change(path)]


def _of_prices(path: Path) -> Iterator[Mistake]:
    try:
        read_cluster_file(path)
    except SpecError as error:
        yield Mistake("", str(error).removeprefix(f"{path}: "))


def _of_provider(file: Mapping[str, Any]) -> Iterator[Mistake]:
    provider, kind = file["provider"], file["provider"]["type"]
    if kind not in PROVIDER_KEYS:
        return  # Ray knows more of them than we do
    yield from unknown_keys("provider", provider, PROVIDER_KEYS[kind])
    for key in _NEEDED[kind]:
        if not provider.get(key):
            yield Mistake("provider", f"{key} is missing.")
    own_key = "ssh_private_key" in file.get("auth", {})
    for name, entry in file.get("available_node_types", {}).items():
        where, config = f"available_node_types.{name}.node_config", entry["node_config"]
        yield from node_config_mistakes(kind, where, config)
        if kind == "aws" and own_key and not {"KeyName", "UserData"} & config.keys():
            yield Mistake(where, "KeyName is missing: auth names a key of your own.")


def _of_paths(file: Mapping[str, Any]) -> Iterator[Mistake]:
    """Ray looks for them from where it is started, and not beside the file."""
    here = {f"file_mounts.{to}": path for to, path in file.get("file_mounts", {}).items()}
    here["auth.ssh_private_key"] = file.get("auth", {}).get("ssh_private_key")
    for where, path in here.items():
        if path is not None and not Path(str(path)).expanduser().exists():
            yield Mistake(where, f"{shown(path)} is not here; docs/cluster.md says how to make it.")


def _left_to_change(path: Path) -> Iterator[Mistake]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if CHANGE in line and not line.lstrip().startswith("#"):
            yield Mistake(f"line {number}", f"still to change: {short(line.strip())}")
