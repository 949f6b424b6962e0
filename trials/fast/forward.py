"""A batch through a network: by its own forward pass, or without most of the padding.

`compute: reference` is the network's own forward pass, padded to the longest row. `fast` uses only
the real tokens if the family has such a pass; otherwise it is the network's own, on a CPU in groups
of rows of similar length. A GPU trains with CUDA graphs where the family and the length allow it;
`graphs` has them at any length. All agree up to rounding but draw other dropout masks, so `compute`
is part of a trial's identity.

`pooling` makes the embedding of a text: the `mean` of its tokens (special ones included), the first
(`cls`) or the `last`. `orchestrator.inputs.models` reads a folder's own setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import (
    EncodedSplit,
    EncodedTask,
    Padding,
    group_ends,
    longest_first,
    to_device,
)
from lp_sweep.trials.device import Gathering, bound_by_launches, onto, pick, records_graphs
from lp_sweep.trials.fast.networks import embeddings, forward_pass_of, pooled, word_logits
from lp_sweep.trials.fast.networks import logits as unpadded_logits
from lp_sweep.trials.fast.tokens import RealTokens, barred, real_tokens
from lp_sweep.trials.model.familytable import family_of
from lp_sweep.trials.model.states import noted_sentences
from lp_sweep.trials.spec.specs import Compute, Recipe

UNPADDED, GROUPED, PADDED, GRAPHS = "unpadded", "grouped", "padded", "graphs"
PACKED = "packed"  # the bins of graphs, operation by operation
# tokens: in longer bins, which may hold short rows, attention to the others of a bin costs more
# than launches. An estimate: no GPU has trained longer rows.
_LONGEST_GRAPH = 512
_GROUP = 32  # the cost of one more group, in tokens through a small encoder on a CPU


def forward(
    model: nn.Module,
    split: EncodedSplit,
    rows: np.ndarray,
    padding: Padding,
    device: torch.device,
    compute: Compute,
    states: list[torch.Tensor] | None = None,
    *,
    pooling: str = "",
) -> torch.Tensor:
    """Logits (B, C) of B rows, on `device`, where the network is; with `pooling` embeddings (B, H).
    For words (B, V, C), where a word without a token has arbitrary logits.
    `states` collects the sentence tokens after each layer, (B, H)."""
    used = compute_used(model, compute, device)
    if used == UNPADDED:
        return by_place(model, real_tokens(split, rows, device), pooling, states)
    width = 0 if split.words is None else split.most_words(rows)

    def padded(some: np.ndarray) -> list[torch.Tensor]:
        batch: dict[str, Any] = to_device(split, some, padding, device)
        real = batch["attention_mask"]
        if bound_by_launches(device):
            batch["attention_mask"] = unasked_mask(model, real)

        def output() -> torch.Tensor:
            if pooling:
                base: nn.Module = model.base_model  # type: ignore[assignment]
                hidden = base(**batch).last_hidden_state  # without the head
                return _finished(model, pooled(hidden, real, pooling))
            found: torch.Tensor = model(**batch).logits
            return found if split.words is None else _at_words(found, split, some, width, padding)

        if states is None:
            return [output()]
        with noted_sentences(model, real) as noted:
            found = output()
        return [found, *(noted[layer] for layer in sorted(noted))]

    logits, *noted = _grouped(padded, split, rows) if used == GROUPED else padded(rows)
    if states is not None:
        states.extend(noted)
    return logits


def _at_words(
    logits: torch.Tensor, split: EncodedSplit, rows: np.ndarray, width: int, padding: Padding
) -> torch.Tensor:
    """(B, T, C) gives (B, V, C); V is `width`."""
    assert split.words is not None
    places = np.maximum(split.words[rows, :width], 0).astype(np.int64)
    if padding.left:
        places += logits.shape[1] - split.lengths_of(rows)[:, None]
    return logits.take_along_dim(onto(places, logits.device)[..., None], dim=1)


def by_place(
    model: nn.Module, tokens: RealTokens, pooling: str, states: list[torch.Tensor] | None
) -> torch.Tensor:
    """`forward` over real tokens only."""
    if pooling:
        return _finished(model, embeddings(model, tokens, pooling, states))
    if tokens.words is not None:
        return word_logits(model, tokens, tokens.words)
    return unpadded_logits(model, tokens, states)


_AFTER = "lp_sweep_after_pooling"


def attach(model: nn.Module, modules: nn.Module) -> None:
    """Lets the modules change every vector of the network. They are no part of it: they do not
    learn, and are not saved with it."""
    vars(model)[_AFTER] = modules.requires_grad_(False).eval()


def _finished(model: nn.Module, vectors: torch.Tensor) -> torch.Tensor:
    modules: nn.Module | None = vars(model).get(_AFTER)
    if modules is None:
        return vectors
    found: torch.Tensor = modules.to(vectors.device)(vectors)
    return found


def compute_used(model: Any, compute: Compute, device: torch.device) -> str:
    """The forward pass that is used without CUDA graphs, as in a trial's record: not every family
    has one without padding, and groups do not pay off on a GPU, which is limited by launches."""
    if compute == "reference":
        return PADDED
    if forward_pass_of(model) is not None:
        return UNPADDED
    return PADDED if bound_by_launches(device) else GROUPED


def uses_graphs(model: Any, recipe: Recipe, device: torch.device) -> bool:
    """Whether training steps are CUDA graphs here."""
    if recipe.compute == "reference" or not records_graphs(device):
        return False
    found = forward_pass_of(model)
    if found is None or not found.on_device:
        return False
    return recipe.compute == "graphs" or recipe.max_length <= _LONGEST_GRAPH


def _grouped(
    padded: Callable[[np.ndarray], list[torch.Tensor]], split: EncodedSplit, rows: np.ndarray
) -> list[torch.Tensor]:
    order = longest_first(split.lengths_of(rows))
    ends = group_ends(split.lengths_of(rows[order]), _GROUP)
    groups = [padded(group) for group in np.split(rows[order], ends[:-1])]
    device = groups[0][0].device
    back = Gathering(onto(np.argsort(order, kind="stable"), device), onto(order, device))
    return [pick(torch.cat(parts), back) for parts in zip(*groups, strict=True)]


def unasked_mask(model: Any, real: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
    """The mask (B, T), non-zero on real tokens, in a form whose values the network does not read.

    transformers reads the values of a (B, T) mask, for which the host waits for the GPU.
    """
    config = model.config
    shape = family_of(config.model_type).mask
    if shape == "rows" or getattr(config, "classifier_pooling", "cls") != "cls":
        return real  # a head that pools by the mean uses the mask itself
    cells = barred(real[:, None, None] == 0)
    if shape == "cells":
        return cells
    place = torch.arange(real.shape[1], device=real.device)
    apart = (place - place[:, None]).abs()
    hidden = (real == 0)[:, None, None] | (apart > config.sliding_window)
    # padding far from all text attends to itself: a softmax over nothing would be NaN
    return {"full_attention": cells, "sliding_attention": barred(hidden & (apart > 0))}


def may_be_cut(model: PreTrainedModel, recipe: Recipe) -> bool:
    """Whether the word table may be cut to the task's words: its other rows would not change, and
    no forward pass with padding recognises the padding by its number."""
    learns = not recipe.weight_decay and not recipe.freeze_embeddings
    return learns and compute_used(model, recipe.compute, model.device) == UNPADDED


@contextmanager
def task_words(
    model: PreTrainedModel,
    data: EncodedTask,
    padding: Padding,
    teacher: PreTrainedModel | None = None,
) -> Iterator[tuple[EncodedTask, Padding]]:
    """Inside, the word tables of the network, and of a `teacher` that reads the same tokens, have
    only the words of `data` and the padding. Yields both with the new numbers of the words."""
    words = _words(model)
    size, padding_row = len(words.weight), words.padding_idx
    rows = _named(data, padding, padding_row, size)
    number = np.zeros(size, np.int32)
    number[rows] = np.arange(len(rows))
    with ExitStack() as inside:
        for network in filter(None, (model, teacher)):
            inside.enter_context(_cut(network, rows, number))
        yield _renamed(data, number), padding._replace(token_id=int(number[padding.token_id]))


@contextmanager
def _cut(model: PreTrainedModel, rows: np.ndarray, number: np.ndarray) -> Iterator[None]:
    """Inside, the word table has only these rows; `number` maps old to new numbers."""
    words = _words(model)
    whole: Any = words.weight
    padding_row = words.padding_idx
    kept = torch.from_numpy(rows).to(whole.device)
    own = nn.Parameter(whole.detach()[kept], requires_grad=whole.requires_grad)
    _set(model, own, None if padding_row is None else int(number[padding_row]))
    try:
        yield
    finally:
        with torch.no_grad():
            whole[kept] = _words(model).weight
        _set(model, whole, padding_row)


def _words(model: PreTrainedModel) -> nn.Embedding:
    """Looked up each time: a network may be reset to a copy of itself."""
    words = model.get_input_embeddings()
    assert isinstance(words, nn.Embedding)
    return words


def _set(model: PreTrainedModel, weight: nn.Parameter, padding_row: int | None) -> None:
    """Also sets the config, since dropping layers compares the network with it."""
    words, config = _words(model), model.config
    words.weight, words.padding_idx = weight, padding_row
    words.num_embeddings = config.vocab_size = len(weight)
    if padding_row is not None:
        config.pad_token_id = padding_row


def _named(data: EncodedTask, padding: Padding, padding_row: int | None, size: int) -> np.ndarray:
    """(R,) int64, ascending: the rows of all tokens of train and dev, and of the padding."""
    named = np.zeros(size, bool)
    named[padding.token_id if padding_row is None else [padding.token_id, padding_row]] = True
    for split in (data.train, *data.dev.values()):
        named[split.tokens] = True
    return np.flatnonzero(named)


def _renamed(data: EncodedTask, number: np.ndarray) -> EncodedTask:
    def renamed(split: EncodedSplit) -> EncodedSplit:
        return replace(split, tokens=number[split.tokens])

    dev = {name: renamed(split) for name, split in data.dev.items()}
    return replace(data, train=renamed(data.train), dev=dev)
