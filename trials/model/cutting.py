"""Write a checkpoint with fewer layers from its files; every other weight stays, heads included.

Loading a network reads only one head, and would lose a pooler or another head. So the tensors of
the files are copied, and the kept layers are renumbered.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.model.families import LayerList, find_layers, refuse_family
from lp_sweep.trials.model.load import NOT_SAFETENSORS, loading_errors, quiet
from lp_sweep.trials.model.modelfiles import INDEX, WEIGHTS, identity_files
from lp_sweep.trials.model.plainload import load
from lp_sweep.trials.model.prune import keep_layers
from lp_sweep.trials.model.reduced import removal_of


class Whole(NamedTuple):
    """A checkpoint as it is."""

    model: PreTrainedModel  # without a head
    missing: dict[str, list[str]]  # class -> its weights that the checkpoint does not have


def read_whole(folder: Path) -> Whole:
    """Raises MissingInputError or UnsupportedModelError, as `load_encoder` does."""
    with quiet(), loading_errors(folder, NOT_SAFETENSORS):
        model, absent = load(folder, "AutoModel")
        missing = {"AutoModel": absent}
        for kind in own_classes(model):
            missing[kind] = load(folder, kind)[1]
    refuse_family(model.config)
    if removal_of(model.config) is not None:
        raise UnsupportedModelError(
            f"{folder}: it lost feed-forwards in a sweep, and plain transformers can't load it. "
            "Name its original model."
        )
    return Whole(model, missing)


def own_classes(model: PreTrainedModel) -> list[str]:
    """The classes of transformers that the checkpoint's config names. It may name anything."""
    import transformers

    names = model.config.architectures or ()
    found = {name: getattr(transformers, str(name), None) for name in names}
    return [
        name
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel)
    ]


def cut(folder: Path, model: PreTrainedModel, kept: Sequence[int], target: Path) -> None:
    """Write the checkpoint in `folder` with only the layers `kept` into `target`, which exists, and
    prune `model`, its network, in place.

    `kept`: 1-based positions in the network as it is. Raises ValueError for a bad `kept`,
    UnsupportedModelError if the class can't express the result or names its layers otherwise.
    """
    found = find_layers(model)
    depth, prefix = len(found.layers), model.base_model_prefix
    keep_layers(model, kept)
    tensors = _renamed(_tensors(folder), found, prefix, sorted(kept), depth)
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    model.config.save_pretrained(target)
    for path in identity_files(folder):
        if path.name != "config.json" and path.suffix != ".safetensors":
            shutil.copyfile(path, target / path.name)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """From model.safetensors, else from the files in the index, as transformers does."""
    if (folder / WEIGHTS).is_file():
        return dict(load_file(folder / WEIGHTS))
    try:
        index: Any = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        names = sorted(set(index["weight_map"].values()))
    except (OSError, ValueError, KeyError) as error:
        raise MissingInputError(f"model {str(folder)!r}: {NOT_SAFETENSORS}.") from error
    return {name: tensor for file in names for name, tensor in load_file(folder / file).items()}


def _renamed(
    tensors: dict[str, torch.Tensor],
    found: LayerList,
    prefix: str,
    kept: Sequence[int],
    depth: int,
) -> dict[str, torch.Tensor]:
    """The tensors with new layer numbers. A head's own list of layers has another name."""
    pattern = re.compile(rf"^((?:{re.escape(prefix)}\.)?{re.escape(found.path)}\.)(\d+)\.")
    place = {layer - 1: position for position, layer in enumerate(kept)}
    layers: set[int] = set()
    renamed = {}
    for name, tensor in tensors.items():
        match = pattern.match(name)
        if match is None:
            renamed[name] = tensor
            continue
        layers.add(int(match[2]))
        if int(match[2]) in place:
            renamed[f"{match[1]}{place[int(match[2])]}.{name[match.end() :]}"] = tensor
    if layers != set(range(depth)):
        raise UnsupportedModelError(
            f"the checkpoint names weights of layers {sorted(layers)} as {found.path}.<layer>, and "
            f"the network has {depth} layers. Save it once with save_pretrained, and name that "
            "folder."
        )
    return renamed
