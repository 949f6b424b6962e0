"""Remove feed-forward sub-blocks (both linears), inspired by "Undivided Attention" (2012.11881).

    remove_feed_forwards(model, [10, 11, 12])   # attention and the residual path stay
    model.save_pretrained("reduced")
    model = load.load_network("reduced")        # plain transformers can't build this network

Don't use plain `from_pretrained` on such a checkpoint: it would put random linears back.
`load_encoder` and `load_pruned` also read it. Layers have their number in the very first network,
as in `lp_sweep_kept_layers`. `spec/feedforward.py` chooses the layers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.model.families import find_layers, original_layers
from lp_sweep.trials.model.familytable import FAMILIES, FeedForwardParts, Instead, family_of
from lp_sweep.trials.spec.feedforward import REMOVED

_KEEP, _DROP = "keep", "drop"
_SECOND_NORM = "lp_sweep_second_norm"  # a field of the config, like REMOVED


class Removal(NamedTuple):
    layers: tuple[int, ...]  # without a feed-forward, ascending
    second_norm: str  # keep or drop


def remove_feed_forwards(
    model: PreTrainedModel,
    removed: Sequence[int],
    *,
    second_norm: Literal["keep", "drop"] = "keep",
) -> None:
    """Remove the feed-forwards of these layers, in place, and record it in the config.

    A layer then returns LayerNorm(attention output), or with "drop" the attention output.
    ModernBERT's norm is before the MLP, off the residual path: it is always dropped. A second call
    adds to the first. On an error nothing is changed.
    Raises ValueError for layers that are absent, listed twice or already removed, or for another
    `second_norm` than before; UnsupportedModelError for families without a `feed_forward` in
    `familytable.FAMILIES`.
    """
    if second_norm not in (_KEEP, _DROP):
        raise ValueError(f"second norm: {second_norm!r}. Use '{_KEEP}' or '{_DROP}'.")
    if not removed:
        return
    norm = second_norm if feed_forward_of(model.config).norm_can_stay else _DROP
    before = removal_of(model.config) or Removal((), norm)
    _check(removed, original_layers(model.config), before.layers)
    if before.second_norm != norm:
        raise ValueError(
            f"second norm: {norm!r}, but in layers {_text(before.layers)} it is "
            f"{before.second_norm!r}; one network has one of the two."
        )
    take_out(model, Removal(tuple(removed), norm))
    layers = tuple(sorted((*before.layers, *map(int, removed))))
    write_removal(model.config, Removal(layers, norm))  # in place: modules share this object


def _check(removed: Sequence[int], there: Sequence[int], before: Sequence[int]) -> None:
    if len(set(removed)) != len(removed):
        raise ValueError(f"feed-forwards: {list(removed)} names a layer twice; name each once.")
    if absent := [layer for layer in removed if layer not in there]:
        raise ValueError(
            f"feed-forwards: {list(removed)} names layers that are not in the network "
            f"({_text(absent)}); its layers are {_text(there)}."
        )
    if again := [layer for layer in removed if layer in before]:
        left = [layer for layer in there if layer not in before]
        raise ValueError(
            f"feed-forwards: those of layers {_text(again)} were removed before; "
            f"still there: {_text(left) or 'none'}."
        )


def _text(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))


def feed_forward_of(
    config: PretrainedConfig, refusal: str = "feed-forwards can't be removed from"
) -> FeedForwardParts:
    """The family's feed-forward. Raises UnsupportedModelError if it is not listed."""
    found = family_of(config.model_type).feed_forward
    if found is None:
        known = (name for name, family in FAMILIES.items() if family.feed_forward)
        raise UnsupportedModelError(
            f"{config.model_type}: {refusal} this family. Use one of {', '.join(known)}."
        )
    return found


def removal_of(config: PretrainedConfig) -> Removal | None:
    """The removal in the config; None for an ordinary network.

    Raises UnsupportedModelError if it is impossible, because someone changed the config.
    """
    layers = getattr(config, REMOVED, None)
    if layers is None:
        return None
    norm = getattr(config, _SECOND_NORM, None)
    allowed = original_layers(config)
    right = isinstance(layers, list) and all(layers.count(x) == 1 and x in allowed for x in layers)
    if not right or not layers or norm not in (_KEEP, _DROP):
        raise UnsupportedModelError(
            f"{config.model_type}: the config's {REMOVED} is {layers!r} and its {_SECOND_NORM} is "
            f"{norm!r}; allowed are some of the layers {allowed}, each once, and '{_KEEP}' or "
            f"'{_DROP}'. Load the checkpoint as it was saved, config included."
        )
    return Removal(tuple(layers), norm)


def write_removal(config: PretrainedConfig, removal: Removal) -> None:
    """Write it into the config; without layers, make the config ordinary again."""
    if removal.layers:
        setattr(config, REMOVED, list(removal.layers))
        setattr(config, _SECOND_NORM, removal.second_norm)
        return
    for name in (REMOVED, _SECOND_NORM):
        if hasattr(config, name):
            delattr(config, name)


def take_out(model: PreTrainedModel, removal: Removal | None) -> None:
    """Replace the modules in place, but not the config. On an error nothing is changed.

    Raises UnsupportedModelError for an unlisted family or a layer with other modules.
    """
    if removal is None:
        return
    kind = feed_forward_of(model.config)
    live = dict(zip(original_layers(model.config), find_layers(model).layers, strict=True))
    layers = [live[number] for number in removal.layers]
    replacements = [_instead_of(layer, kind, removal.second_norm) for layer in layers]
    for layer, children in zip(layers, replacements, strict=True):
        for name, child in children.items():
            setattr(layer, name, child)


def reduced_class(plain: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """`plain`, but built without the feed-forwards that the config lists as removed.

    For `from_pretrained`, which builds a network and then fills it. The result is a `plain`.
    """

    def build(self: PreTrainedModel, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
        plain.__init__(self, config, *args, **kwargs)
        take_out(self, removal_of(self.config))
        self.__class__ = plain

    # transformers looks classes up by name and module
    names = {"__init__": build, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (plain,), names)


def parts(layer: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """The layer's modules at `paths`; absent ones are left out."""
    modules = dict(layer.named_modules())
    return [modules[path] for path in paths if path in modules]


def _instead_of(layer: nn.Module, kind: FeedForwardParts, second_norm: str) -> dict[str, nn.Module]:
    """The new children of the layer, by name."""
    names = (*kind.linears, kind.norm)
    found = parts(layer, names)
    if len(found) != len(names):
        raise UnsupportedModelError(
            f"{type(layer).__name__}: looked for its feed-forward in {', '.join(names)} and found "
            f"{len(found)} of them. Remove feed-forwards before changing anything else."
        )
    norm = found[-1] if second_norm == _KEEP else nn.Identity()
    return {
        name: _INSTEAD[instead](norm).train(layer.training)
        for name, instead in kind.instead.items()
    }


class _AfterAttention(nn.Module):
    """Only the norm, in place of BERT's sum of feed-forward and attention output."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.LayerNorm = norm  # its name in the checkpoint

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        """(B, T, H) twice, as the layer calls it. The second is the residual path."""
        result: torch.Tensor = self.LayerNorm(input_tensor)
        return result


class _Nothing(nn.Module):
    """Adds nothing to the residual path, in place of a feed-forward."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # the layer's sum broadcasts a scalar, so no (B, T, H) of zeros is allocated
        return hidden_states.new_zeros(())


_INSTEAD: dict[Instead, Callable[[nn.Module], nn.Module]] = {
    "identity": lambda norm: nn.Identity(),
    "nothing": lambda norm: _Nothing(),
    "norm": lambda norm: norm,
    "norm after attention": _AfterAttention,
    "norm in a sequence": lambda norm: nn.Sequential(OrderedDict(layer_norm=norm)),
}
