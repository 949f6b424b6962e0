"""Linear classifiers on each layer's sentence token: Figure 4 of Poor Man's BERT
(Sajjad et al. 2020).

The network is frozen; only scikit-learn's linear models are fitted, deterministically.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.states import LayerStates
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import score

Vectors = npt.NDArray[np.float32]
Array = npt.NDArray[Any]


def sentence_vectors(batches: Iterable[LayerStates]) -> Vectors:
    """The sentence token after the embeddings and after each layer: (L + 1, N, H).

    Takes (L + 1) x N x H x 4 bytes, twice that for a moment: 0.4 GB for 10,000 rows of
    bert-base-cased. The caller limits the rows. Raises ValueError when there is no example.
    """
    parts = [
        np.stack([vectors.float().cpu().numpy() for vectors in states.sentence()])
        for states in batches
    ]
    if not parts:
        raise ValueError("no examples to take vectors of; give at least one batch.")
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
    Raises ValueError without train or dev rows.
    """
    if not len(train_labels) or not len(dev_labels):
        raise ValueError(
            f"probes: {len(train_labels)} train rows and {len(dev_labels)} dev rows; both are "
            "needed."
        )
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
