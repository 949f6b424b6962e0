"""The output of every layer of a network for a batch.

Between batches the network's mode and hooks are as before. Hooks are used instead of
`output_hidden_states`, whose last entry includes ModernBERT's final norm and whose second includes
DeBERTa's convolution: neither belongs to a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.model.families import (
    find_layers,
    sentence_states,
    sentence_token_index,
    sentence_token_is_last,
    time_comes_first,
)
from lp_sweep.trials.model.familytable import FAMILIES

Batch = Mapping[str, torch.Tensor]
Site = Literal["layer", "attention"]
_Reader = Callable[[torch.Tensor], torch.Tensor]


class LayerStates(NamedTuple):
    """States of one batch, on the network's device, (B, T, H) for every family.

    `layers`: at the site "layer" L + 1 states, those of the embeddings and of each of the L layers;
    at "attention" the L outputs of the self-attention blocks. `inputs`: what each of the L layers
    received. It is the output before it, except after DeBERTa-v2's convolution.
    """

    layers: list[torch.Tensor]
    inputs: list[torch.Tensor]
    mask: torch.Tensor  # (B, T) bool, true on real tokens
    sentence_at: torch.Tensor  # (B,) where each row's sentence token is

    def sentence(self) -> list[torch.Tensor]:
        """The sentence tokens of each of `layers`, (B, H)."""
        rows = torch.arange(len(self.sentence_at), device=self.sentence_at.device)
        return [states[rows, self.sentence_at] for states in self.layers]

    def tokens(self) -> list[torch.Tensor]:
        """The real tokens of each of `layers`, row by row, (N, H)."""
        return [states[self.mask] for states in self.layers]


def layer_states(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    site: Site = "layer",
    *,
    only_sentence: bool = False,
) -> Iterator[LayerStates]:
    """The states of one batch after another, in eval mode and without gradients.

    A batch has `input_ids` and `attention_mask` (B, T) and whatever else the model takes (`labels`
    are ignored), on any device. The head does not run. "attention" is the state after the residual
    connection of self-attention, and after its LayerNorm (except in ModernBERT, which normalises
    before). `only_sentence` keeps only the sentence token (T = 1), for memory of L x B x H instead
    of L x B x T x H.
    Raises UnsupportedModelError, at once or at the first batch, for a network that can't be read.
    """
    layers = find_layers(model).layers
    if site == "layer":
        spots = [_Spot(layer, True) for layer in layers]
    else:
        spots = [_attention_spot(model, layer) for layer in layers]
    return (_forward(model, spots, site, batch, only_sentence) for batch in batches)


@contextmanager
def noted_sentences(
    model: PreTrainedModel, mask: torch.Tensor
) -> Iterator[Mapping[int, torch.Tensor]]:
    """Index of a layer from 0 -> its sentence tokens (B, H) in the forward pass that runs inside.
    `mask`: (B, T) of the rows. Gradients flow through the states."""
    read = _reader(model, mask != 0, sentence_token_is_last(model.config))
    found: dict[int, torch.Tensor] = {}
    spots = [_Spot(layer, True) for layer in find_layers(model).layers]
    with _watching(spots, found, lambda states: read(states)[:, 0]):
        yield found


class _Spot(NamedTuple):
    """A module and which side of it carries the state."""

    module: nn.Module
    output: bool


def _attention_spot(model: PreTrainedModel, layer: nn.Module) -> _Spot:
    """The first child with the name that a listed family uses, whatever the model's type."""
    children = dict(layer.named_modules())
    known = {f.after_attention: f.given for f in FAMILIES.values() if f.after_attention}
    for path, given in known.items():
        if path in children:
            return _Spot(children[path], not given)
    raise UnsupportedModelError(
        f"{model.config.model_type}: can't tell where a layer's self-attention ends; looked for "
        f"{', '.join(known)} in {type(layer).__name__}. Compare whole layers instead, "
        "or use a model of another family."
    )


def _forward(
    model: PreTrainedModel, spots: list[_Spot], site: Site, batch: Batch, only_sentence: bool
) -> LayerStates:
    inputs = {k: v.to(model.device) for k, v in batch.items() if k != "labels"}
    mask = inputs["attention_mask"] != 0
    last = sentence_token_is_last(model.config)
    read = _reader(model, mask, last) if only_sentence else _reader(model, mask)
    begins = [_Spot(layer, False) for layer in find_layers(model).layers]
    before, after = dict[int, torch.Tensor](), dict[int, torch.Tensor]()
    with (
        torch.no_grad(),
        _evaluating(model),
        _watching(begins, before, read),
        _watching(spots, after, read),
    ):
        model.base_model(**inputs)  # the head is not needed
    received, returned = ([found[i] for i in range(len(spots))] for found in (before, after))
    sentence_at = sentence_token_index(mask, last)
    if only_sentence:
        mask, sentence_at = torch.ones_like(mask[:, :1]), torch.zeros_like(sentence_at)
    layers = [received[0], *returned] if site == "layer" else returned
    return LayerStates(layers, received, mask, sentence_at)


def _reader(model: PreTrainedModel, mask: torch.Tensor, last: bool | None = None) -> _Reader:
    """Reads the part of a state to keep: (B, T, H), or only the sentence token (B, 1, H), which is
    the first one, or the `last`."""
    time_first = time_comes_first(model.config)

    def read(hidden_states: torch.Tensor) -> torch.Tensor:
        states = hidden_states.transpose(0, 1) if time_first else hidden_states
        if states.shape[:2] != mask.shape:
            raise UnsupportedModelError(
                f"{model.config.model_type}: a layer sees states of shape {tuple(states.shape)} "
                f"for a batch of shape {tuple(mask.shape)}, so it mixes tokens. "
                "Load the model with attn_implementation='sdpa', or use another one."
            )
        return states if last is None else sentence_states(states, mask, last)[:, None]

    return read


@contextmanager
def _evaluating(model: PreTrainedModel) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:  # one by one: a part may be in eval mode on purpose
            module.training = True


@contextmanager
def _watching(
    spots: Iterable[_Spot], found: dict[int, torch.Tensor], read: _Reader
) -> Iterator[None]:
    """Inside, `found` gets the state at each spot, by its index."""

    def note(
        index: int, output: bool, _: nn.Module, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        if output:
            state = result if isinstance(result, torch.Tensor) else result[0]
        else:
            state = args[0] if args else kwargs["hidden_states"]
        found[index] = read(state)

    with ExitStack() as hooks:
        for index, spot in enumerate(spots):
            hook = partial(note, index, spot.output)
            hooks.enter_context(spot.module.register_forward_hook(hook, with_kwargs=True))
        yield
