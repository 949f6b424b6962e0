"""Load an encoder, remove layers, keep its config true.

    model = load_pruned("bert-base-cased", kept_layers=[1, 2, 3, 4], num_labels=2,
                        problem_type="single_label_classification", seed=1)
    model.save_pretrained("smaller")   # plain transformers loads it

Layers are deleted, not skipped, and the config is updated: a saved network is an ordinary
checkpoint.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.kinds import ProblemType
from lp_sweep.trials.model.families import LayerList, embedding_path, find_layers, scalars
from lp_sweep.trials.model.load import (
    LoadedEncoder,
    initialise_head,
    load_encoder,
    trained_head,
)
from lp_sweep.trials.model.reduced import (
    original_layers,
    removal_of,
    take_out_as_configured,
    write_removal,
)

# Lists with one entry per layer. By length alone, DeBERTa's pos_att_type would be cut at depth 2.
PER_LAYER_NAME = re.compile("layer|block|window")
# A layer's own position: it follows the layer, so it is no difference in structure.
POSITION_NAME = re.compile(r"(layer|block)_?(idx|id|index|num|number)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers of parameters, each counted once."""

    total: int
    encoder: int  # inside the layer list
    embedding: int  # the embedding block: words, positions, types, their projection and norm


def load_pruned(
    path: str | Path,
    *,
    kept_layers: Sequence[int] | None,
    num_labels: int,
    problem_type: ProblemType,
    seed: int,
    revision: str | None = None,
    local_files_only: bool = False,
    from_here: bool = False,
    trained: bool = False,
) -> PreTrainedModel:
    """A classifier of the kept layers in float32 on the CPU, in eval mode.

    `path`: a folder or a hub id. `kept_layers`: 1-based, see `keep_layers`; None keeps all.
    `seed` fixes only the head, which is the same at every depth. The global random state is
    unchanged. `from_here`: load the start of a sweep, see `load_original`. `trained`: no weight may
    be drawn.
    Raises UnsupportedModelError, MissingInputError, or ValueError for a bad `kept_layers`.
    """
    load = load_original if from_here else load_encoder
    loaded = load(
        path,
        num_labels=num_labels,
        problem_type=problem_type,
        revision=revision,
        local_files_only=local_files_only,
    )
    if trained and loaded.fresh:
        raise MissingInputError(
            f"model {str(path)!r} has no classifier for {num_labels} classes: "
            f"{len(loaded.fresh)} weights are not in the checkpoint or have another shape, for "
            f"example {min(loaded.fresh)!r}."
        )
    return finish(loaded, kept_layers, seed)


def load_original(path: str | Path, **options: Any) -> LoadedEncoder:
    """The start of a sweep: its layers are 1..L, and its whole head is to be drawn."""
    loaded = load_encoder(path, **options)
    count_from_here(loaded.model.config)
    return loaded._replace(fresh=loaded.fresh | trained_head(loaded.model))


def finish(loaded: LoadedEncoder, kept_layers: Sequence[int] | None, seed: int) -> PreTrainedModel:
    """The network with the kept layers (None: all) and the head that `seed` draws."""
    if kept_layers is not None:
        keep_layers(loaded.model, kept_layers)
    initialise_head(loaded.model, loaded.fresh, seed)
    return loaded.model


def keep_layers(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """Delete every layer that is not in `kept`, in place, and record it in the config.

    `kept`: 1-based positions in the network as it is now, in any order. The config gets
    `lp_sweep_kept_layers`, numbers in the very first network even if this one was pruned before,
    and `lp_sweep_original_depth`. On an error nothing is changed.
    Raises ValueError for a bad `kept`, UnsupportedModelError if the class can't express the result.
    """
    found = find_layers(model)
    depth = len(found.layers)
    kept = _normalised(kept, depth)
    pruned_config = copy.deepcopy(model.config)
    _prune_config(pruned_config, found.depth_field, kept)
    twins = build_twins(model, pruned_config)
    check_expressible(model, found, kept, twins)
    for index in sorted(set(range(depth)) - {layer - 1 for layer in kept}, reverse=True):
        del found.layers[index]
    _prune_config(model.config, found.depth_field, kept)  # in place: modules share this object
    _adopt_settings(model, found, twins)


def count_from_here(config: PretrainedConfig) -> None:
    """Make it the config of a very first network, whose layers are 1..L.

    Raises UnsupportedModelError for a network without some of its feed-forwards.
    """
    if removal_of(config) is not None:
        raise UnsupportedModelError(
            f"{config.model_type}: this checkpoint lost feed-forwards in a sweep, so no other "
            "sweep can start from it. Name its original model."
        )
    for name in ("lp_sweep_kept_layers", "lp_sweep_original_depth"):
        if hasattr(config, name):
            delattr(config, name)


def keep_original(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """`keep_layers` by the numbers of the very first network."""
    here = original_layers(model.config)
    if here != list(kept):
        keep_layers(model, [here.index(layer) + 1 for layer in kept])


def parameter_counts(model: PreTrainedModel) -> ParameterCounts:
    return ParameterCounts(
        total=_count(model),
        encoder=_count(find_layers(model).layers),
        embedding=_count(model.get_submodule(embedding_path(model))),
    )


def _normalised(kept: Sequence[int], depth: int) -> list[int]:
    if not kept:
        raise ValueError(f"kept layers: none given; at least one of 1..{depth} must stay.")
    if len(set(kept)) != len(kept):
        raise ValueError(f"kept layers: {list(kept)} names a layer twice; name each once.")
    if min(kept) < 1 or max(kept) > depth:
        raise ValueError(f"kept layers: {list(kept)} is out of range; layers are 1..{depth}.")
    return sorted(kept)


def _prune_config(config: PretrainedConfig, depth_field: str, kept: Sequence[int]) -> None:
    depth = getattr(config, depth_field)
    if getattr(config, "is_heterogeneous", False):
        raise UnsupportedModelError(
            f"{config.model_type}: its config overrides single layers (per_layer_config), which "
            "can't be pruned. Use a model whose layers are described in common."
        )
    origin, removal = original_layers(config), removal_of(config)
    for name, value in list(vars(config).items()):
        per_layer = isinstance(value, list | tuple) and len(value) == depth
        if per_layer and PER_LAYER_NAME.search(name):
            setattr(config, name, type(value)(value[layer - 1] for layer in kept))
    config.lp_sweep_kept_layers = [origin[layer - 1] for layer in kept]
    config.lp_sweep_original_depth = getattr(config, "lp_sweep_original_depth", None) or depth
    setattr(config, depth_field, len(kept))
    if removal is not None:  # a feed-forward that goes with its layer is no longer listed
        staying = [layer for layer in removal.layers if layer in config.lp_sweep_kept_layers]
        write_removal(config, removal._replace(layers=tuple(staying)))


def _adopt_settings(model: PreTrainedModel, found: LayerList, twins: Twins) -> None:
    """Give modules the settings they would have if built from the pruned config.

    Inside layers that is their position (`layer_idx`), outside what depends on the depth
    (`XLNetModel.n_layer`). Otherwise the network would differ from itself saved and reloaded.
    """
    full = dict(twins.full.named_modules())
    live = dict(model.named_modules())
    for path, module in twins.pruned.named_modules():
        inside = path.startswith(found.prefix)
        before = {} if inside else scalars(full[path])
        for name, value in scalars(module).items():
            if POSITION_NAME.fullmatch(name) if inside else before.get(name, value) != value:
                setattr(live[path], name, value)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


Structure = dict[str, object]


class Part(NamedTuple):
    """A module of a layer."""

    kind: type[nn.Module]
    settings: dict[str, Any]


class Twins(NamedTuple):
    """The class built from the config before and after, on the meta device: no weights."""

    full: PreTrainedModel
    pruned: PreTrainedModel


def build_twins(model: PreTrainedModel, pruned_config: PretrainedConfig) -> Twins:
    """Raises UnsupportedModelError if the class can't be built with the pruned config."""
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
    """Raise unless the renumbered weights have the names and shapes of the pruned class."""
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
    """Built from the content of config.json: reading it may derive fields from others."""
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
    """The layers that fit where `refused` does not: equal in all, else in modules and weights.

    A setting may come from the config's entry for a layer (attention types) and move with it.
    """
    exact = [i for i, layer in enumerate(full, start=1) if layer == wanted]
    if exact or _bare(refused) == _bare(wanted):
        return exact
    return [i for i, layer in enumerate(full, start=1) if _bare(layer) == _bare(wanted)]


def _bare(structure: Structure) -> Structure:
    """Without settings: the type of each module and the shape of each weight."""
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
