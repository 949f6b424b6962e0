"""`node_config`: what Ray's launcher hands to the cloud as it is, held against the cloud's words.

For AWS these are botocore's description of EC2's RunInstances, to the last key and value. Google's
description comes with nothing that lp-sweep needs: of GCP the first level is checked, and
`scheduling`, against lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from lp_sweep.orchestrator.cluster.mistake import Mistake, unknown_keys
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.printable import shown

_TYPES: dict[str, Any] = {
    "list": list,
    "structure": dict,
    "string": str,
    "boolean": bool,
    "integer": int,
}
_OF_RAY = {"SubnetIds"}  # Ray takes one of them for each machine

# https://cloud.google.com/compute/docs/reference/rest/v1/instances#Instance: what can be set
_INSTANCE = """
    advancedMachineFeatures canIpForward confidentialInstanceConfig deletionProtection description
    disks displayDevice guestAccelerators hostname instanceEncryptionKey keyRevocationActionType
    labels machineType metadata minCpuPlatform networkInterfaces networkPerformanceConfig params
    privateIpv6GoogleAccess reservationAffinity resourcePolicies scheduling serviceAccounts
    shieldedInstanceConfig sourceInstanceTemplate sourceMachineImage tags workloadIdentityConfig
"""
_SCHEDULING = """
    automaticRestart availabilityDomain hostErrorTimeoutSeconds instanceTerminationAction
    localSsdRecoveryTimeout locationHint maxRunDuration minNodeCpus nodeAffinities
    onHostMaintenance onInstanceStopAction preemptible provisioningModel terminationTime
"""


def node_config_mistakes(provider: str, where: str, config: Mapping[str, Any]) -> Iterator[Mistake]:
    """Raises PreflightError where AWS's description is not installed."""
    if provider == "aws":
        asked = {key: value for key, value in config.items() if key not in _OF_RAY}
        yield from _of_shape(where, asked, _run_instances())
        if "InstanceType" not in config:
            yield Mistake(where, "InstanceType is missing.")
    if provider == "gcp":
        yield from unknown_keys(where, config, _INSTANCE.split())
        scheduling = config.get("scheduling")
        if isinstance(scheduling, dict):
            yield from unknown_keys(f"{where}.scheduling", scheduling, _SCHEDULING.split())
        if "machineType" not in config:
            yield Mistake(where, "machineType is missing.")


@cache  # botocore reads 10 MB of JSON for it
def _run_instances() -> Any:
    try:
        import botocore.session
    except ImportError:
        raise PreflightError(
            "an AWS cluster needs boto3, to be checked and to be started: "
            "pip install 'lp-sweep[cluster]'."
        ) from None
    session = botocore.session.get_session()
    return session.get_service_model("ec2").operation_model("RunInstances").input_shape


def _of_shape(where: str, value: Any, shape: Any) -> Iterator[Mistake]:
    """botocore's shapes: a tree of structures and lists with strings, integers and booleans."""
    wanted = _TYPES.get(shape.type_name, object)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        yield Mistake(where, f"{shown(value)} is no {shape.type_name}.")
    elif shape.type_name == "structure":
        yield from unknown_keys(where, value, shape.members)
        for key in value:
            if key in shape.members:
                yield from _of_shape(f"{where}.{key}", value[key], shape.members[key])
    elif shape.type_name == "list":
        for index, entry in enumerate(value):
            yield from _of_shape(f"{where}[{index}]", entry, shape.member)
    elif shape.type_name == "string" and shape.enum and value not in shape.enum:
        yield Mistake(where, f"unknown value {shown(value)}.", value, tuple(shape.enum))
