"""`cluster check`: whether every node of a running cluster can run a sweep, before it costs money.

Joins the cluster and waits for machines as a run does, but starts no trial. Problems are returned,
not raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.cluster.clusterfile import ClusterFile, await_workers, workers
from lp_sweep.orchestrator.engine.capacity import Capacity, PerTrial, file_on_head
from lp_sweep.orchestrator.engine.connection import connection, joined
from lp_sweep.orchestrator.engine.everynode import ask_each_node, on_each_node
from lp_sweep.orchestrator.inputs.checks import check_inputs
from lp_sweep.orchestrator.inputs.gpumemory import check_gpus
from lp_sweep.orchestrator.inputs.nodes import Finding, Node, look, node_findings, node_versions
from lp_sweep.orchestrator.inputs.resolve import Needed, Sweep
from lp_sweep.orchestrator.inputs.room import Probe, probed
from lp_sweep.orchestrator.plan.known import Known
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.storage.errors import PreflightError, StoreError

DRIVER = "driver"  # named in findings about the machine that asks
_ITS_LOG = "the launcher's log is /tmp/ray/session_latest/logs/monitor.out"


class Question(NamedTuple):
    """The requirements on a cluster. `location` of the store, None for none; `sweep`, None for
    machines and store alone."""

    location: str | None
    sweep: Sweep | None
    cache_dir: Path
    offline: bool


class Checked(NamedTuple):
    """The nodes in order of their names, and the problems."""

    nodes: list[Node]
    findings: list[Finding]
    store_seen: bool  # by the driver, so nodes were asked whether they see it as well
    shipped: int  # models and data sets that nodes get through the store

    @property
    def can_run(self) -> bool:
        return not any(finding.blocks for finding in self.findings)


def check_cluster(address: str, question: Question, tell: Callable[[str], None]) -> Checked:
    """Raises PreflightError if no cluster is running at the address."""
    with connection(address):
        import ray

        tell(joined(address))
        file = file_on_head()
        if file:
            await_workers(file, ray.nodes, tell)
        findings = [*missing_machines(file, ray.nodes())] if file else []
        findings += _own_inputs(question)
        with _store(question.location, findings) as probe:
            nodes = _ask(question, probe, ray.nodes())
        own = node_versions()
        findings += [found for node in nodes for found in node_findings(node, own)]
        findings += _slots(question, nodes, file, ray.nodes)
        if file and file.largest() and not workers(ray.nodes()):
            tell("note: no worker is up yet. The first trials start them: check again then")
    return Checked(nodes, findings, probe is not None, _shipped(question.sweep))


def _ask(
    question: Question, probe: Probe | None, of_ray: Sequence[Mapping[str, Any]]
) -> list[Node]:
    """Asks for versions first: a node with another lp-sweep may not understand the rest."""
    versions = ask_each_node(node_versions)
    looks = ask_each_node(look, question.sweep, probe, question.cache_dir, question.offline)
    before = time.time()
    clocks = on_each_node(time.time)  # quick, since the processes have started by now
    after = time.time()
    nodes = []
    for node in of_ray:
        id_ = node["NodeID"]
        if id_ in versions and id_ in looks:
            known = Node(
                name=f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})",
                gpus=int(node["Resources"].get("GPU", 0)),
                versions=versions[id_].value or {},
                look=looks[id_].value,
                error=versions[id_].error or looks[id_].error,
                clock_off=clock_off(before, clocks.get(id_, before), after),
            )
            nodes.append(known)
    return sorted(nodes, key=lambda node: node.name)


def clock_off(before: float, there: float, after: float) -> float:
    """The smallest error, in seconds, of a clock that showed `there` between our `before` and
    `after`."""
    return min(0.0, there - before) or max(0.0, there - after)


def missing_machines(file: ClusterFile, of_ray: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Machines that start without being asked for but have not joined, by address if known."""
    joined = workers(of_ray)
    if (late := file.promised - len(joined)) <= 0:
        return
    there = {node["NodeManagerAddress"] for node in joined}
    named = [str(ip) for ip in file.content["provider"].get("worker_ips") or ()]
    names = [ip for ip in named if ip not in there] or [f"{late} of {file.promised} machines"]
    for name in names:
        following = f"`ray status`; {_ITS_LOG}"
        yield Finding(name, "machine", "has not joined", "the cluster file promises it", following)


def _own_inputs(question: Question) -> list[Finding]:
    """Problems of models and data that the driver ships, and of those that can't be pinned."""
    sweep = question.sweep
    if sweep is None:
        return []
    models = [model for model in sweep.all_models if not model.of_hub or not model.pinned]
    tasks = [task for task in sweep.tasks.values() if not (task.source.dataset and task.pinned)]
    found = check_inputs(sweep, Needed(models, tasks), offline=question.offline)
    allowed, following = "a run takes it from here", "fix it, and check again"
    return [
        Finding(DRIVER, "sweep", problem.rstrip("."), allowed, following)
        for problem in found.problems
    ]


def _shipped(sweep: Sweep | None) -> int:
    if sweep is None:
        return 0
    models = sum(not model.of_hub for model in sweep.all_models)
    sources = [task.source for task in sweep.tasks.values()]
    return models + sum(bool(source.files) + bool(source.unlabelled) for source in sources)


@contextmanager
def _store(location: str | None, findings: list[Finding]) -> Iterator[Probe | None]:
    """A probe in the store. None without a store, or with one that fails: then adds a finding."""
    with ExitStack() as stack:
        probe = None
        try:
            probe = stack.enter_context(probed(location)) if location else None
        except StoreError as error:
            following = "name another with --store, or fix this one"
            allowed = "the driver has to read and write it"
            got = str(error).rstrip(".")
            findings.append(Finding(DRIVER, "store", got, allowed, following))
        yield probe


def _slots(
    question: Question,
    nodes: Sequence[Node],
    file: ClusterFile | None,
    of_ray: Callable[[], Sequence[Mapping[str, Any]]],
) -> Iterator[Finding]:
    """Findings if a trial fits nowhere: into the resources, or the memory of a GPU."""
    if question.sweep is None:
        return
    try:
        capacity = Capacity(PerTrial.of(question.sweep.spec), of_ray, file)
        if capacity.slots.gpus:
            gpus = [gpu for node in nodes if node.look for gpu in node.look.gpus]
            plan = make_plan(question.sweep, Known.nothing())
            check_gpus(question.sweep.spec, plan.inputs_needed().trials, gpus)
    except PreflightError as error:
        allowed = "a trial needs room"
        following = "change resources_per_trial or the machines"
        yield Finding("cluster", "slots", str(error).rstrip("."), allowed, following)
