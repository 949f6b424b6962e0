"""A RayCluster, as KubeRay takes it: checked as far as that goes without Kubernetes.

Ray's autoscaler reads sizes from it, and its reader is run here. The rest is held against the first
levels of KubeRay's CRD (ray.io/v1); what is within a pod only Kubernetes checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeGuard

from lp_sweep.orchestrator.cluster.mistake import Mistake, unknown_keys
from lp_sweep.storage.printable import short, shown

# KubeRay v1.5's ray-operator/apis/ray/v1/raycluster_types.go
_SPEC = """
    authOptions autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions headGroupSpec
    headServiceAnnotations managedBy rayVersion suspend upgradeStrategy workerGroupSpecs
"""
_AUTOSCALER = """
    env envFrom idleTimeoutSeconds image imagePullPolicy resources securityContext upscalingMode
    version volumeMounts
"""
_HEAD = "enableIngress headService labels rayStartParams resources serviceType template"
_WORKERS = """
    groupName idleTimeoutSeconds labels maxReplicas minReplicas numOfHosts priority rayStartParams
    replicas resources scaleStrategy suspend template
"""


def is_ray_cluster(content: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(content, dict) and content.get("kind") == "RayCluster"


def ray_cluster_mistakes(content: dict[str, Any]) -> Iterator[Mistake]:
    if content.get("apiVersion") != "ray.io/v1":
        yield Mistake("apiVersion", f"{shown(content.get('apiVersion'))} is not ray.io/v1.")
    try:
        yield from _of_spec(content["spec"])
        _as_the_autoscaler_reads_it(content)
    except Exception as error:  # of any type: a missing key is a KeyError, of no message
        said = short(f"{type(error).__name__}: {error}")
        yield Mistake("", f"Ray's autoscaler can't read it: {said}")


def _of_spec(spec: dict[str, Any]) -> Iterator[Mistake]:
    yield from unknown_keys("spec", spec, _SPEC.split())
    options = spec.get("autoscalerOptions", {})
    yield from unknown_keys("spec.autoscalerOptions", options, _AUTOSCALER.split())
    yield from unknown_keys("spec.headGroupSpec", spec["headGroupSpec"], _HEAD.split())
    yield from _of_start("spec.headGroupSpec", spec["headGroupSpec"])
    for index, group in enumerate(spec["workerGroupSpecs"]):
        where = f"spec.workerGroupSpecs[{index}]"
        yield from unknown_keys(where, group, _WORKERS.split())
        yield from _of_start(where, group)


def _of_start(where: str, group: dict[str, Any]) -> Iterator[Mistake]:
    for name, value in group.get("rayStartParams", {}).items():
        if not isinstance(value, str):
            what = f"{shown(value)} is no string: write {shown(str(value))}."
            yield Mistake(f"{where}.rayStartParams.{name}", short(what))


def _as_the_autoscaler_reads_it(content: dict[str, Any]) -> None:
    from ray.autoscaler._private.kuberay import autoscaling_config

    metadata = {"namespace": "default", **content["metadata"]}
    autoscaling_config._derive_autoscaling_config_from_ray_cr({**content, "metadata": metadata})
