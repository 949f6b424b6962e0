"""Checks whether each node of a cluster can run a sweep.

`look` runs on the node, without Ray, and downloads nothing. `node_findings` judges its answer on
the driver.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.checks import check_model, read_rows, stated_sizes
from lp_sweep.orchestrator.inputs.gpumemory import GpuInfo, gib, local_gpus
from lp_sweep.orchestrator.inputs.hub import Refused
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import Sweep, TaskInput
from lp_sweep.orchestrator.inputs.room import MARGIN, Probe, existing, unseen
from lp_sweep.storage.errors import PreflightError
from lp_sweep.trials.data.hub import is_cached
from lp_sweep.trials.model.modelfiles import go_offline

CLOCK_SECONDS = 5.0  # the most that a clock may be off; beyond it the times of records mislead
_SAME = ("python", "ray", "lp_sweep", "code")  # must be equal on the driver and its workers
_LOGS = "the logs of Ray on that machine are in /tmp/ray/session_latest/logs"

State = Literal["cached", "to download", "missing"]


class Input(NamedTuple):
    """A model or data set on a node. `bytes`: to download, 0 if unknown. `why` it is missing."""

    name: str
    state: State
    bytes: int = 0
    why: str = ""


class Look(NamedTuple):
    """A node's answer. `store`: why it can't use the store; None if it can."""

    gpus: list[GpuInfo]
    store: str | None
    inputs: list[Input]
    free_bytes: int  # on the fuller of the two disks with caches
    free_in: str


def node_versions() -> dict[str, str]:
    """The versions in a record, and Ray's."""
    from lp_sweep.trials.worker.provenance import versions  # loads torch

    return versions() | {"ray": metadata.version("ray")}


def look(sweep: Sweep | None, probe: Probe | None, cache_dir: Path, offline: bool) -> Look:
    """`probe`: of the store. None for either: it is not looked at."""
    from huggingface_hub import constants

    if offline:
        go_offline()
    caches = [existing(Path(constants.HF_HUB_CACHE)), existing(cache_dir)]
    fuller = min(caches, key=lambda folder: shutil.disk_usage(folder).free)
    return Look(
        gpus=local_gpus(),
        store=unseen(probe) if probe else None,
        inputs=[*_hub_inputs(sweep, offline)] if sweep else [],
        free_bytes=shutil.disk_usage(fuller).free,
        free_in=str(fuller),
    )


def _hub_inputs(sweep: Sweep, offline: bool) -> Iterator[Input]:
    """The hub's inputs of a whole sweep. Those that are not pinned to a commit can't be checked."""
    for model in sweep.all_models:
        if model.of_hub and model.pinned:
            yield _model(model, stated_sizes(sweep, model), offline)
    for task in sweep.tasks.values():
        if task.source.dataset and task.pinned:
            yield _data(task, offline)


def _model(model: ModelInput, sizes: dict[str, int], offline: bool) -> Input:
    name = f"model {model.name!r}"
    try:
        missing = check_model(model, sizes, offline)
    except PreflightError as error:
        return Input(name, "missing", why=str(error))
    return Input(name, "to download" if missing else "cached", missing)


def _data(task: TaskInput, offline: bool) -> Input:
    name, source = f"task {task.name!r}", task.source
    try:
        if offline or is_cached(source):
            problem = read_rows(task, offline=True).problem  # every row, as a trial will
            return Input(name, "missing" if problem else "cached", why=problem or "")
        hub.listing("dataset", str(source.dataset), str(source.revision))
    except Refused as error:
        return Input(name, "missing", why=f"it is not in the Hugging Face cache, and {error}")
    return Input(name, "to download")


# -- on the driver


class Finding(NamedTuple):
    """One problem of one node. `blocks`: the node can't run the sweep; else it is a warning."""

    node: str
    what: str
    got: str
    allowed: str
    next: str
    blocks: bool = True

    def line(self) -> str:
        kind = "problem" if self.blocks else "warning"
        return f"{kind}: {self.node}: {self.what}: {self.got}; {self.allowed}. Next: {self.next}."


class Node(NamedTuple):
    """Ray's view of a node (`name`, and the `gpus` it assigns) and the node's own answer. `error`:
    why there is no answer."""

    name: str
    gpus: int
    versions: Mapping[str, str]
    look: Look | None
    error: str | None = None
    clock_off: float = 0.0  # seconds ahead of the driver's, at least


def node_findings(node: Node, own: Mapping[str, str]) -> list[Finding]:
    """`own`: the driver's versions."""
    found = [*_versions(node, own)]
    if node.look is None:
        # another version of lp-sweep, which is reported already, can't answer
        return found if any(one.blocks for one in found) else [*found, _silent(node)]
    found += [*_gpus(node, node.look), *_store(node, node.look), *_inputs(node, node.look)]
    return [*found, *_room(node, node.look), *_clock(node)]


def _silent(node: Node) -> Finding:
    allowed = "every node has to run what this lp-sweep sends it"
    following = f"install this machine's lp-sweep there; {_LOGS}"
    return Finding(node.name, "answer", str(node.error).rstrip("."), allowed, following)


def _versions(node: Node, own: Mapping[str, str]) -> Iterator[Finding]:
    """Reports the first difference: another lp-sweep also has other code."""
    if not node.versions:
        return
    for name in _SAME:
        if (theirs := node.versions.get(name)) != own.get(name):
            following = "install the same on every machine (setup_commands of the cluster file)"
            allowed = f"the driver has {own.get(name)}"
            yield Finding(node.name, name, str(theirs), allowed, following)
            break
    there, here = _torch(node.versions), _torch(own)
    if there != here:
        following = "install one version: with another torch a seed gives other results"
        yield Finding(node.name, "torch", there, f"the driver has {here}", following, blocks=False)


def _torch(versions: Mapping[str, str]) -> str:
    """The version without its build (`+cpu`, `+cu130`), which differs by machine."""
    return versions.get("torch", "unknown").partition("+")[0]


def _gpus(node: Node, look: Look) -> Iterator[Finding]:
    seen = len(look.gpus)
    if seen < node.gpus:
        torch = f"torch {node.versions.get('torch')}"
        cuda = node.versions.get("cuda")
        got = f"{torch} sees {seen}" if cuda else f"{torch}, which has no CUDA, sees {seen}"
        following = "look at nvidia-smi there" if cuda else "install a torch with CUDA there"
        allowed = f"Ray was started with {node.gpus}"
        yield Finding(node.name, "GPUs", got, allowed, f"{following}, or lower its --num-gpus")
    elif seen > node.gpus:
        allowed = f"Ray was started with {node.gpus}, and the others stay idle"
        following = f"start its Ray with --num-gpus={seen}"
        yield Finding(node.name, "GPUs", f"torch sees {seen}", allowed, following, blocks=False)


def _store(node: Node, look: Look) -> Iterator[Finding]:
    if look.store:
        following = "mount it at the same path everywhere, or take a bucket: --store s3://bucket/x"
        allowed = "every node has to read and write the driver's"
        yield Finding(node.name, "store", look.store.rstrip("."), allowed, following)


def _inputs(node: Node, look: Look) -> Iterator[Finding]:
    for item in look.inputs:
        if item.state == "missing":
            allowed = "it has to be in that node's Hugging Face cache or at the hub"
            following = "`lp-sweep prefetch` there, or give that machine a network and HF_TOKEN"
            yield Finding(node.name, item.name, item.why.rstrip("."), allowed, following)


def _room(node: Node, look: Look) -> Iterator[Finding]:
    needed = sum(item.bytes for item in look.inputs) + MARGIN
    if look.free_bytes < needed:
        got = f"{gib(look.free_bytes)} free at {look.free_in}"
        allowed = f"about {gib(needed)} will be written"
        following = "free some, or name other folders (--cache-dir, HF_HOME)"
        yield Finding(node.name, "disk", got, allowed, following, blocks=False)


def _clock(node: Node) -> Iterator[Finding]:
    if abs(node.clock_off) > CLOCK_SECONDS:
        side = "ahead of" if node.clock_off > 0 else "behind"
        got = f"{abs(node.clock_off):.0f} s {side} the driver's"
        following = "let a time service (chrony, systemd-timesyncd) set it"
        allowed = f"{CLOCK_SECONDS:.0f} s at most"
        yield Finding(node.name, "clock", got, allowed, following, blocks=False)
