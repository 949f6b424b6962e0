"""Load an encoder, remove layers, keep its config true.

    model = load_pruned("bert-base-cased", kept_layers=[1, 2, 3, 4], num_labels=2,
                        problem_type="single_label_classification", seed=1)
    model.save_pretrained("smaller")   # plain transformers loads it

Layers are deleted, not skipped, and the config is updated: a saved network is an ordinary
checkpoint. `cut` writes one from the files of another, every head included; `pruned` makes one from
a network in memory.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.storage.printable import listed
from lp_sweep.trials.kinds import ProblemType
from lp_sweep.trials.model.families import (
    LayerList,
    embedding_path,
    find_layers,
    original_layers,
    scalars,
)
from lp_sweep.trials.model.feedforward import removal_of, take_out, write_removal
from lp_sweep.trials.model.load import (
    NOT_SAFETENSORS,
    LoadedEncoder,
    initialise_head,
    load_encoder,
)
from lp_sweep.trials.model.modelfiles import INDEX, WEIGHTS, family_problem, identity_files

# Lists with one entry per layer. By length alone, DeBERTa's pos_att_type would be cut at depth 2.
_PER_LAYER_NAME = re.compile("layer|block|window")
# A layer's own position: it follows the layer, so it is no difference in structure.
_POSITION_NAME = re.compile(r"(layer|block)_?(idx|id|index|num|number)")
M = TypeVar("M", bound=nn.Module)
_HEADS = ("ForSequenceClassification", "ForTokenClassification")


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
    """The start of a sweep: its layers are 1..L, and its whole head is to be drawn, since a sweep
    draws its heads from its seeds.

    Raises UnsupportedModelError for a network without some of its feed-forwards.
    """
    loaded = load_encoder(path, **options)
    config = loaded.model.config
    if removal_of(config) is not None:
        raise UnsupportedModelError(
            f"{config.model_type}: this checkpoint lost feed-forwards in a sweep, so no other "
            "sweep can start from it. Name its original model."
        )
    for name in ("lp_sweep_kept_layers", "lp_sweep_original_depth"):
        if hasattr(config, name):
            delattr(config, name)
    return loaded._replace(fresh=loaded.fresh | _trained_head(loaded.model))


def _trained_head(model: PreTrainedModel) -> frozenset[str]:
    """The parameters outside the encoder, if the checkpoint was a classifier."""
    if not any(kind.endswith(_HEADS) for kind in model.config.architectures or ()):
        return frozenset()
    encoder = f"{model.base_model_prefix}."
    return frozenset(n for n, _ in model.named_parameters() if not n.startswith(encoder))


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
    full = _without_weights(type(model), model.config)
    try:
        pruned = _without_weights(type(model), pruned_config)
    except Exception as error:  # a class may check its config in any way, and raise anything
        raise UnsupportedModelError(
            f"{model.config.model_type}: {type(model).__name__} can't be built with the layers "
            f"asked for: {type(error).__name__}: {error}. Use another model."
        ) from error
    _check_layers(model, kept, find_layers(full).layers, find_layers(pruned).layers)
    _check_weights(model, found, kept, pruned)
    for index in sorted(set(range(depth)) - {layer - 1 for layer in kept}, reverse=True):
        del found.layers[index]
    _prune_config(model.config, found.depth_field, kept)  # in place: modules share this object
    _adopt_settings(model, found, full, pruned)


def pruned(model: M, kept: Sequence[int]) -> M:
    """A copy of a module with only the layers `kept` of the network that it is or has inside, such
    as a SentenceTransformer's. `model` is unchanged and shares no weight with the copy.

    Raises as `keep_layers`, and UnsupportedModelError for a module without one such network.
    """
    network = network_of(model)
    if problem := family_problem(network.config.to_dict()):
        raise UnsupportedModelError(problem)
    layers = find_layers(network).layers
    staying = _normalised(kept, len(layers))
    # an empty module is the "copy" of a layer that goes, so that its weights are never copied
    gone = {id(layer): nn.Module() for n, layer in enumerate(layers, 1) if n not in staying}
    made = copy.deepcopy(model, dict(gone))
    keep_layers(network_of(made), staying)
    return made


def network_of(model: nn.Module) -> PreTrainedModel:
    """The network of transformers that a module is or has inside."""
    found: dict[str, PreTrainedModel] = {}
    for path, module in model.named_modules():  # parents come before their children
        inside = any(not outer or path.startswith(f"{outer}.") for outer in found)
        if isinstance(module, PreTrainedModel) and not inside:
            found[path] = module
    if len(found) != 1:
        what = listed([*found]) if found else "none"
        raise UnsupportedModelError(
            f"{type(model).__name__}: one network of transformers is needed inside, and there is "
            f"{what}. Name a model of transformers or a SentenceTransformer."
        )
    return next(iter(found.values()))


def keep_original(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """`keep_layers` by the numbers of the very first network."""
    here = original_layers(model.config)
    if here != list(kept):
        keep_layers(model, [here.index(layer) + 1 for layer in kept])


def cut(folder: Path, model: PreTrainedModel, kept: Sequence[int], target: Path) -> None:
    """Write the checkpoint in `folder` with only the layers `kept` into `target`, which exists, and
    prune `model`, its network, in place.

    A network has one head, and would lose a pooler or another head of the files. So their tensors
    are copied, and the kept layers are renumbered. Raises as `keep_layers`, also if the files name
    their layers otherwise.
    """
    found = find_layers(model)
    depth, name = len(found.layers), _layer_name(found, model.base_model_prefix)
    keep_layers(model, kept)
    tensors = _tensors(folder)
    layers = {int(match[2]) for match in map(name.match, tensors) if match}
    if layers != set(range(depth)):
        raise UnsupportedModelError(
            f"the checkpoint names weights of layers {sorted(layers)} as {found.path}.<layer>, and "
            f"the network has {depth} layers. Save it once with save_pretrained, and name that "
            "folder."
        )
    renumbered = _renumbered(tensors, name, sorted(kept))
    save_file(renumbered, target / WEIGHTS, metadata={"format": "pt"})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterCounts:
    """Numbers of parameters, each counted once."""

    total: int
    encoder: int  # inside the layer list
    embedding: int  # the embedding block: words, positions, types, their projection and norm


def parameter_counts(model: PreTrainedModel) -> ParameterCounts:
    parts = (model, find_layers(model).layers, model.get_submodule(embedding_path(model)))
    total, encoder, embedding = (sum(p.numel() for p in part.parameters()) for part in parts)
    return ParameterCounts(total=total, encoder=encoder, embedding=embedding)


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
        if per_layer and _PER_LAYER_NAME.search(name):
            setattr(config, name, type(value)(value[layer - 1] for layer in kept))
    config.lp_sweep_kept_layers = [origin[layer - 1] for layer in kept]
    config.lp_sweep_original_depth = getattr(config, "lp_sweep_original_depth", None) or depth
    setattr(config, depth_field, len(kept))
    if removal is not None:  # a feed-forward that goes with its layer is no longer listed
        staying = [layer for layer in removal.layers if layer in config.lp_sweep_kept_layers]
        write_removal(config, removal._replace(layers=tuple(staying)))


def _without_weights(kind: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """The class on the meta device, built from the content of config.json: reading it may derive
    fields from others."""
    with torch.device("meta"):
        model = kind(type(config).from_dict(config.to_dict()))
        take_out(model, removal_of(model.config))
    return model


def _adopt_settings(
    model: PreTrainedModel, found: LayerList, full: PreTrainedModel, pruned: PreTrainedModel
) -> None:
    """Give modules the settings they would have if built from the pruned config.

    Inside layers that is their position (`layer_idx`), outside what depends on the depth
    (`XLNetModel.n_layer`). Otherwise the network would differ from itself saved and reloaded.
    """
    deep, live = dict(full.named_modules()), dict(model.named_modules())
    for path, module in pruned.named_modules():
        inside = path.startswith(f"{found.path}.")
        before = {} if inside else scalars(deep[path])
        for name, value in scalars(module).items():
            if _POSITION_NAME.fullmatch(name) if inside else before.get(name, value) != value:
                setattr(live[path], name, value)


Structure = dict[str, object]
T = TypeVar("T")


def _check_layers(
    model: PreTrainedModel, kept: Sequence[int], full: nn.ModuleList, pruned: nn.ModuleList
) -> None:
    """Raise UnsupportedModelError if the pruned class builds other layers than those in `kept`.

    `kept`: 1-based positions in the network as it is now, ascending.
    """
    for position, layer in enumerate(kept, start=1):
        given, wanted = full[layer - 1], pruned[position - 1]
        differing = _difference(_structure(given), _structure(wanted))
        if not differing:
            continue
        # A setting may come from the config's entry for a layer (attention types) and move with it:
        # if none is equal in all, layers fit that are equal in modules and weights.
        fitting = _alike(full, wanted, settings=True)
        if not fitting and layer not in (bare := _alike(full, wanted, settings=False)):
            fitting = bare
        advice = (
            f"{'Layer' if len(fitting) == 1 else 'One of layers'} {', '.join(map(str, fitting))} "
            "must stay there: choose another strategy or another number of layers."
            if fitting
            else "No layer of this network fits there, since its layers depend on the depth: "
            "use another model."
        )
        raise UnsupportedModelError(
            f"{model.config.model_type}: the network of layers {', '.join(map(str, kept))} can't "
            f"be written as a plain {type(model).__name__}: at position {position} that class "
            f"builds a layer unlike layer {layer} ({_some(differing)} differ). {advice}"
        )


def _alike(layers: nn.ModuleList, wanted: nn.Module, *, settings: bool) -> list[int]:
    """The layers, from 1, of the structure of `wanted`."""
    structure = _structure(wanted, settings=settings)
    return [
        number
        for number, layer in enumerate(layers, start=1)
        if _structure(layer, settings=settings) == structure
    ]


def _structure(layer: nn.Module, *, settings: bool = True) -> Structure:
    """A layer's modules by type and with their settings, and its weights by shape."""
    modules: Structure = {}
    for name, module in layer.named_modules():
        own = {k: v for k, v in scalars(module).items() if not _POSITION_NAME.fullmatch(k)}
        modules[name] = (type(module), own if settings else {})
    return modules | {name: tensor.shape for name, tensor in layer.state_dict().items()}


def _check_weights(
    model: PreTrainedModel, found: LayerList, kept: Sequence[int], pruned: PreTrainedModel
) -> None:
    """Raise unless the renumbered weights have the names and shapes of the pruned class."""
    actual, expected = (
        {name: tensor.shape for name, tensor in network.state_dict().items()}
        for network in (model, pruned)
    )
    names = _layer_name(found, model.base_model_prefix)
    if differing := _difference(_renumbered(actual, names, kept), expected):
        raise UnsupportedModelError(
            f"{model.config.model_type}: after removing layers the config would describe another "
            f"network: {_some(differing)} differ in presence or shape. "
            "Remove layers before changing anything else in the network."
        )


def _layer_name(found: LayerList, prefix: str) -> re.Pattern[str]:
    """Matches the names of the layers' weights, with the place of the layer as group 2, whether or
    not they begin with the encoder's `prefix`. A head's own list of layers has another name."""
    return re.compile(rf"((?:{re.escape(prefix)}\.)?{re.escape(found.path)}\.)(\d+)\.")


def _renumbered(
    weights: Mapping[str, T], layer_name: re.Pattern[str], kept: Sequence[int]
) -> dict[str, T]:
    """By their names once only the layers in `kept` (ascending) are left."""
    place = {layer - 1: position for position, layer in enumerate(kept)}
    renamed = {}
    for name, weight in weights.items():
        match = layer_name.match(name)
        if match is None:
            renamed[name] = weight
        elif int(match[2]) in place:
            renamed[f"{match[1]}{place[int(match[2])]}.{name[match.end() :]}"] = weight
    return renamed


def _difference(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _some(names: Sequence[str], at_most: int = 3) -> str:
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return ", ".join(repr(name) for name in names[:at_most]) + more
