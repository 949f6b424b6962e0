"""Remove feed-forward sub-blocks (both linears), inspired by "Undivided Attention" (2012.11881).

    remove_feed_forwards(model, [10, 11, 12])   # attention and the residual path stay
    model.save_pretrained("reduced")
    model = load_network("reduced")             # plain transformers can't build this network

Don't use plain `from_pretrained` on such a checkpoint: it would put random linears back.
`load_encoder` and `load_pruned` also read it. `spec/feedforward.py` chooses the layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.model.load import NOT_SAFETENSORS, loading_errors, quiet
from lp_sweep.trials.model.reduced import (
    DROP,
    KEEP,
    Removal,
    feed_forward_of,
    original_layers,
    reduced_class,
    removal_of,
    take_out,
    write_removal,
)


def remove_feed_forwards(
    model: PreTrainedModel,
    removed: Sequence[int],
    *,
    second_norm: Literal["keep", "drop"] = "keep",
) -> None:
    """Remove the feed-forwards of these layers, in place, and record it in the config.

    `removed`: numbers in the very first network (those of `config.lp_sweep_kept_layers`), in any
    order. A layer then returns LayerNorm(attention output), or with "drop" the attention output.
    ModernBERT's norm is before the MLP, off the residual path: it is always dropped. A second call
    adds to the first. On an error nothing is changed.
    Raises ValueError for layers that are absent, listed twice or already removed, or for another
    `second_norm` than before; UnsupportedModelError for families without a `feed_forward` in
    `familytable.FAMILIES`.
    """
    if second_norm not in (KEEP, DROP):
        raise ValueError(f"second norm: {second_norm!r}. Use '{KEEP}' or '{DROP}'.")
    if not removed:
        return
    norm = second_norm if feed_forward_of(model.config).norm_can_stay else DROP
    before = removal_of(model.config) or Removal((), norm)
    _check(removed, original_layers(model.config), before)
    if before.second_norm != norm:
        raise ValueError(
            f"second norm: {norm!r}, but in layers {_text(before.layers)} it is "
            f"{before.second_norm!r}; one network has one of the two."
        )
    take_out(model, removed, norm)
    layers = tuple(sorted((*before.layers, *map(int, removed))))
    write_removal(model.config, Removal(layers, norm))  # in place: modules share this object


def load_network(folder: str | Path, *, local_files_only: bool = True) -> PreTrainedModel:
    """Load what `save_pretrained` wrote, with or without feed-forwards, in eval mode on the CPU.

    The class is the one in the config; safetensors only, no code from the checkpoint. Every weight
    must be in the checkpoint, and a reduced network's checkpoint must hold no other.
    Raises MissingInputError or UnsupportedModelError.
    """
    source: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": False}
    with loading_errors(folder, "it can't be found. Check the name"):
        config = AutoConfig.from_pretrained(str(folder), **source)
    network_class, is_reduced = _named_class(config, folder), removal_of(config) is not None
    if is_reduced:
        network_class = reduced_class(network_class)
    with torch.random.fork_rng(devices=[]), quiet(), loading_errors(folder, NOT_SAFETENSORS):
        model, info = network_class.from_pretrained(
            str(folder),
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # refused below, in words
            output_loading_info=True,
            **source,
        )
    _refuse_misfit(info, folder, is_reduced)
    result: PreTrainedModel = model.eval()
    return result


def _check(removed: Sequence[int], there: Sequence[int], before: Removal) -> None:
    if len(set(removed)) != len(removed):
        raise ValueError(f"feed-forwards: {list(removed)} names a layer twice; name each once.")
    absent = [layer for layer in removed if layer not in there]
    if absent:
        raise ValueError(
            f"feed-forwards: {list(removed)} names layers that are not in the network "
            f"({_text(absent)}); its layers are {_text(there)}."
        )
    again = [layer for layer in removed if layer in before.layers]
    if again:
        left = [layer for layer in there if layer not in before.layers]
        raise ValueError(
            f"feed-forwards: those of layers {_text(again)} were removed before; "
            f"still there: {_text(left) or 'none'}."
        )


def _named_class(config: PretrainedConfig, folder: str | Path) -> type[PreTrainedModel]:
    name = next(iter(config.architectures or []), None)
    found = getattr(transformers, name, None) if name else None
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise UnsupportedModelError(
            f"model {str(folder)!r}: its config names the class {name!r}, which transformers does "
            "not have. Use a folder that save_pretrained wrote."
        )
    return found


def _refuse_misfit(info: Mapping[str, Any], folder: str | Path, is_reduced: bool) -> None:
    names = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    if is_reduced:
        names |= set(info["unexpected_keys"])
    if names:
        raise MissingInputError(
            f"model {str(folder)!r}: {len(names)} weights are missing, have another shape or have "
            f"no place in the network, for example {min(names)!r}. "
            "Check that its config and its weights belong together."
        )


def _text(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
