"""Is a pruned network still what its config says? Asked before a layer is deleted.

A checkpoint is its config and its weights: plain `transformers` builds the class from the config
and fills it. Some classes treat a layer by its position (ModernBERT's first has no attention norm),
and then not every choice of layers can be written down. The answer comes from structure: build the
full and the pruned network from their configs without weights, and compare them layer by layer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.families import LayerList, find_layers, scalars
from lp_sweep.trials.reduced import take_out_as_configured

# A layer's own position: follows the layer, so it is no difference in structure.
POSITION_NAME = re.compile(r"(layer|block)_?(idx|id|index|num|number)")

Structure = dict[str, object]


class Part(NamedTuple):
    """A module of a layer: its class and its plain settings."""

    kind: type[nn.Module]
    settings: dict[str, Any]


class Twins(NamedTuple):
    """The class built from the config before and after, on the meta device: no weights."""

    full: PreTrainedModel
    pruned: PreTrainedModel


def build_twins(model: PreTrainedModel, pruned_config: PretrainedConfig) -> Twins:
    """Build the model's class from its own config and from `pruned_config`, each as if read back.

    Raises UnsupportedModelError if the class can't be built with the pruned config.
    """
    full = _without_weights(type(model), model.config)
    try:
        return Twins(full, _without_weights(type(model), pruned_config))
    except Exception as error:  # a class may check its config in any way, and raise anything
        raise UnsupportedModelError(
            f"{model.config.model_type}: {type(model).__name__} can't be built with the layers "
            f"asked for: {type(error).__name__}: {error}. Use another model."
        ) from error


def check_expressible(
    model: PreTrainedModel, found: LayerList, kept: Sequence[int], twins: Twins
) -> None:
    """Raise UnsupportedModelError if the pruned config doesn't describe the layers in `kept`.

    `kept`: 1-based positions in the network as it is now, ascending.
    """
    full = [_structure(layer) for layer in find_layers(twins.full).layers]
    pruned = [_structure(layer) for layer in find_layers(twins.pruned).layers]
    for position, layer in enumerate(kept, start=1):
        if full[layer - 1] != pruned[position - 1]:
            fitting = _fitting(full, pruned[position - 1], full[layer - 1])
            differing = _difference(full[layer - 1], pruned[position - 1])
            raise UnsupportedModelError(_misfit(model, kept, position, fitting, differing))
    _check_weights(model, found, kept, twins.pruned)


def _check_weights(
    model: PreTrainedModel, found: LayerList, kept: Sequence[int], pruned: PreTrainedModel
) -> None:
    """The live weights under their new names have the names and shapes of the pruned class."""
    expected: Structure = {name: tensor.shape for name, tensor in pruned.state_dict().items()}
    new_position = {layer - 1: position for position, layer in enumerate(kept)}
    actual: Structure = {}
    for name, tensor in model.state_dict().items():
        if name.startswith(found.prefix):
            index, rest = name.removeprefix(found.prefix).split(".", 1)
            if int(index) not in new_position:
                continue
            name = f"{found.prefix}{new_position[int(index)]}.{rest}"
        actual[name] = tensor.shape
    if actual != expected:
        names = _difference(actual, expected)
        raise UnsupportedModelError(
            f"{model.config.model_type}: after removing layers the config would describe another "
            f"network: {_some(names)} differ in presence or shape. "
            "Remove layers before changing anything else in the network."
        )


def _without_weights(
    model_class: type[PreTrainedModel], config: PretrainedConfig
) -> PreTrainedModel:
    """Build from what config.json will hold: reading it may derive fields from others."""
    with torch.device("meta"):
        model = model_class(type(config).from_dict(config.to_dict()))
        take_out_as_configured(model)
    return model


def _structure(layer: nn.Module) -> Structure:
    """A layer's modules with their settings, and its weights with their shapes."""
    modules: Structure = {}
    for name, module in layer.named_modules():
        settings = {k: v for k, v in scalars(module).items() if not POSITION_NAME.fullmatch(k)}
        modules[name] = Part(type(module), settings)
    return modules | {name: tensor.shape for name, tensor in layer.state_dict().items()}


def _fitting(full: Sequence[Structure], wanted: Structure, refused: Structure) -> list[int]:
    """The layers that could stand where `refused` can't: alike in all, else in modules and weights.

    A setting may come from the config's entry for a layer (attention types), and go with the layer.
    """
    exact = [i for i, layer in enumerate(full, start=1) if layer == wanted]
    if exact or _bare(refused) == _bare(wanted):
        return exact
    return [i for i, layer in enumerate(full, start=1) if _bare(layer) == _bare(wanted)]


def _bare(structure: Structure) -> Structure:
    """Without settings: each module's type, each weight's shape."""
    return {
        name: value.kind if isinstance(value, Part) else value for name, value in structure.items()
    }


def _difference(one: Structure, other: Structure) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _misfit(
    model: PreTrainedModel,
    kept: Sequence[int],
    position: int,
    fitting: Sequence[int],
    differing: Sequence[str],
) -> str:
    layers = ", ".join(map(str, fitting))
    advice = (
        f"{'Layer' if len(fitting) == 1 else 'One of layers'} {layers} must stay there: "
        "choose another strategy or another number of layers."
        if fitting
        else "No layer of this network fits there, since its layers depend on the depth: "
        "use another model."
    )
    return (
        f"{model.config.model_type}: the network of layers {', '.join(map(str, kept))} can't be "
        f"written as a plain {type(model).__name__}: at position {position} that class builds a "
        f"layer unlike layer {kept[position - 1]} ({_some(differing)} differ). {advice}"
    )


def _some(names: Sequence[str], at_most: int = 3) -> str:
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(repr(name) for name in names[:at_most]) + more
