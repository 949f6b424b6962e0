"""When a folder is the network that was scored, and when another: near is not always equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lp_sweep.orchestrator.export.verify import (
    AnswerPair,
    FolderAnswers,
    Nearness,
    RecordedAnswers,
    Verification,
    verify,
)
from lp_sweep.storage.errors import ExportError
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import score

TASK = TaskDefinition(text_columns=("text",))
NUMBERS = TaskDefinition(text_columns=("text",), kind="regression", metric="pearson")
LABELS = np.array([0, 1, 1, 0, 1])
LOGITS = np.array([[2, 1], [-1, 3], [0, 1e-6], [1, 0], [3, -2]], np.float32)
SAME, OTHER = Nearness(1e-5, True), Nearness(1e-3, False)
BF16 = Nearness(1e-1, False, 2e-2, float("inf"))


def checked(
    values: np.ndarray,
    *,
    nearness: Nearness = SAME,
    definition: TaskDefinition = TASK,
    truth: np.ndarray = LABELS,
    logits: np.ndarray = LOGITS,
    recorded: float | None = None,
    **answer: Any,
) -> Verification:
    whole = score(definition, truth, logits)[definition.metric]
    names = () if definition.kind == "regression" else ("no", "yes")
    expected = RecordedAnswers(names, truth, whole if recorded is None else recorded, nearness)
    told: dict[str, Any] = {"missing": {"A": []}, "labels": ["no", "yes"]} | answer
    answers = FolderAnswers(values, told["missing"], told["labels"])
    return verify(answers, AnswerPair(definition, logits, values), expected)


def test_the_same_logits_are_the_network_and_rounding_is_allowed() -> None:
    found = checked(LOGITS)
    assert (found.examples, found.largest_difference, found.other_labels) == (5, 0.0, 0)
    assert found.score == found.recorded_score == 0.8
    assert found.tolerance == pytest.approx(3e-5), "of the largest logit"

    assert checked(_moved(2e-5)).largest_difference == pytest.approx(2e-5, rel=1e-2)
    with pytest.raises(ExportError, match=r"a logit differs from the stored one by 0\.0001"):
        checked(_moved(1e-4))
    assert checked(_moved(1e-4), nearness=OTHER).other_labels == 0


def _moved(by: float, row: int = 0) -> np.ndarray:
    values = LOGITS.copy()
    values[row, 0] += by
    return values


def test_a_tie_may_break_the_other_way_only_elsewhere() -> None:
    near = _moved(2e-6, row=2)
    with pytest.raises(ExportError, match="1 dev examples get another label"):
        checked(near)
    found = checked(near, nearness=OTHER)
    assert found.other_labels == 1
    assert (found.score, found.recorded_score) == (0.6, 0.8)


@pytest.mark.parametrize(
    ("values", "change", "message"),
    [
        (LOGITS[:4], {}, r"its logits are \(4, 2\), expected are \(5, 2\)"),
        (_moved(float("nan")), {}, "no numbers"),
        (LOGITS, {"labels": ["yes", "no"]}, "names the classes"),
        (LOGITS, {"missing": {"A": ["head.weight"]}}, "A finds 1 weights missing"),
        (LOGITS, {"recorded": 0.6}, r"the stored logits give 80\.0000, the record 60\.0000"),
    ],
    ids=["rows", "nan", "classes", "missing", "score"],
)
def test_another_network(values: np.ndarray, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        checked(values, **change)


def test_numbers_are_near() -> None:
    labels = np.array([0.0, 1.0, 2.0, 3.0], np.float32)
    logits = np.array([[0.1], [0.8], [2.2], [2.9]], np.float32)
    kind = {"definition": NUMBERS, "truth": labels, "logits": logits}
    found = checked(logits + np.float32(1e-5), **kind)
    assert found.score == pytest.approx(found.recorded_score, abs=1e-5)
    with pytest.raises(ExportError, match="a logit differs"):
        checked(logits * np.float32(1.01), **kind)


def test_in_bf16_one_logit_may_differ_by_more_than_all_of_them() -> None:
    """If a network is unsure of all its answers, those of a wrong network are near to them: for
    example after two layers were swapped, which gave a sixth of the examples other labels."""
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 0.04, (60, 2)).astype(np.float32)
    kind = {"truth": draw.integers(0, 2, 60), "logits": logits, "nearness": BF16}
    one = logits.copy()
    one[0, 0] += 0.09
    assert checked(one, **kind).largest_difference == pytest.approx(0.09)
    other = logits + draw.choice([-0.05, 0.05], logits.shape).astype(np.float32)
    with pytest.raises(ExportError, match=r"differ from the stored ones by 0\.05 \(root mean"):
        checked(other, **kind)


def test_in_bf16_a_correlation_moves_with_the_logits() -> None:
    """By more than 0.01 points, where they are close together: it is the network all the same."""
    draw = np.random.default_rng(0)
    labels = draw.uniform(0, 5, 600).astype(np.float32)
    logits = (2.9 + 0.004 * labels + draw.normal(0, 0.02, 600)).astype(np.float32)[:, None]
    rounded = logits + draw.normal(0, 0.005, logits.shape).astype(np.float32)
    kind = {"definition": NUMBERS, "truth": labels, "logits": logits}
    found = checked(rounded, nearness=BF16, **kind)
    assert abs(found.score - found.recorded_score) > 1e-3
    with pytest.raises(ExportError, match="its pearson on the dev set is"):
        checked(rounded, nearness=BF16._replace(correlation=1e-4), **kind)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({}, Nearness(1e-5, True)),
        ({"device_name": "another CPU"}, Nearness(1e-4, True)),
        ({"device_type": "cuda", "device_name": "H200"}, Nearness(1e-3, False)),
        ({"precision_used": "bf16"}, BF16),
    ],
    ids=["here", "another CPU", "a GPU", "bf16"],
)
def test_nearness_depends_on_where_it_was_trained(
    record: dict[str, str], expected: Nearness
) -> None:
    here = {"precision_used": "fp32", "device_type": "cpu", "device_name": "this CPU"}
    assert Nearness.of(here | record, "cpu", "this CPU") == expected
    of_gpu = {"precision_used": "fp32", "device_type": "cuda", "device_name": "H200"}
    assert Nearness.of(of_gpu, "cuda", "H200") == Nearness(1e-4, False)
