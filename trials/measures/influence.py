"""Measures of layers, from a network's states: how little each layer changes them, how far
fine-tuning moved them, and what a linear classifier finds in them.

Takes the states batch by batch; chooses no layers. Only scikit-learn's linear models are fitted,
deterministically: Figure 4 of Poor Man's BERT (Sajjad et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.kind import Later
from lp_sweep.trials.measures.subject import LayerValues, NamedValue, Subject, finite
from lp_sweep.trials.model.states import LayerStates, layer_states
from lp_sweep.trials.spec.specs import ProfileSpec, TaskDefinition
from lp_sweep.trials.train.metrics import score


def cosines(subject: Subject, spec: ProfileSpec, *, only_sentence: bool) -> LayerValues:
    values = mean_cosines(subject.states(only_sentence=only_sentence))
    return LayerValues(layers=list(zip(subject.layers, values, strict=True)))


def mean_cosines(batches: Iterable[LayerStates]) -> list[float]:
    """Mean cosine between what each layer receives and returns, in order: L numbers.

    Over sentence tokens alone it is a layer's contribution. Over all real tokens it is the pooled
    token mean (all tokens of all examples count once), and 1 - this is Block Influence (ShortGPT,
    Men et al. 2024, section 2.2): a layer with a high value changes little. `similarity` has the
    per-text token mean, which averages each text first. Sums are kept in float64, so batching
    doesn't matter. Raises ValueError when there is no example.
    """
    means: list[float] = _mean(map(_layer_cosines, batches)).tolist()
    return means


def _layer_cosines(states: LayerStates) -> tuple[torch.Tensor, int]:
    """Sums over the tokens of a batch, (L,) float64, and their number."""
    pairs = zip(states.inputs, states.layers[1:], strict=True)
    both = ((before[states.mask].double(), after[states.mask].double()) for before, after in pairs)
    sums = [torch.cosine_similarity(before, after, dim=1).sum() for before, after in both]
    return torch.stack(sums), int(states.mask.sum())


def _mean(batches: Iterable[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """The mean over examples, from each batch's sum and number. Raises ValueError for none."""
    sums, count = torch.zeros(0), 0
    for added, number in batches:
        sums = added + sums if count else added
        count += number
    if not count:
        raise ValueError("no examples to compare layers on; give at least one batch.")
    return sums / count


def angular(subject: Subject, spec: ProfileSpec) -> LayerValues:
    """From `layer` to `other`, both in: how far the sentence token turns."""
    distances, layers = angular_distances(subject.states(only_sentence=True)), subject.layers
    return LayerValues(
        values=[
            NamedValue("angular", layers[i], [0, *layers][j], float(distances[i, j]))
            for i, j in combinations(range(len(layers) + 1), 2)
        ]
    )


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


def similarity(subject: Subject, spec: ProfileSpec) -> LayerValues:
    """For each layer `mean_similarities` with the pre-trained network, 0: the embedding output."""
    pretrained = layer_states(subject.other(), subject.dev_batches())
    means = mean_similarities(pretrained, subject.states(), subject.layers)
    return LayerValues(
        values=[
            NamedValue(name, layer, layer, finite(value))
            for layer, both in zip([0, *subject.layers], means, strict=True)
            for name, value in zip(("sentence", "tokens"), both, strict=True)
        ]
    )


def mean_similarities(
    pretrained: Iterable[LayerStates],
    finetuned: Iterable[LayerStates],
    kept_layers: Sequence[int],
) -> npt.NDArray[np.float64]:
    """Mean cosines between the pre-trained and the fine-tuned state of the embedding output and of
    each kept layer, (K + 1, 2): of the sentence token, and the per-text token mean (over a text's
    real tokens, then over texts).

    The states of both networks over the same batches. `pretrained` has all its layers, `finetuned`
    those in `kept_layers` (1-based, ascending). Sums are kept in float64, so batching doesn't
    matter. Raises ValueError when there is no example.
    """

    def sums() -> Iterator[tuple[torch.Tensor, int]]:
        for before, after in zip(pretrained, finetuned, strict=True):
            pairs = enumerate([0, *kept_layers])
            cosines = [_cosines(before, layer, after, place) for place, layer in pairs]
            yield torch.stack(cosines), len(before.mask)

    return np.asarray(_mean(sums()).cpu().numpy())


def _cosines(before: LayerStates, layer: int, after: LayerStates, place: int) -> torch.Tensor:
    """Sums over a batch's examples: (2,), of the sentence token and of the per-text token mean."""
    old, new = before.layers[layer], after.layers[place].to(before.mask.device)
    cosines = torch.cosine_similarity(old.double(), new.double(), dim=2)  # (B, T)
    sentence = cosines.gather(1, before.sentence_at[:, None])
    real = cosines.where(before.mask, 0.0)  # what is at padding may be nan
    tokens = real.sum(dim=1) / before.mask.sum(dim=1)
    return torch.stack([sentence.sum(), tokens.sum()])


def probes(subject: Subject, spec: ProfileSpec) -> LayerValues:
    """For each layer `probe_scores`, fitted to at most `spec.rows` train rows (always the same)."""
    train = subject.encoded.train
    rows = np.random.default_rng(0).permutation(len(train))[: spec.rows]
    chosen = rows[np.argsort(train.lengths[rows], kind="stable")]  # as `batches` has them
    dev = np.argsort(subject.dev.lengths, kind="stable")
    learned = layer_states(subject.model, subject.batches(train, rows), only_sentence=True)
    scores = probe_scores(
        _sentence_vectors(learned),
        np.asarray(train.labels)[chosen],
        _sentence_vectors(subject.states(only_sentence=True)),
        np.asarray(subject.dev.labels)[dev],
        spec.task,
        subject.encoded.label_names,
    )
    return LayerValues(
        values=[
            NamedValue(metric, layer, None, finite(value))
            for layer, metrics in zip([0, *subject.layers], scores, strict=True)
            for metric, value in metrics.items()
        ]
    )


preprocessing: Any = Later("sklearn.preprocessing")
Vectors = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


def _sentence_vectors(batches: Iterable[LayerStates]) -> Vectors:
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

    Vectors are (L + 1, N, H) as from `_sentence_vectors`, labels (N,) classes or numbers. The probe
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
    scaler = preprocessing.StandardScaler().fit(train.astype(np.float64))
    noise = 4 * np.finfo(np.float32).eps * np.abs(scaler.mean_)
    real = np.sqrt(scaler.var_) > noise
    return scaler.transform(train) * real, scaler.transform(dev) * real
