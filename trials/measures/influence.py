"""Measures of layers, from a network's states: how little each layer changes them, how far
fine-tuning moved them, and what a linear classifier finds in them.

Takes the states batch by batch; chooses no layers. Only scikit-learn's linear models are fitted,
deterministically: Figure 4 of Poor Man's BERT (Sajjad et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.states import LayerStates
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import score


def cosine_sums(states: LayerStates) -> tuple[torch.Tensor, int]:
    """Sums over the real tokens of a batch, or its sentence tokens if it has no others: the cosine
    between what each layer receives and returns, (L,) float64, and the number of tokens."""
    cosines = torch.stack(
        [
            torch.cosine_similarity(
                before[states.mask].double(), after[states.mask].double(), dim=1
            ).sum()
            for before, after in zip(states.inputs, states.layers[1:], strict=True)
        ]
    )
    return cosines, int(states.mask.sum())


def mean_cosines(batches: Iterable[tuple[torch.Tensor, int]]) -> list[float]:
    """Mean cosine between what each layer receives and returns, in order: L numbers.

    Over sentence tokens alone it is a layer's contribution. Over all real tokens it is the pooled
    token mean (all tokens of all examples count once), and 1 - this is Block Influence (ShortGPT,
    Men et al. 2024, section 2.2): a layer with a high value changes little. `similarity` has the
    per-text token mean, which averages each text first. Sums are kept in float64, so batching
    doesn't matter. Raises ValueError when there is no example.
    """
    means: list[float] = _mean(batches).tolist()
    return means


def _mean(batches: Iterable[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """The mean over examples, from each batch's sum and number. Raises ValueError for none."""
    sums, count = torch.zeros(0), 0
    for added, number in batches:
        sums = added + sums if count else added
        count += number
    if not count:
        raise ValueError("no examples to compare layers on; give at least one batch.")
    return sums / count


def angular_distances(batches: Iterable[LayerStates]) -> npt.NDArray[np.float64]:
    """Mean over examples of arccos(cos(x_l, x_m)) / pi, l < m: (L + 1, L + 1), zero elsewhere.

    x_l is the sentence token as layer l left it, x_0 the embedding output: entry (l, l + n) is the
    d(x^l, x^(l+n)) of Gromov et al. 2024, "The Unreasonable Ineffectiveness of the Deeper Layers",
    which takes a decoder's last token. 0 is the same direction, 0.5 at right angles, 1 opposite.
    Raises ValueError when there is no example.
    """
    return np.triu(_mean(map(_angles, batches)).cpu().numpy(), k=1)


def _angles(states: LayerStates) -> tuple[torch.Tensor, int]:
    vectors = torch.stack(states.sentence()).double()  # (L + 1, B, H)
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    cosines = torch.einsum("lbh,mbh->lmb", vectors, vectors).clamp(-1, 1)  # rounding: 1 + eps
    return cosines.acos().sum(dim=-1) / math.pi, vectors.shape[1]


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
    Raises ValueError when there is no example.
    """
    kept = sorted(kept_layers)

    def sums() -> Iterator[tuple[torch.Tensor, int]]:
        for before, after in zip(pretrained, finetuned, strict=True):
            pairs = enumerate([0, *kept])
            cosines = [_cosines(before, layer, after, place) for place, layer in pairs]
            yield torch.stack(cosines), len(before.mask)

    means = _mean(sums()).tolist()
    return [LayerSimilarity(layer, *both) for layer, both in zip([0, *kept], means, strict=True)]


def _cosines(before: LayerStates, layer: int, after: LayerStates, place: int) -> torch.Tensor:
    """Sums over a batch's examples: (2,), of the sentence token and of the per-text token mean."""
    old, new = before.layers[layer], after.layers[place].to(before.mask.device)
    cosines = torch.cosine_similarity(old.double(), new.double(), dim=2)  # (B, T)
    sentence = cosines.gather(1, before.sentence_at[:, None])
    real = cosines.where(before.mask, 0.0)  # what is at padding may be nan
    tokens = real.sum(dim=1) / before.mask.sum(dim=1)
    return torch.stack([sentence.sum(), tokens.sum()])


Vectors = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


def sentence_vectors(batches: Iterable[LayerStates]) -> Vectors:
    """The sentence token after the embeddings and after each layer: (L + 1, N, H).

    Takes (L + 1) x N x H x 4 bytes, twice that for a moment: 0.4 GB for 10,000 rows of
    bert-base-cased. The caller limits the rows.
    """
    parts = [
        np.stack([vectors.float().cpu().numpy() for vectors in states.sentence()])
        for states in batches
    ]
    return np.concatenate(parts, axis=1)


def probe_scores(
    train_vectors: Vectors,
    train_labels: Array,
    dev_vectors: Vectors,
    dev_labels: Array,
    definition: TaskDefinition,
    names: Sequence[str] = (),
) -> list[dict[str, float]]:
    """The task's metrics, on the dev rows, of a probe of each layer, the embedding output first.

    Vectors are (L + 1, N, H) as from `sentence_vectors`, labels (N,) classes or numbers. The probe
    is scikit-learn's LogisticRegression (lbfgs, C=1) or, for regression, Ridge (alpha=1), on
    features standardised over the train rows. A class without train rows is never predicted.
    """
    fit = kind_of(definition).probe
    scores = []
    for train, dev in zip(train_vectors, dev_vectors, strict=True):
        features = _standardised(train, dev)
        logits = fit(*features, train_labels)
        scores.append(score(definition, dev_labels, logits, names))
    return scores


def _standardised(train: Vectors, dev: Vectors) -> tuple[Array, Array]:
    """Features in float64, standardised by the train rows' mean and deviation. A feature that is
    constant up to float32's rounding becomes 0, not blown-up noise: at BERT's embedding output all
    sentence tokens are equal."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(train.astype(np.float64))
    noise = 4 * np.finfo(np.float32).eps * np.abs(scaler.mean_)
    real = np.sqrt(scaler.var_) > noise
    return scaler.transform(train) * real, scaler.transform(dev) * real
