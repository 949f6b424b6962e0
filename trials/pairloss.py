"""Losses of embeddings that compare the texts of a whole batch with each other. Where they are
learned from pairs, vectors are (2B, H): the two texts of a pair are next to each other.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss, normalize

_SCALE = 20.0  # of cosines, as in Sentence Transformers; a dot product is taken as it is


def cosent(vectors: torch.Tensor, scores: torch.Tensor, *, dot: bool = False) -> torch.Tensor:
    """CoSENT (Su 2022, https://kexue.fm/archives/8847): log(1 + sum of exp(s_i - s_j)) over all
    pairs i and j of which i should be less alike than j. scores: (B,). A scalar; 0 where all scores
    are equal."""
    one, other = vectors[::2], vectors[1::2]
    alike = (one * other).sum(-1) if dot else cosine_similarity(one, other, dim=-1) * _SCALE
    less = scores[:, None] < scores[None, :]  # (B, B)
    gaps = (alike[:, None] - alike[None, :]).masked_fill(~less, -torch.inf)
    return torch.cat([alike.new_zeros(1), gaps.flatten()]).logsumexp(0)


def in_batch_negatives(vectors: torch.Tensor, *, dot: bool = False) -> torch.Tensor:
    """Cross-entropy of finding each first text's second one among all of the batch: multiple
    negatives ranking (Henderson et al. 2017, arXiv 1705.00652, section 4.4). A scalar."""
    one, other = vectors[::2], vectors[1::2]
    alike = one @ other.T if dot else normalize(one, dim=-1) @ normalize(other, dim=-1).T * _SCALE
    return cross_entropy(alike, torch.arange(len(alike), device=alike.device))


def similarity_gap(
    vectors: torch.Tensor, teacher: torch.Tensor, *, dot: bool = False
) -> torch.Tensor:
    """Mean squared difference between the student's and the teacher's similarities of all texts of
    a batch, (B, H) each, as in Tung and Mori 2019 (arXiv 1907.09682), of cosines. A scalar."""
    own, other = (of if dot else normalize(of, dim=-1) for of in (vectors, teacher))
    return mse_loss(own @ own.T, other @ other.T)
