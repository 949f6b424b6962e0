"""Whether a network fits into a GPU: a lower bound on memory, which refuses only what can't work.

`local_gpus` runs on each node and lists its devices.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import Training
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.specs import MAX_HALVINGS, Recipe

_STATE = 16  # bytes a parameter: weight, gradient and two Adam moments, each in fp32
_WEIGHT = 4  # the weight alone
# Values that a layer keeps for the backward pass, in hidden widths per token: input, queries, keys,
# values, context, two norms with their inputs (9) and the feed-forward before and after its
# activation (8). The lower bound takes half: texts are shorter than the longest allowed.
_KEPT, _KEPT_AT_LEAST = 17, 8
_BYTES = {"fp32": 4, "bf16": 2, "auto": 2}
_GIB = 2**30
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA, AMD, WSL
_ASK = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
devices = map(torch.cuda.get_device_properties, range(count))
print(json.dumps([(str(device.name), int(device.total_memory)) for device in devices]))
"""


def _few_words(recipe: Recipe) -> bool:
    """Whether most word embeddings have no gradient and no moments: they are frozen, or a fast
    trial leaves them out (trials/fast/forward.py)."""
    return recipe.freeze_embeddings or (recipe.compute != "reference" and recipe.weight_decay == 0)


class GpuInfo(NamedTuple):
    """One device of one node."""

    node: str
    name: str
    total_bytes: int


def memory_needed(
    model: ModelInput, recipe: Recipe, *, layers: int | None = None, whole_batch: bool = False
) -> int | None:
    """The fewest bytes that fine-tuning needs, with a micro-batch of an eighth of the batch; with
    `whole_batch` about the bytes of the whole batch at full length. None if the model's size is
    unknown. layers: how many are kept, default all."""
    if model.parameters is None:
        return None
    layers = model.depth if layers is None else layers
    of_layers = layers * (model.layer_parameters or 0)
    rest = max(0, model.parameters - model.depth * (model.layer_parameters or 0))
    state = _STATE * of_layers + (_WEIGHT if _few_words(recipe) else _STATE) * rest
    examples = recipe.batch_size if whole_batch else max(1, recipe.batch_size >> MAX_HALVINGS)
    kept = _KEPT if whole_batch else _KEPT_AT_LEAST
    values = examples * recipe.max_length * layers * (model.hidden or 0) * kept
    return state + values * _BYTES[recipe.precision]


def check_gpus(spec: SweepSpec, trials: Sequence[Training], gpus: Sequence[GpuInfo]) -> list[str]:
    """Notes for the user; none without GPUs or for models of unknown size. Raises PreflightError
    when a trial fits into none of the GPUs."""
    share = min(spec.resources_per_trial.gpu or 1 / spec.trials_per_gpu, 1.0)
    largest = _largest(trials)
    if not gpus or not largest:
        return []
    problems, notes = [], []
    most = max(gpu.total_bytes for gpu in gpus)
    for name, (least, whole) in largest.items():
        needs = f"model {name!r} needs at least {gib(least)} to train"
        small = [gpu for gpu in gpus if gpu.total_bytes * share < least]
        if least > most:
            problems.append(
                f"{needs}, and the largest GPU has {gib(most)} ({_names(gpus)}). Take a smaller "
                "model, drop more of its layers (k:), or lower recipe.max_length."
            )
        elif small:
            where = f"a share of {share:g} of these" if share < 1 else "these"
            notes.append(f"{needs}: too much for {where}: {_names(small)}")
        elif whole > min(gpu.total_bytes for gpu in gpus) * share:
            notes.append(
                f"model {name!r}: a whole batch may need {gib(whole)}, more than some GPUs have "
                f"for a trial: the micro-batch is then halved, at most {MAX_HALVINGS} times, and "
                "the effective batch stays the same"
            )
    if problems:
        raise PreflightError("\n".join(problems))
    return notes


def _largest(trials: Sequence[Training]) -> dict[str, tuple[int, int]]:
    """Model -> bytes of its largest missing trial: the fewest, and those of a whole batch."""
    largest: dict[str, tuple[int, int]] = {}
    for model, _, recipe, layers, _ in trials:
        least = memory_needed(model, recipe, layers=layers)
        whole = memory_needed(model, recipe, layers=layers, whole_batch=True)
        if least is not None and whole is not None:
            before = largest.get(model.name, (0, 0))
            largest[model.name] = max(before, (least, whole))
    return largest


def local_gpus() -> list[GpuInfo]:
    """The CUDA devices of this machine; [] without any."""
    return ask_torch() if has_devices() else []  # without the seconds that torch takes to find none


def has_devices() -> bool:
    """Whether this machine may have a GPU."""
    return any(found for pattern in _DEVICE_FILES for found in Path("/dev").glob(pattern))


def gpu_notes(spec: SweepSpec) -> list[str]:
    """A note where trials ask for a GPU that this machine lacks."""
    asked = spec.resources_per_trial.gpu
    if not asked or has_devices():
        return []
    return [
        f"resources_per_trial asks for {asked:g} GPU a trial, and this machine has none: a run "
        "here does not start. Run the sweep where there is one, or remove `gpu:`."
    ]


def ask_torch() -> list[GpuInfo]:
    """Asks in a new process: a CUDA context here would take memory from trials."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK],
            env=unhidden(),
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        devices = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return []  # without sizes nothing is refused
    return [GpuInfo(socket.gethostname(), str(name), int(total)) for name, total in devices]


def unhidden() -> dict[str, str]:
    """The environment for a process that sees this machine's devices: Ray hides them from tasks
    without a GPU by an empty CUDA_VISIBLE_DEVICES."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    return {k: v for k, v in os.environ.items() if not (hidden and k == "CUDA_VISIBLE_DEVICES")}


def _names(gpus: Sequence[GpuInfo]) -> str:
    told = dict.fromkeys(f"{gpu.name} with {gib(gpu.total_bytes)} on {gpu.node}" for gpu in gpus)
    shown = list(told)[:5]
    return ", ".join([*shown, *(["..."] if len(told) > len(shown) else [])])


def gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
