"""Several labels for a text: what a file may hold, scores, losses, thresholds, a trial."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import f1_score, precision_recall_curve

from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import load_task
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import majority_score, mean_average_precision, of_tally, score
from lp_sweep.trials.train.thresholds import best_thresholds, fold, unfold, unfolded
from tests.support.everyday import few
from tests.support.families import NAMES
from tests.support.fastnets import assert_within_1e5, network
from tests.support.kindworlds import in_order, label_world, labelled
from tests.support.plain_jobs import done
from tests.support.rows import files, parquet
from tests.support.toyworld import RECIPE

KIND = KINDS["multi_label"]
LISTS = TaskDefinition(text_columns=("text",), kind="multi_label", metric="micro_f1")
COLUMNS = replace(LISTS, label_columns=("joy", "fear"))
MARKS = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0]], np.int8)
LOGITS = np.array([[2, -1, -1], [1, -1, 3], [0.5, 2, -2], [-1, -2, 1]], np.float32)


def lists(folder: Path, values: Any, names: list[str] | None = None) -> TaskSource:
    return parquet(folder, names, text=pa.array(["t"] * len(values)), label=pa.array(values))


# -- what a file holds


@pytest.mark.parametrize(
    ("values", "labels", "classes", "names", "marks"),
    [
        ([["b", "a"], ["a"]], "", None, "a b", [[1, 1], [1, 0]]),
        ([["b"], []], "b c a", None, "b c a", [[1, 0, 0], [0, 0, 0]]),
        ([[10, 9], [9]], "", None, "9 10", [[1, 1], [1, 0]]),
        ([[1], [0, 1]], "joy fear", None, "joy fear", [[0, 1], [1, 1]]),
        ([[2], [0, 2]], "", ["joy", "fear", "awe"], "joy fear awe", [[0, 0, 1], [1, 0, 1]]),
        ([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]], "a b c", None, "a b c", [[0, 1, 0], [1, 1, 0]]),
        ([[True, False], [True, True]], "a b", None, "a b", [[1, 0], [1, 1]]),
        ([[0, 1], [1, 0]], "a b c", None, "a b c", [[1, 1, 0], [1, 1, 0]]),
    ],
    ids=["names", "own order, and none", "numbers", "positions", "the file's classes",
         "marks", "truth values", "two positions of three"],
)  # fmt: skip
def test_lists_of_labels(
    tmp_path: Path, values: Any, labels: str, classes: list[str] | None, names: str, marks: Any
) -> None:
    definition = replace(LISTS, labels=tuple(labels.split()))
    task = load_task(definition, lists(tmp_path, values, classes))
    assert (" ".join(task.label_names), task.train.labels.tolist()) == (names, marks)


def test_columns_of_marks(tmp_path: Path) -> None:
    rows = "text,joy,fear\na,1,0\nb,0,0\nc,True,1\n"
    task = load_task(COLUMNS, files(tmp_path, rows, rows))
    assert task.label_names == ("joy", "fear")
    assert task.train.labels.tolist() == [[1, 0], [0, 0], [1, 1]]
    numbers = {"joy": pa.array([1.0, 0.0]), "fear": pa.array([True, False])}
    task = load_task(COLUMNS, parquet(tmp_path, text=pa.array(["a", "b"]), **numbers))
    assert task.train.labels.tolist() == [[1, 1], [0, 0]]


WRONG_LISTS = {
    "marks": ([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], "row 1 has 3 marks.*no name.*`labels:"),
    "marks of two lengths": ([[0, 1], [1, 0, 0]], "row 2 has 3 marks"),
    "grades": ([[0, 2, 1], [0, 0, 3]], "row 2 has the label '0' twice"),
    "words for marks": ([["yes", "no", "no"], ["no", "yes", "no"]], "row 1 has the label 'no'"),
    "empty": ([["a"], [], ["b"]], "empty list in 1 of 3 rows, first in row 2.*`labels:"),
    "one label": ([["a"], ["a"]], "one label.*'a'.*kind: classification"),
    "texts": (["a", "b"], r"holds string, not lists.*`label: \[first, second\]`"),
    "fractions": ([[0.5], [1.0]], "lists of double.*names or whole numbers"),
}


@pytest.mark.parametrize(("values", "message"), WRONG_LISTS.values(), ids=WRONG_LISTS)
def test_wrong_lists(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(MissingInputError, match=message) as caught:
        load_task(LISTS, lists(tmp_path, values))
    assert str(tmp_path / "rows.parquet") in str(caught.value)


def test_an_unknown_label_of_a_dev_row(tmp_path: Path) -> None:
    train = '{"text": "t", "label": ["joy"]}\n{"text": "t", "label": ["fear"]}\n'
    source = files(tmp_path, train, train.replace('"fear"', '"joy", "faer"'), kind="jsonl")
    with pytest.raises(MissingInputError, match=r"validation.*'faer'.*row 2.*Did you mean 'fear'"):
        load_task(LISTS, source)


def test_wrong_marks(tmp_path: Path) -> None:
    rows = "text,joy,fear\na,1,0\nb,0,2\n"
    with pytest.raises(MissingInputError, match=r"train.csv.*'fear' must hold 0 or 1.*row 2.*'2'"):
        load_task(COLUMNS, files(tmp_path, rows, rows))
    nested = parquet(tmp_path, text=pa.array(["a"]), joy=pa.array([1]), fear=pa.array([[1]]))
    with pytest.raises(MissingInputError, match=r"'fear' must hold 0 or 1.*row 1 holds \[1\]"):
        load_task(COLUMNS, nested)


# -- scores and losses


def test_scores_are_those_of_scikit_learn() -> None:
    definition = replace(LISTS, extra_metrics=("macro_f1", "mean_average_precision"))
    found = score(definition, MARKS, LOGITS)
    assert found["micro_f1"] == pytest.approx(f1_score(MARKS, LOGITS > 0, average="micro"))
    assert found["macro_f1"] == pytest.approx(f1_score(MARKS, LOGITS > 0, average="macro"))
    # of label 1: right at ranks 1 and 3; of label 2 at rank 1; of label 3 at ranks 1 and 3
    assert found["mean_average_precision"] == pytest.approx(((1 + 2 / 3) / 2 * 2 + 1) / 3)


def test_a_label_that_nobody_has_and_nobody_gives_is_left_out() -> None:
    marks, logits = np.pad(MARKS, ((0, 0), (0, 1))), np.pad(LOGITS, ((0, 0), (0, 1)))
    for metric in KIND.metrics:
        definition = replace(LISTS, metric=metric)
        assert score(definition, marks, logits) == score(definition, MARKS, LOGITS), metric
    assert mean_average_precision(np.zeros_like(MARKS), LOGITS) == 0.0


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1"])
def test_rows_add_up_to_the_score(metric: str) -> None:
    """Also of some of the rows, as resampling takes them."""
    for rows in ([0, 1, 2, 3], [0, 0, 3], [1]):
        tally = KIND.tally(metric, MARKS[rows], LOGITS[rows], ())
        assert tally is not None
        expected = score(replace(LISTS, metric=metric), MARKS[rows], LOGITS[rows])[metric]
        assert of_tally(tally) == pytest.approx(expected)
    assert KIND.tally("mean_average_precision", MARKS, LOGITS, ()) is None


def test_always_the_same_labels() -> None:
    train = np.array([[1, 0, 0], [1, 0, 0], [1, 0, 1], [-1, -1, -1]], np.int8)
    assert KIND.counts(train, 3).tolist() == [3, 0, 1]
    assert KIND.guess(train, "micro_f1", 1).tolist() == [1, -1, -1]
    # label 2 never occurs: giving it would add a zero to the mean
    assert KIND.guess(train, "macro_f1", 1).tolist() == [1, -1, 1]
    macro, rare = replace(LISTS, metric="macro_f1"), MARKS * np.array([1, 0, 1], np.int8)
    found = majority_score(macro, rare)
    for given in itertools.product([-1.0, 1.0], repeat=3):
        logits = np.tile(np.array(given), (len(rare), 1))
        assert score(macro, rare, logits)["macro_f1"] <= found
    # labels 1 and 3 of 4 rows: four of the eight rightly, and four of the five that there are
    assert majority_score(LISTS, MARKS) == pytest.approx(2 * 4 / (8 + 5))


def test_losses() -> None:
    logits, target = torch.from_numpy(LOGITS), torch.from_numpy(MARKS)
    expected = torch.nn.BCEWithLogitsLoss()(logits, target.float())
    assert KIND.mean_loss(logits, target) == pytest.approx(float(expected))
    both = torch.cat([target, torch.from_numpy(KIND.no_labels(4, 3))])
    found = KIND.labelled_loss(torch.cat([logits, logits * 9]), both)
    assert found == pytest.approx(float(expected) / 2)
    student = logits.clone().requires_grad_()  # the teacher's own logits are the best
    KIND.imitation_loss(student, logits, 2.0).backward()
    assert student.grad is not None
    assert float(student.grad.abs().max()) < 1e-7


def test_a_probe_of_a_label_that_all_or_no_rows_have() -> None:
    vectors = np.array([[0.0], [1.0], [2.0], [3.0]])
    labels = np.array([[0, 1, 0], [0, 1, 0], [1, 1, 0], [1, 1, 0]], np.int8)
    found = KIND.probe(vectors, vectors, labels)
    assert (found > 0).astype(int).tolist() == labels.tolist()


# -- thresholds


def test_thresholds_give_the_highest_f1_of_each_label() -> None:
    draw = np.random.default_rng(3)
    marks = draw.integers(0, 2, (40, 3)).astype(np.int8)
    logits = (draw.normal(size=marks.shape) + marks).round(1).astype(np.float32)  # some are equal
    found = best_thresholds(marks, logits, "macro_f1")
    for label in range(3):
        right, all_of, _ = precision_recall_curve(marks[:, label], logits[:, label])
        highest = (2 * right * all_of / np.maximum(right + all_of, 1e-9)).max()
        given = logits[:, label] > found[label]
        assert f1_score(marks[:, label], given) == pytest.approx(highest)
    assert best_thresholds(np.zeros_like(marks), logits, "macro_f1").tolist() == [0, 0, 0]


@settings(max_examples=settings().max_examples // 2)
@drawn(st.integers(0, 10_000))
def test_thresholds_give_the_highest_micro_f1(seed: int) -> None:
    """No combination of cuts has a higher one, also where a label is best never given."""
    draw = np.random.default_rng(seed)
    marks = (draw.random((9, 3)) < [0.6, 0.3, 0.1]).astype(np.int8)
    logits = (draw.normal(size=marks.shape) + marks).round(1).astype(np.float32)
    cuts = [np.append(np.unique(of) - 0.05, of.max() + 0.05) for of in logits.T]
    every = (logits > np.array(each) for each in itertools.product(*cuts))
    sums = ((2 * (marks & given).sum(), marks.sum() + given.sum()) for given in every)
    highest = max(part / max(1, whole) for part, whole in sums)
    given = logits > best_thresholds(marks, logits, "micro_f1")
    assert f1_score(marks, given, average="micro", zero_division=0) == pytest.approx(highest)


@pytest.mark.parametrize("name", few(NAMES, 2))
def test_a_head_takes_thresholds_and_gives_them_back(name: str) -> None:
    model = network(name).eval()
    ids = torch.tensor([[5, 6, 7]])
    before = model(input_ids=ids).logits.detach().numpy()
    marks = np.eye(model.config.num_labels, dtype=np.int8)
    logits = marks * 3.0 - 1
    fold(model, marks, logits, "macro_f1")
    found = model(input_ids=ids).logits.detach().numpy()
    assert_within_1e5(found, before - best_thresholds(marks, logits, "macro_f1"))
    with unfolded(model):
        np.testing.assert_array_equal(model(input_ids=ids).logits.detach().numpy(), before)
    np.testing.assert_array_equal(model(input_ids=ids).logits.detach().numpy(), found)
    unfold(model)
    np.testing.assert_array_equal(model(input_ids=ids).logits.detach().numpy(), before)


# -- a trial


def test_a_head_begins_with_how_common_each_label_is(tmp_path: Path, store: Store) -> None:
    still = {"recipe": RECIPE | {"learning_rate": 1e-12, "epochs": 1}}
    full, _ = in_order(label_world(tmp_path / "world", **still))
    done(store, full)
    logits = np.array([row["scores"] for row in store.read("predictions", full["id"])])
    given = [[name in row["label"] for name in ("bad", "good", "none")] for row in labelled(320, 1)]
    np.testing.assert_allclose(expit(logits.mean(0)), np.mean(given, 0), atol=0.1)
    unknown = np.array([[1, 0], [1, 0], [0, 1], [-1, -1]], np.int8)
    np.testing.assert_allclose(KIND.first_bias(unknown), np.log([3 / 2, 2 / 3]))


@pytest.mark.parametrize(
    "procedure",
    [
        "finetune_then_drop",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("direct", "iterative 1")),
    ],
)
def test_tuned_thresholds_are_in_the_stored_logits(
    procedure: str, tmp_path: Path, store: Store
) -> None:
    """After few steps no probability of a label is above 0.5; a threshold of its own finds it."""
    few = {
        "recipe": RECIPE
        | {"compute": "fast", "epochs": 1, "learning_rate": 3e-4, "limit_train": 160}
    }
    few["procedures"] = [procedure]
    names = ("bad", "good", "none")
    marks = np.array([[name in row["label"] for name in names] for row in labelled(60, 2)])
    scores = {}
    for tuned in (False, True):
        file = label_world(tmp_path / str(tuned), {"tune_thresholds": tuned}, **few)
        for job in in_order(file):
            record = done(store, {**job, "keep": "all"})
        scores[tuned] = record["last"]
        stored = sorted(store.read("predictions", job["id"]), key=lambda row: row["example"])
        given = np.array([row["scores"] for row in stored]) > 0
        assert [row["label"] for row in stored] == marks.sum(1).tolist()
        assert [row["prediction"] for row in stored] == given.sum(1).tolist()
        of_sklearn = f1_score(marks, given, average="micro", zero_division=0)
        assert record["last"] == pytest.approx(of_sklearn)
        assert of_tally(np.array([row["tally"] for row in stored])) == pytest.approx(of_sklearn)
    assert scores[True] > scores[False]


@pytest.mark.slow
def test_students_and_second_trainings_get_the_head_without_thresholds(
    tmp_path: Path, store: Store
) -> None:
    """So tuned thresholds change no loss."""
    changes = {
        "recipe": RECIPE | {"epochs": 1, "limit_train": 16},
        "procedures": ["finetune_then_drop"],
        "distill": ["none", "logits"],
    }
    losses: dict[bool, dict[str, Any]] = {}
    for tuned in (False, True):
        file = label_world(tmp_path / str(tuned), {"tune_thresholds": tuned}, **changes)
        plan = make_plan(resolve(load_sweep(file)), WorkHistory.nothing())
        losses[tuned] = {}
        for work in sorted(plan.trials.values(), key=lambda work: work.lesson is not None):
            job = plan.job(work, network=True).to_plain()
            place = {"cache_dir": str(tmp_path / "cache"), "device": "cpu", "threads": 1}
            name = describe(work)
            losses[tuned][name] = done(store, {**job, **place})["train_losses"]
        [taught] = [item for items in plan.measures.values() for item in items]
        logits = store.read("teacher_logits", taught.id)
        losses[tuned]["logits"] = [row["scores"] for row in logits]
    assert len(losses[True]) == 1 + 2 + 1
    assert losses[True] == losses[False]
