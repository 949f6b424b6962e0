"""How far fine-tuning moved each layer: Figure 5 of Poor Man's BERT (Sajjad et al. 2020).

Compares two networks layer by original layer; trains and selects nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from lp_sweep.trials.measures.states import LayerStates


class LayerSimilarity(NamedTuple):
    """Mean cosine between the pre-trained and the fine-tuned state of one layer."""

    layer: int  # 1-based, in the pre-trained network; 0 is the embedding output
    sentence: float  # of the sentence token
    tokens: float  # per-text token mean: over a text's real tokens, then over texts


def similarity_profile(
    pretrained: Iterable[LayerStates],
    finetuned: Iterable[LayerStates],
    kept_layers: Sequence[int],
) -> list[LayerSimilarity]:
    """The embedding output's similarity and then each kept layer's, in ascending order.

    The states of both networks over the same batches. `pretrained` has all its layers, `finetuned`
    those in `kept_layers` (1-based). Sums are kept in float64, so batching doesn't matter.
    Raises ValueError when `kept_layers` doesn't fit the networks or there is no example.
    """
    kept = sorted(kept_layers)
    sums, examples = torch.zeros(0), 0
    for before, after in zip(pretrained, finetuned, strict=True):
        _check(kept, depth=len(before.layers) - 1, left=len(after.layers) - 1)
        added = torch.stack(
            [_cosines(before, layer, after, place) for place, layer in enumerate([0, *kept])]
        )
        sums = added + sums if examples else added
        examples += len(before.mask)
    if not examples:
        raise ValueError("no examples to compare networks on; give at least one batch.")
    return [
        LayerSimilarity(layer, *means)
        for layer, means in zip([0, *kept], (sums / examples).tolist(), strict=True)
    ]


def _cosines(before: LayerStates, layer: int, after: LayerStates, place: int) -> torch.Tensor:
    """Sums over a batch's examples: (2,), of the sentence token and of the per-text token mean."""
    old, new = before.layers[layer], after.layers[place].to(before.mask.device)
    cosines = torch.cosine_similarity(old.double(), new.double(), dim=2)  # (B, T)
    sentence = cosines.gather(1, before.sentence_at[:, None])
    real = cosines.where(before.mask, 0.0)  # what is at padding may be nan
    tokens = real.sum(dim=1) / before.mask.sum(dim=1)
    return torch.stack([sentence.sum(), tokens.sum()])


def _check(kept: Sequence[int], *, depth: int, left: int) -> None:
    if len(set(kept)) != left or len(kept) != left:
        raise ValueError(
            f"kept layers: {kept} given for a network of {left} layers; name each of its layers "
            "once, by its number in the pre-trained network."
        )
    if kept[0] < 1 or kept[-1] > depth:
        raise ValueError(f"kept layers: {kept} is out of range; layers are 1..{depth}.")
