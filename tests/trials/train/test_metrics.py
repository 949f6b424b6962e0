"""Scores against hand numbers and against scikit-learn and scipy themselves."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats
from sklearn import metrics as sk

from lp_sweep.storage.errors import DivergedError
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import METRICS, majority_score, score

pytestmark = pytest.mark.filterwarnings("error")
CLASSES = TaskDefinition(
    text_columns=("t",), metric="accuracy", extra_metrics=("f1", "macro_f1", "mcc")
)
NUMBERS = TaskDefinition(
    text_columns=("t",), kind="regression", metric="pearson", extra_metrics=("spearman",)
)


@given(npst.arrays(np.int64, (2, 30), elements=st.integers(0, 2)))
def test_classes_as_scikit_learn(pair: np.ndarray) -> None:
    labels, predicted = pair
    assert METRICS["accuracy"](labels, predicted) == sk.accuracy_score(labels, predicted)
    assert METRICS["macro_f1"](labels, predicted) == sk.f1_score(
        labels, predicted, average="macro", zero_division=0.0
    )
    binary = np.minimum(pair, 1)
    assert METRICS["f1"](*binary) == sk.f1_score(*binary, zero_division=0.0)
    mcc = METRICS["mcc"](labels, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reference warns of constant sides
        assert mcc == sk.matthews_corrcoef(labels, predicted)


def test_correlations_as_scipy() -> None:
    labels, predicted = np.random.default_rng(1).normal(size=(2, 200)).astype(np.float32)
    for name, reference in (("pearson", stats.pearsonr), ("spearman", stats.spearmanr)):
        expected = reference(labels.astype(np.float64), predicted.astype(np.float64))[0]
        assert METRICS[name](labels, predicted) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["mcc", "pearson", "spearman"])
def test_constant_answers_score_zero(name: str) -> None:
    varied, constant = np.array([0, 1, 1, 0]), np.array([1, 1, 1, 1])
    assert METRICS[name](varied, constant) == 0.0
    assert METRICS[name](constant, varied) == 0.0
    assert METRICS[name](constant[:1], varied[:1]) == 0.0


def test_nearly_constant_answers_do_not_warn() -> None:
    predicted = np.array([2.5, 2.5, np.nextafter(2.5, 3)])
    assert abs(METRICS["pearson"](np.array([1.0, 2.0, 3.0]), predicted)) <= 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_no_numbers_are_no_score(bad: float) -> None:
    with pytest.raises(DivergedError, match="NaN or infinite"):
        score(CLASSES, np.array([0, 1]), np.array([[0.0, 1.0], [bad, 0.0]]))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        *(("accuracy", 0.75), ("f1", 6 / 7), ("mcc", 0.0), ("macro_f1", 3 / 7)),
        *(("roc_auc", 0.5), ("average_precision", 0.75), ("balanced_accuracy", 0.5)),
        *(("weighted_f1", 0.75 * 6 / 7), ("recall@precision80", 0.0)),
    ],
)
def test_no_constant_answer_scores_more_than_the_majority(metric: str, expected: float) -> None:
    """Whatever the train rows are like: a network that gives the other answer has not learned."""
    definition = TaskDefinition(text_columns=("t",), metric=metric)
    dev = np.array([1, 1, 1, 0])
    found = majority_score(definition, dev)
    assert found == pytest.approx(expected)
    for answer in np.eye(2):
        assert score(definition, dev, np.tile(answer, (4, 1)))[metric] <= found
    assert majority_score(definition, dev[:0]) is None
    assert majority_score(NUMBERS, dev.astype(np.float32)) == 0.0


def test_f1_is_of_the_positive_class() -> None:
    """Always guessing it is the majority score: no other constant answer scores anything."""
    named = TaskDefinition(text_columns=("t",), metric="f1", labels=("fraud", "ok"))
    labels = np.array([0, 0, 1, 1, 1, 1])
    logits = np.eye(2)[[0, 1, 1, 1, 1, 0]]
    for positive, scored, majority in (("fraud", 0.5, 0.5), ("ok", 0.75, 0.8), ("", 0.75, 0.8)):
        definition = replace(named, positive=positive)
        assert score(definition, labels, logits, named.labels)["f1"] == scored
        found = majority_score(definition, labels, named.labels)
        assert found == pytest.approx(majority)


def test_a_ranking_of_two_classes_is_by_the_margin_of_the_positive_one() -> None:
    labels = np.array([0, 0, 1, 0, 1, 1])
    logits = np.array([[2, 0], [1, 0], [0, 3], [0, 1], [3, 0], [0, 2]], np.float32)
    for positive, sign in (("ok", 1), ("fraud", -1)):
        marks, margins = labels if sign > 0 else 1 - labels, sign * (logits[:, 1] - logits[:, 0])
        precision, recall, _ = sk.precision_recall_curve(marks, margins)
        for metric, expected in (
            ("roc_auc", sk.roc_auc_score(marks, margins)),
            ("average_precision", sk.average_precision_score(marks, margins)),
            ("recall@precision80", recall[precision >= 0.8].max()),
        ):
            definition = TaskDefinition(
                text_columns=("t",), metric=metric, labels=("fraud", "ok"), positive=positive
            )
            found = score(definition, labels, logits, definition.labels)[metric]
            assert found == pytest.approx(expected), (metric, positive)
    assert METRICS["recall@precision80"](labels, labels.astype(float)) == 1.0


def test_a_ranking_without_one_of_the_classes_scores_as_guessing_does() -> None:
    zeros, margins = np.zeros(3, np.int64), np.arange(3.0)
    assert METRICS["roc_auc"](zeros, margins) == METRICS["roc_auc"](1 - zeros, margins) == 0.5
    for name in ("average_precision", "recall@precision90"):
        assert METRICS[name](zeros, margins) == 0.0
        assert METRICS[name](1 - zeros, margins) == 1.0
    one_class = TaskDefinition(text_columns=("t",), metric="roc_auc")
    assert score(one_class, np.array([0, 1]), np.zeros((2, 1))) == {"roc_auc": 0.5}


@given(npst.arrays(np.int64, (2, 30), elements=st.integers(0, 2)))
def test_classes_by_their_size_or_equally(pair: np.ndarray) -> None:
    weighted = sk.f1_score(*pair, average="weighted", zero_division=0.0)
    assert METRICS["weighted_f1"](*pair) == pytest.approx(weighted)
    recalls = [np.mean(pair[1][pair[0] == label] == label) for label in np.unique(pair[0])]
    assert METRICS["balanced_accuracy"](*pair) == pytest.approx(np.mean(recalls))
