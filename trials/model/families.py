"""Finds a network's layers, embeddings and sentence token from its structure and config.

Nothing is changed. An unlisted family works if its layers are in one list of the config's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.device import Gathering, pick
from lp_sweep.trials.model.familytable import family_of
from lp_sweep.trials.model.modelfiles import DEPTH_FIELDS


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerList:
    """The layers of a network, and the config field with their number."""

    layers: nn.ModuleList
    path: str  # dotted name from the model's root, for example "bert.encoder.layer"
    depth_field: str  # the config's own field, for example "n_layer" for XLNet


def depth_field(config: PretrainedConfig) -> str:
    """The config's own name for its number of layers, by `attribute_map`.

    Raises UnsupportedModelError when the config has none of the known fields.
    """
    for name in DEPTH_FIELDS:
        own_name: str = config.attribute_map.get(name, name)
        if isinstance(getattr(config, own_name, None), int):
            return own_name
    raise UnsupportedModelError(
        f"{config.model_type}: its config has no depth; looked for {', '.join(DEPTH_FIELDS)}. "
        "Use a model whose config states its number of layers."
    )


def original_layers(config: PretrainedConfig) -> list[int]:
    """Each layer's number in the very first network, ascending.

    Raises UnsupportedModelError if the config contradicts itself.
    """
    field = depth_field(config)
    depth = getattr(config, field)
    origin = getattr(config, "lp_sweep_kept_layers", None) or list(range(1, depth + 1))
    if len(origin) != depth:
        raise UnsupportedModelError(
            f"{config.model_type}: the config's lp_sweep_kept_layers names {len(origin)} layers "
            f"but {field} is {depth}. Load the checkpoint as it was saved, config included."
        )
    return list(origin)


def find_layers(model: PreTrainedModel) -> LayerList:
    """The one ModuleList whose length is the config's depth.

    A list inside a layer (such as experts) does not count.
    Raises UnsupportedModelError if no list or more than one fits.
    """
    config = model.config
    field = depth_field(config)
    depth = getattr(config, field)
    found: dict[str, nn.ModuleList] = {}
    for path, module in model.named_modules():  # parents come before their children
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and len(module) == depth and not inside:
            found[path] = module
    if len(found) != 1:
        what = "no module list" if not found else f"{len(found)} module lists ({', '.join(found)})"
        raise UnsupportedModelError(
            f"{config.model_type}: cannot tell which modules are its layers: {what} of length "
            f"{depth}, which is the config's {field}; exactly one is needed. "
            "Use a model that keeps all its layers in one list."
        )
    path, layers = found.popitem()
    return LayerList(layers=layers, path=path, depth_field=field)


def embedding_path(model: PreTrainedModel) -> str:
    """Dotted name of the embedding block: the largest module with the word table and no layers.

    "bert.embeddings" for BERT, "transformer.word_embedding" for XLNet.
    Raises UnsupportedModelError for a model without a table of words (CANINE).
    """
    try:
        words = model.get_input_embeddings()
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"{model.config.model_type}: it has no table of word embeddings. Use another model."
        ) from error
    path = next(name for name, module in model.named_modules() if module is words).split(".")
    layers = find_layers(model).path.split(".")
    shared = 0
    while path[shared] == layers[shared]:
        shared += 1
    return ".".join(path[: shared + 1])


def sentence_token_is_last(config: PretrainedConfig) -> bool:
    """Whether the sentence token ends the sequence (XLNet) instead of opening it."""
    return getattr(config, "summary_type", None) == "last"


def time_comes_first(config: PretrainedConfig) -> bool:
    """Whether layers see hidden states as (T, B, H), as in XLNet."""
    return family_of(config.model_type).time_first


def sentence_token_index(attention_mask: torch.Tensor, last: bool) -> torch.Tensor:
    """Position of the sentence token, (B,) int64: the first real token, or the last if `last`.

    The mask (B, T) is non-zero on real tokens, of which every row has one; padding may be on
    either side.
    """
    real = (attention_mask != 0).to(torch.int8)  # (B, T); argmax gives the first of equals
    if last:
        return real.shape[1] - 1 - real.flip(1).argmax(dim=1)
    return real.argmax(dim=1)


def sentence_states(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, last: bool
) -> torch.Tensor:
    """The sentence token's hidden state: (B, T, H) and mask (B, T) give (B, H)."""
    rows, length, _ = hidden_states.shape
    row = torch.arange(rows, device=hidden_states.device)
    place = sentence_token_index(attention_mask, last)
    if not hidden_states.requires_grad:
        return hidden_states[row, place]
    index = row * length + place
    of_row = row.repeat_interleave(length, output_size=rows * length)
    here = torch.arange(rows * length, device=hidden_states.device)
    left = (index.index_select(0, of_row) != here)[:, None]
    return pick(hidden_states.reshape(rows * length, -1), Gathering(index, of_row, left))


def scalars(module: nn.Module) -> dict[str, Any]:
    """A module's own numbers, flags and words, except those that training changes."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in ("training", "gradient_checkpointing")
        and isinstance(value, (bool, int, float, str, type(None)))
    }
