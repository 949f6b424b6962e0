"""Networks without some feed-forward sub-blocks: their modules, and the two fields of the config.

Callers use `feedforward.py`. Layers have their number in the very first network, as in
`lp_sweep_kept_layers`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.model.families import depth_field, find_layers
from lp_sweep.trials.model.familytable import FAMILIES, FeedForward, Instead, family_of
from lp_sweep.trials.spec.feedforward import REMOVED

KEEP, DROP = "keep", "drop"
SECOND_NORM = "lp_sweep_second_norm"


class Removal(NamedTuple):
    layers: tuple[int, ...]  # without a feed-forward, ascending
    second_norm: str  # KEEP or DROP


class AfterAttention(nn.Module):
    """Only the norm, in place of BERT's sum of feed-forward and attention output."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.LayerNorm = norm  # its name in the checkpoint

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        """(B, T, H) twice, as the layer calls it. The second is the residual path."""
        result: torch.Tensor = self.LayerNorm(input_tensor)
        return result


class Nothing(nn.Module):
    """Adds nothing to the residual path, in place of a feed-forward."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # the layer's sum broadcasts a scalar, so no (B, T, H) of zeros is allocated
        return hidden_states.new_zeros(())


_INSTEAD: dict[Instead, Callable[[nn.Module], nn.Module]] = {
    "identity": lambda norm: nn.Identity(),
    "nothing": lambda norm: Nothing(),
    "norm": lambda norm: norm,
    "norm after attention": AfterAttention,
    "norm in a sequence": lambda norm: nn.Sequential(OrderedDict(layer_norm=norm)),
}


def feed_forward_of(
    config: PretrainedConfig, refusal: str = "feed-forwards can't be removed from"
) -> FeedForward:
    """The family's feed-forward. Raises UnsupportedModelError if it is not listed."""
    found = family_of(config.model_type).feed_forward
    if found is None:
        known = (name for name, family in FAMILIES.items() if family.feed_forward)
        raise UnsupportedModelError(
            f"{config.model_type}: {refusal} this family. Use one of {', '.join(known)}."
        )
    return found


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


def removal_of(config: PretrainedConfig) -> Removal | None:
    """The removal in the config; None for an ordinary network.

    Raises UnsupportedModelError if it is impossible, because someone changed the config.
    """
    layers = getattr(config, REMOVED, None)
    if layers is None:
        return None
    norm = getattr(config, SECOND_NORM, None)
    allowed = original_layers(config)
    right = isinstance(layers, list) and all(layers.count(x) == 1 and x in allowed for x in layers)
    if not right or not layers or norm not in (KEEP, DROP):
        raise UnsupportedModelError(
            f"{config.model_type}: the config's {REMOVED} is {layers!r} and its {SECOND_NORM} is "
            f"{norm!r}; allowed are some of the layers {allowed}, each once, and '{KEEP}' or "
            f"'{DROP}'. Load the checkpoint as it was saved, config included."
        )
    return Removal(tuple(layers), norm)


def write_removal(config: PretrainedConfig, removal: Removal) -> None:
    """Write it into the config; without layers, make the config ordinary again."""
    if removal.layers:
        setattr(config, REMOVED, list(removal.layers))
        setattr(config, SECOND_NORM, removal.second_norm)
        return
    for name in (REMOVED, SECOND_NORM):
        if hasattr(config, name):
            delattr(config, name)


def take_out(model: PreTrainedModel, layers: Iterable[int], second_norm: str) -> None:
    """Replace the modules in place, but not the config. On an error nothing is changed.

    Raises UnsupportedModelError for an unlisted family or a layer with other modules.
    """
    kind = feed_forward_of(model.config)
    live = dict(zip(original_layers(model.config), find_layers(model).layers, strict=True))
    replacements = [(live[number], _without(live[number], kind, second_norm)) for number in layers]
    for layer, children in replacements:
        for name, child in children.items():
            setattr(layer, name, child)


def take_out_as_configured(model: PreTrainedModel) -> None:
    """Remove what the config lists from a network just built from it."""
    removal = removal_of(model.config)
    if removal is not None:
        take_out(model, removal.layers, removal.second_norm)


def reduced_class(plain: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """`plain`, but built without the feed-forwards that the config lists as removed.

    For `from_pretrained`, which builds a network and then fills it. The result is a `plain`.
    """

    def build(self: PreTrainedModel, config: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
        plain.__init__(self, config, *args, **kwargs)
        take_out_as_configured(self)
        self.__class__ = plain

    # transformers looks classes up by name and module
    names = {"__init__": build, "__module__": plain.__module__, "__qualname__": plain.__qualname__}
    return type(plain.__name__, (plain,), names)


def parts(layer: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """The layer's modules at `paths`; absent ones are left out."""
    modules = dict(layer.named_modules())
    return [modules[path] for path in paths if path in modules]


def _without(layer: nn.Module, kind: FeedForward, second_norm: str) -> Mapping[str, nn.Module]:
    names = (*kind.linears, kind.norm)
    found = parts(layer, names)
    if len(found) != len(names):
        raise UnsupportedModelError(
            f"{type(layer).__name__}: looked for its feed-forward in {', '.join(names)} and found "
            f"{len(found)} of them. Remove feed-forwards before changing anything else."
        )
    norm = found[-1] if second_norm == KEEP else nn.Identity()
    return {
        name: _INSTEAD[instead](norm).train(layer.training)
        for name, instead in kind.instead.items()
    }
