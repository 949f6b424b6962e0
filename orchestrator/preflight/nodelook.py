"""What one node of a cluster says of itself before a sweep: versions, GPUs, the store, models and
data of a hub, room. Runs on the node; asks no Ray and downloads nothing."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.hub import Refused
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import Sweep, TaskInput
from lp_sweep.orchestrator.preflight.gpumemory import GpuInfo, local_gpus
from lp_sweep.orchestrator.preflight.inputs import check_model, read_rows, stated_sizes
from lp_sweep.orchestrator.preflight.space import existing
from lp_sweep.orchestrator.preflight.storeprobe import Probe, unseen
from lp_sweep.storage.errors import PreflightError
from lp_sweep.trials.hubrows import is_cached
from lp_sweep.trials.offline import go_offline

State = Literal["cached", "to download", "missing"]


class OfHub(NamedTuple):
    """What a sweep needs of a hub, pinned to commits. `sizes`: bytes of each file of a model, where
    a manifest states them."""

    models: tuple[tuple[ModelInput, dict[str, int]], ...] = ()
    tasks: tuple[TaskInput, ...] = ()


class Asked(NamedTuple):
    """What a node is to look at. `probe` is None where no store is named."""

    probe: Probe | None
    of_hub: OfHub
    cache_dir: Path
    offline: bool


class Input(NamedTuple):
    """A model or data set on a node; `bytes` are those to download, 0 where nobody says."""

    name: str
    state: State
    bytes: int = 0
    why: str = ""  # it is missing


class Look(NamedTuple):
    """What a node saw. `store` says why it can't work on it, None where it can or none is named."""

    gpus: list[GpuInfo]
    store: str | None
    inputs: list[Input]
    free_bytes: int  # of the fuller disk of the two caches
    free_in: str


def node_versions() -> dict[str, str]:
    """As a record names them, and `ray`."""
    from lp_sweep.trials.provenance import versions  # loads torch

    return versions() | {"ray": metadata.version("ray")}


def look(asked: Asked) -> Look:
    from huggingface_hub import constants

    if asked.offline:
        go_offline()
    caches = [existing(Path(constants.HF_HUB_CACHE)), existing(asked.cache_dir)]
    fuller = min(caches, key=lambda folder: shutil.disk_usage(folder).free)
    return Look(
        gpus=local_gpus(),
        store=unseen(asked.probe) if asked.probe else None,
        inputs=[
            *(_model(model, sizes, asked.offline) for model, sizes in asked.of_hub.models),
            *(_data(task, asked.offline) for task in asked.of_hub.tasks),
        ],
        free_bytes=shutil.disk_usage(fuller).free,
        free_in=str(fuller),
    )


def of_hub(sweep: Sweep) -> OfHub:
    """Of a whole sweep; what is not pinned is left out, since no commit says what to look for."""
    models = [model for model in sweep.models if model.of_hub and model.pinned]
    return OfHub(
        tuple((model, stated_sizes(sweep, model)) for model in models),
        tuple(task for task in sweep.tasks.values() if task.source.dataset and task.pinned),
    )


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
