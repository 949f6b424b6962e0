"""How little a layer, or a run of layers, does: what there is to cut without training anything.

Takes a network's states, batch by batch; chooses no layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lp_sweep.trials.measures.states import LayerStates


class CosineSums(NamedTuple):
    """Of one batch: the sum over its tokens of the cosine between what each layer receives and
    returns, (L,) float64, and the number of tokens."""

    sums: torch.Tensor
    tokens: int


def cosine_sums(states: LayerStates) -> CosineSums:
    """Over the real tokens of a batch, or over its sentence tokens where it holds no others."""
    cosines = torch.stack(
        [
            torch.cosine_similarity(
                before[states.mask].double(), after[states.mask].double(), dim=1
            ).sum()
            for before, after in zip(states.inputs, states.layers[1:], strict=True)
        ]
    )
    return CosineSums(cosines, int(states.mask.sum()))


def block_influence(batches: Iterable[CosineSums]) -> list[float]:
    """Pooled token mean of the cosine before and after each layer: all real tokens of all examples
    count once. (`similarity` has the per-text token mean, which averages each text first.)

    Block Influence is 1 - this (ShortGPT, Men et al. 2024, section 2.2): a layer with a high value
    changes little. An example counts as often as it has tokens. Batching doesn't matter.
    Raises ValueError when there is no example.
    """
    return mean_cosines(batches)


def mean_cosines(batches: Iterable[CosineSums]) -> list[float]:
    """Mean cosine between what each layer receives and returns, in order: L numbers.

    Sums are kept in float64. Raises ValueError when there is no example.
    """
    sums, count = torch.zeros(0), 0
    for cosines, tokens in batches:
        sums = cosines + sums if count else cosines
        count += tokens
    if not count:
        raise ValueError("no examples to compare layers on; give at least one batch.")
    means: list[float] = (sums / count).tolist()
    return means


def angular_distances(batches: Iterable[LayerStates]) -> npt.NDArray[np.float64]:
    """Mean over examples of arccos(cos(x_l, x_m)) / pi, l < m: (L + 1, L + 1), zero elsewhere.

    x_l is the sentence token as layer l left it, x_0 the embedding output: entry (l, l + n) is the
    d(x^l, x^(l+n)) of Gromov et al. 2024, "The Unreasonable Ineffectiveness of the Deeper Layers",
    which takes a decoder's last token. 0 is the same direction, 0.5 at right angles, 1 opposite.
    Raises ValueError when there is no example.
    """
    sums, count = torch.zeros(0), 0
    for states in batches:
        vectors = torch.stack(states.sentence()).double()  # (L + 1, B, H)
        vectors = torch.nn.functional.normalize(vectors, dim=-1)
        cosines = torch.einsum("lbh,mbh->lmb", vectors, vectors).clamp(-1, 1)  # rounding: 1 + eps
        angles = cosines.acos().sum(dim=-1) / math.pi
        sums = angles + sums if count else angles
        count += vectors.shape[1]
    if not count:
        raise ValueError("no examples to compare layers on; give at least one batch.")
    return np.triu((sums / count).cpu().numpy(), k=1)
