"""A network whose table of words has only the rows that a task's tokens name.

The others have no gradient, and without weight decay AdamW leaves such rows where they are: the
training is the same, and its optimiser has less to do (half of MiniLM's parameters are words).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.specs import Recipe
from lp_sweep.trials.batches import Padding
from lp_sweep.trials.encoded import EncodedSplit, EncodedTask
from lp_sweep.trials.forward import BY_PLACE, compute_used


def may_be_cut(model: PreTrainedModel, recipe: Recipe) -> bool:
    """Whether the rows that no token names would stay as they are, and nothing but the table of
    words goes by a token's number: a padded forward pass may know the padding by it."""
    learns = not recipe.weight_decay and not recipe.freeze_embeddings
    return learns and compute_used(model, recipe.compute, model.device) in BY_PLACE


@contextmanager
def task_words(
    model: PreTrainedModel, data: EncodedTask, padding: Padding
) -> Iterator[tuple[EncodedTask, Padding]]:
    """While inside, the network knows the words of `data` (and the padding) alone, by the numbers
    that the data and the padding have here. Afterwards it knows all of them again."""
    words = _words(model)
    whole: Any = words.weight
    padding_row = words.padding_idx
    rows = _named(data, padding, padding_row, len(whole))
    number = np.zeros(len(whole), np.int32)
    number[rows] = np.arange(len(rows))
    kept = torch.from_numpy(rows).to(whole.device)
    own = nn.Parameter(whole.detach()[kept], requires_grad=whole.requires_grad)
    _set(model, own, None if padding_row is None else int(number[padding_row]))
    try:
        yield _renamed(data, number), padding._replace(token_id=int(number[padding.token_id]))
    finally:
        with torch.no_grad():
            whole[kept] = _words(model).weight
        _set(model, whole, padding_row)


def _words(model: PreTrainedModel) -> nn.Embedding:
    """Asked for anew each time: a network may be put back to a copy of itself."""
    words = model.get_input_embeddings()
    assert isinstance(words, nn.Embedding)
    return words


def _set(model: PreTrainedModel, weight: nn.Parameter, padding_row: int | None) -> None:
    """And the config: who drops layers compares the network with it."""
    words = _words(model)
    words.weight, words.padding_idx = weight, padding_row
    words.num_embeddings = model.config.vocab_size = len(weight)


def _named(data: EncodedTask, padding: Padding, padding_row: int | None, size: int) -> np.ndarray:
    """(R,) int64, ascending: the rows that any token, of train or dev, names. And all up to the
    padding's: its number in the config then is one that the table has."""
    named = np.zeros(size, bool)
    named[: 0 if padding_row is None else padding_row + 1] = True
    named[padding.token_id] = True
    for split in (data.train, *data.dev.values()):
        named[split.tokens] = True
    return np.flatnonzero(named)


def _renamed(data: EncodedTask, number: np.ndarray) -> EncodedTask:
    def renamed(split: EncodedSplit) -> EncodedSplit:
        return replace(split, tokens=number[split.tokens])

    dev = {name: renamed(split) for name, split in data.dev.items()}
    return replace(data, train=renamed(data.train), dev=dev)
