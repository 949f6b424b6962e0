"""Probes of layers: what they score where the answer is known."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lp_sweep.trials.measures.influence import probe_scores
from lp_sweep.trials.spec.specs import TaskDefinition

CLASSES = TaskDefinition(text_columns=("t",), metric="accuracy", extra_metrics=("macro_f1", "mcc"))
NUMBERS = TaskDefinition(
    text_columns=("t",), kind="regression", metric="pearson", extra_metrics=("spearman",)
)


def world(classes: int = 3, rows: int = 240, seed: int = 0):
    """Vectors of three layers: the same in every row, noisy, telling; and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    centres = 4 * rng.normal(size=(classes, 8))
    noise = rng.normal(size=(3, rows, 8))
    vectors = noise + centres[labels] * np.array([0, 0.1, 1])[:, None, None]
    vectors[0] = 5.0
    vectors = vectors.astype(np.float32)
    half = rows // 2
    return vectors[:, :half], labels[:half], vectors[:, half:], labels[half:]


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_scikit_learns_own(classes: int) -> None:
    train, labels, dev, dev_labels = world(classes)
    found = probe_scores(train, labels, dev, dev_labels, CLASSES)
    assert [list(one) for one in found] == [["accuracy", "macro_f1", "mcc"]] * 3
    majority = np.mean(dev_labels == np.bincount(labels).argmax())
    assert found[0] == {"accuracy": majority, "macro_f1": found[0]["macro_f1"], "mcc": 0.0}
    for layer in (1, 2):
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        probe.fit(train[layer].astype(float), labels)
        expected = probe.score(dev[layer].astype(float), dev_labels)
        assert found[layer]["accuracy"] == expected
    assert majority < found[1]["accuracy"] < found[2]["accuracy"]
    assert found[2]["accuracy"] > 0.95
    assert found == probe_scores(train, labels, dev, dev_labels, CLASSES)


@pytest.mark.parametrize("absent", [[1], [0, 2], [0, 1, 3]], ids=str)
def test_a_class_that_no_train_row_has_shifts_nothing(absent: list[int]) -> None:
    """Each dev row of a class that is there is still called by its own number."""
    train, labels, dev, dev_labels = world(4)
    rows, others = ~np.isin(labels, absent), ~np.isin(dev_labels, absent)
    args = (train[:, rows], labels[rows], dev[:, others], dev_labels[others])
    assert probe_scores(*args, CLASSES)[2]["accuracy"] > 0.9
    missed = np.mean(np.isin(dev_labels, absent))
    found = probe_scores(train[:, rows], labels[rows], dev, dev_labels, CLASSES)[2]["accuracy"]
    assert 0.9 * (1 - missed) <= found <= 1 - missed


def test_regression() -> None:
    train, _, dev, _ = world()
    rng = np.random.default_rng(1)
    weights = rng.normal(size=8)
    numbers, dev_numbers = ((v[2] @ weights).astype(np.float32) for v in (train, dev))
    found = probe_scores(train, numbers, dev, dev_numbers, NUMBERS)
    assert found[0] == {"pearson": 0.0, "spearman": 0.0}
    assert found[2]["pearson"] > 0.99
    assert found[1]["pearson"] < 0.9
    probe = make_pipeline(StandardScaler(), Ridge()).fit(train[1].astype(float), numbers)
    expected = np.corrcoef(probe.predict(dev[1].astype(float)), dev_numbers)[0, 1]
    assert found[1]["pearson"] == pytest.approx(expected)


def test_noise_of_the_last_bit_is_no_feature() -> None:
    """As at BERT's embedding output, were its rounding to tell something."""
    train, labels, dev, dev_labels = world(2)
    for vectors, classes in ((train, labels), (dev, dev_labels)):
        vectors[0] = np.where(classes[:, None] == 1, np.nextafter(np.float32(5), 9), 5)
    found = probe_scores(train, labels, dev, dev_labels, CLASSES)[0]
    assert found["mcc"] == 0.0


def test_a_probe_that_does_not_converge_says_nothing() -> None:
    rng = np.random.default_rng(0)
    train = (rng.normal(size=(1, 60, 1)) ** 9 * rng.normal(size=30)).astype(np.float32)
    labels = rng.integers(2, size=60)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("error")
        patch.setattr("lp_sweep.trials.kinds.kind.PROBE_ITERATIONS", 1)
        assert probe_scores(train, labels, train, labels, CLASSES)[0]["accuracy"] > 0.4
