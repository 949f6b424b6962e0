"""Load an encoder, remove layers, keep its config true.

    model = load_pruned("bert-base-cased", kept_layers=[1, 2, 3, 4], num_labels=2,
                        problem_type="single_label_classification", seed=1)
    model.save_pretrained("smaller")   # plain transformers loads it

Layers are deleted, not skipped, and the config follows: what is saved is an ordinary checkpoint.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.expressible import POSITION_NAME, Twins, build_twins, check_expressible
from lp_sweep.trials.families import LayerList, embedding_path, find_layers, scalars
from lp_sweep.trials.load import (
    LoadedEncoder,
    ProblemType,
    initialise_head,
    load_encoder,
    trained_head,
)
from lp_sweep.trials.reduced import original_layers, removal_of, write_removal

# By length alone DeBERTa's pos_att_type would be cut with a network of two layers.
PER_LAYER_NAME = re.compile("layer|block|window")


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
    id2label: Mapping[int, str] | None = None,
    attn_implementation: str | None = None,
    from_here: bool = False,
) -> PreTrainedModel:
    """A sequence classifier in float32 on the CPU, in eval mode, of the layers asked for.

    `path`: a folder or a hub id. `kept_layers`: 1-based, see `keep_layers`; None keeps them all.
    `seed` fixes the head alone: whatever the depth, one seed gives one head. The global random
    state is left as it was. `from_here`: it is what a sweep starts from, see
    `count_from_here` and `trained_head`.
    Raises UnsupportedModelError, MissingInputError, or ValueError for a bad `kept_layers`.
    """
    load = load_original if from_here else load_encoder
    loaded = load(
        path,
        num_labels=num_labels,
        problem_type=problem_type,
        revision=revision,
        local_files_only=local_files_only,
        id2label=id2label,
        attn_implementation=attn_implementation,
    )
    return finish(loaded, kept_layers, seed)


def load_original(path: str | Path, **options: Any) -> LoadedEncoder:
    """What a sweep starts from: as `load_encoder` gives it, but counted from here, and with a head
    that is all to be drawn."""
    loaded = load_encoder(path, **options)
    count_from_here(loaded.model.config)
    return loaded._replace(fresh=loaded.fresh | trained_head(loaded.model))


def finish(loaded: LoadedEncoder, kept_layers: Sequence[int] | None, seed: int) -> PreTrainedModel:
    """The network itself, of the layers asked for (None: all), with the head that `seed` draws."""
    if kept_layers is not None:
        keep_layers(loaded.model, kept_layers)
    initialise_head(loaded.model, loaded.fresh, seed)
    return loaded.model


def keep_layers(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """Delete, in place, every layer that is not in `kept`, and make the config say so.

    `kept`: 1-based positions in the network as it is now, in any order. The config then carries
    `lp_sweep_kept_layers`, counted in the very first network even if this one was pruned before,
    and `lp_sweep_original_depth`. Either everything is done or, on an error, nothing.
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
    """Make it the config of the very first network, whose layers are 1..L, whatever it was pruned
    from. Raises UnsupportedModelError for one that lost feed-forwards."""
    if removal_of(config) is not None:
        raise UnsupportedModelError(
            f"{config.model_type}: this checkpoint lost feed-forwards in a sweep, and can't be the "
            "model of another. Name the model that it was made from."
        )
    for name in ("lp_sweep_kept_layers", "lp_sweep_original_depth"):
        if hasattr(config, name):
            delattr(config, name)


def keep_original(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """`keep_layers` by the indices of the very first network; nothing happens where none goes."""
    here = list(original_layers(model.config))
    if here != list(kept):
        keep_layers(model, [here.index(layer) + 1 for layer in kept])


def parameter_counts(model: PreTrainedModel) -> ParameterCounts:
    """Count the parameters of the whole network, of its layers and of its embedding block."""
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
    if removal is not None:  # what is gone with its layer is no longer a removed feed-forward
        staying = [layer for layer in removal.layers if layer in config.lp_sweep_kept_layers]
        write_removal(config, removal._replace(layers=tuple(staying)))


def _adopt_settings(model: PreTrainedModel, found: LayerList, twins: Twins) -> None:
    """Give modules the settings they would have if built from the pruned config.

    Inside layers that is their position (`layer_idx`); outside, what depends on the depth
    (`XLNetModel.n_layer`). Without it the network would act unlike its reloaded self.
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
