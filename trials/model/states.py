"""The output of every layer of a network for a batch.

Between batches the network's mode and hooks are as before. Hooks are used instead of
`output_hidden_states`, whose last entry includes ModernBERT's final norm and whose second includes
DeBERTa's convolution: neither belongs to a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
Reader = Callable[[torch.Tensor], torch.Tensor]


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
    layers = list(find_layers(model).layers)
    spots = [_Spot(layer, True) for layer in layers]
    if site == "attention":
        spots = [_attention_spot(model, layer) for layer in layers]

    def run() -> Iterator[LayerStates]:
        for batch in batches:
            yield _forward(model, layers, spots, site, batch, only_sentence)

    return run()


@contextmanager
def noted_sentences(
    model: PreTrainedModel, mask: torch.Tensor
) -> Iterator[Mapping[int, torch.Tensor]]:
    """Index of a layer from 0 -> its sentence tokens (B, H) in the forward pass that runs inside.
    `mask`: (B, T) of the rows. Gradients flow through the states."""
    found: dict[int, torch.Tensor] = {}
    read = _reader(model, mask != 0, sentence_token_is_last(model.config))
    with ExitStack() as hooks:
        for index, layer in enumerate(find_layers(model).layers):
            hooks.enter_context(
                _watching(_Spot(layer, True), found, index, lambda s: read(s)[:, 0])
            )
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
    model: PreTrainedModel,
    layers: list[nn.Module],
    spots: list[_Spot],
    site: Site,
    batch: Batch,
    only_sentence: bool,
) -> LayerStates:
    inputs = {k: v.to(model.device) for k, v in batch.items() if k != "labels"}
    mask = inputs["attention_mask"] != 0
    last = sentence_token_is_last(model.config)
    read = _reader(model, mask, last if only_sentence else None)
    received: dict[int, torch.Tensor] = {}
    seen: dict[int, torch.Tensor] = {}
    with torch.no_grad(), _evaluating(model), ExitStack() as hooks:
        for index, layer in enumerate(layers):
            hooks.enter_context(_watching(_Spot(layer, False), received, index, read))
        for index, spot in enumerate(spots):
            hooks.enter_context(_watching(spot, seen, index, read))
        model.base_model(**inputs)  # the head is not needed
    before, after = ([noted[i] for i in range(len(layers))] for noted in (received, seen))
    sentence_at = sentence_token_index(mask, last)
    if only_sentence:
        mask, sentence_at = torch.ones_like(mask[:, :1]), torch.zeros_like(sentence_at)
    found = [before[0], *after] if site == "layer" else after
    return LayerStates(found, before, mask, sentence_at)


def _reader(model: PreTrainedModel, mask: torch.Tensor, only_sentence: bool | None) -> Reader:
    """Reads the part of a state to keep. `only_sentence`: None keeps all; otherwise the
    sentence token is kept, which is the last one if True."""
    time_first = time_comes_first(model.config)

    def read(hidden_states: torch.Tensor) -> torch.Tensor:
        states = hidden_states.transpose(0, 1) if time_first else hidden_states
        if states.shape[:2] != mask.shape:
            raise UnsupportedModelError(
                f"{model.config.model_type}: a layer sees states of shape {tuple(states.shape)} "
                f"for a batch of shape {tuple(mask.shape)}, so it mixes tokens. "
                "Load the model with attn_implementation='sdpa', or use another one."
            )
        if only_sentence is None:
            return states
        return sentence_states(states, mask, only_sentence)[:, None]

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
    spot: _Spot, found: dict[int, torch.Tensor], index: int, read: Reader
) -> Iterator[None]:
    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if spot.output:
            state = output if isinstance(output, torch.Tensor) else output[0]
        else:
            state = args[0] if args else kwargs["hidden_states"]
        found[index] = read(state)

    handle = spot.module.register_forward_hook(note, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
