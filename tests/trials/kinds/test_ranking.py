"""Cross-encoders: rows of query and passage, rankings of each query, two losses, a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import doubtful_rows, load_task
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.kinds import KINDS, kind_of
from lp_sweep.trials.kinds.rankmetrics import chance_ndcg, ndcg
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import majority_score, of_tally, score
from tests.support.everyday import few
from tests.support.kindworlds import in_order, ranked, ranking_world, write
from tests.support.plain_jobs import done

KIND = KINDS["ranking"]
PAIRS = TaskDefinition(text_columns=("q", "p"), label_column="r", kind="ranking", metric="ndcg@10")
LISTWISE = replace(PAIRS, loss="listwise")
# queries 0 and 1, not one after the other
LABELS = np.array([[0, 0], [2, 1], [1, 0], [0, 1], [3, 0]], np.float32)
LOGITS = np.array([[0.5], [1.0], [2.0], [3.0], [1.0]], np.float32)


# query, passage, relevance, and the query's number
GOOD = [("x", "a", 0, 7), ("y", "a", 2, 8), ("x", "b", 1, 7), ("y", "c", 0, 8)]


def source(folder: Path, train: Sequence[Any] = GOOD, dev: Sequence[Any] = GOOD) -> TaskSource:
    columns = [dict(zip("qpri", zip(*rows, strict=True), strict=True)) for rows in (train, dev)]
    return TaskSource(files=write(folder, dict(zip(("train", "dev"), columns, strict=True))))


def test_queries_of_a_single_passage_are_noted(tmp_path: Path) -> None:
    found = source(tmp_path, dev=[*GOOD, ("z", "a", 1, 9)])
    [note] = doubtful_rows(load_task(PAIRS, found), found)
    assert "dev.parquet: 1 of 3 queries have a single passage" in note
    assert not [*doubtful_rows(load_task(PAIRS, source(tmp_path)), source(tmp_path))]


def test_rows_of_a_query_are_found_wherever_they_are(tmp_path: Path) -> None:
    task = load_task(PAIRS, source(tmp_path))
    assert task.train.labels.tolist() == [[0, 0], [2, 1], [1, 0], [0, 1]]
    assert (task.num_labels, task.label_names) == (1, ())
    named = load_task(replace(PAIRS, group="i"), source(tmp_path))
    assert named.train.labels.tolist() == task.train.labels.tolist()


WRONG_DEV = {
    "nothing relevant": (
        [*GOOD, ("z", "a", 0, 9), ("z", "b", 0, 9)],
        {},
        "1 of 3 queries have no passage.*above 0.*query 'z' in row 5.*remove these queries",
    ),
    "single passages": ([("x", "a", 1, 7), ("y", "b", 1, 8)], {}, "single passage.*`group:`"),
    "no judgement": ([*GOOD, ("x", "c", None, 7)], {}, "'r' is empty.*row 5.*Write 0"),
    "no number": ([("x", "a", "much", 7)], {}, "relevance as a number, and row 1 holds 'much'"),
    "twice": ([*GOOD, ("x", "b", 1, 7)], {}, "query 'x' has the same passage in rows 3 and 5"),
    "two texts": (
        [*GOOD, ("xx", "c", 1, 7)],
        {"group": "i"},
        "query 7 has two texts in column 'q', in rows 1 and 5",
    ),
    "group of lists": (
        [(*row[:3], [row[3]]) for row in GOOD],
        {"group": "i"},
        "'i' holds list<.*grouped",
    ),
    "no name": ([*GOOD, ("x", "c", 1, None)], {"group": "i"}, "'i' is empty.*row 5"),
}


@pytest.mark.parametrize(("rows", "changes", "message"), WRONG_DEV.values(), ids=WRONG_DEV)
def test_wrong_dev_rows(tmp_path: Path, rows: Any, changes: Any, message: str) -> None:
    with pytest.raises(MissingInputError, match=message) as caught:
        load_task(replace(PAIRS, **changes), source(tmp_path, dev=rows))
    assert str(tmp_path / "dev.parquet") in str(caught.value)


def test_wrong_train_rows(tmp_path: Path) -> None:
    """A query without an answer is a lesson, and no row with one is none."""
    load_task(PAIRS, source(tmp_path, train=[*GOOD, ("z", "a", 0, 9)]))
    for relevance, message in ((0, "no passage is relevant"), (1, "every passage is relevant")):
        with pytest.raises(MissingInputError, match=rf"train.*{message}.*nothing to learn"):
            load_task(PAIRS, source(tmp_path, train=[("x", "a", relevance, 1)]))


def test_limits_take_whole_queries(tmp_path: Path) -> None:
    rows = [(f"q{i // 3}", f"p{i}", int(i % 3 == 0), 0) for i in range(30)]
    task = load_task(
        PAIRS, source(tmp_path, train=rows, dev=rows[:15]), limit_train=10, limit_dev=2
    )
    assert len(task.train) == 9
    assert [*np.unique(task.train.labels[:, 1], return_counts=True)[1]] == [3, 3, 3]
    assert len(task.dev["dev"]) == 3, "at least one query"


# -- scores and losses


def test_scores_are_the_means_of_the_queries() -> None:
    first = ndcg(np.array([1, 3, 0]), np.array([1, 3, 0]), 10)
    second = ndcg(np.array([0, 2]), np.array([0, 2]), 10)
    found = score(replace(PAIRS, extra_metrics=("mrr@10",)), LABELS, LOGITS)
    assert found["ndcg@10"] == pytest.approx((first + second) / 2)
    assert found["mrr@10"] == pytest.approx((1 + 1 / 2) / 2)
    tally = KIND.tally("ndcg@10", LABELS, LOGITS[:, 0], ())
    assert tally is not None
    np.testing.assert_allclose(tally, [[first, 1], [second, 1]])


def test_one_logit_for_all_is_no_ranking() -> None:
    chance = majority_score(PAIRS, LABELS)
    of_each = [chance_ndcg(np.array(each), 10) for each in ([0, 1, 3], [2, 0])]
    assert chance == pytest.approx(np.mean(of_each))
    assert score(PAIRS, LABELS, LABELS[:, :1])["ndcg@10"] == 1.0
    assert score(PAIRS, LABELS, np.ones((5, 1), np.float32))["ndcg@10"] < chance


def test_what_is_stored_gives_the_logits_back() -> None:
    rows = [*KIND.stored(LABELS, LOGITS, "mrr@10", ())]
    assert [row["scores"] for row in rows] == [[0.5, 2.0, 1.0], [1.0, 3.0]]
    assert [row["tally"] for row in rows] == [[1.0, 1.0], [0.5, 1.0]]
    np.testing.assert_array_equal(KIND.restored(LABELS, [row["scores"] for row in rows]), LOGITS)


def test_losses() -> None:
    logits, target = torch.from_numpy(LOGITS), torch.from_numpy(LABELS)
    relevant = torch.tensor([0.0, 1, 1, 0, 1])
    expected = torch.nn.BCEWithLogitsLoss()(logits[:, 0], relevant)
    assert KIND.mean_loss(logits, target) == pytest.approx(float(expected))
    both = torch.cat([target, torch.from_numpy(KIND.no_labels(5, 0))])
    twice = torch.cat([logits, logits])
    assert KIND.labelled_loss(twice, both) == pytest.approx(float(expected) / 2)

    scores = torch.tensor([0.5, 2.0, 1.0]).log_softmax(0)
    first, second = -(scores[1] + 3 * scores[2]) / 4, -torch.tensor([1.0, 3.0]).log_softmax(0)[0]
    kind = kind_of(LISTWISE)
    found = kind.mean_loss(logits, target)
    assert found == pytest.approx(float(first + second) / 5)
    assert kind.labelled_loss(twice, both) == pytest.approx(float(first + second) / 10)
    alone = torch.tensor([[5.0, 0], [0, 1]])
    assert kind.mean_loss(logits[:2], alone) == 0, "one passage is no list"


# -- a trial


@pytest.mark.parametrize("loss", few(["bce", "listwise"], 1))
def test_a_network_learns_to_rank(loss: str, tmp_path: Path, store: Store) -> None:
    full, _ = in_order(ranking_world(tmp_path / "world", {"loss": loss}))
    record = done(store, full)
    assert record["last"] > 0.9 > record["majority"] + 0.1
    assert record["dev_examples"] == 16, "queries"
    stored = sorted(store.read("predictions", full["id"]), key=lambda row: row["example"])
    assert [len(row["scores"]) for row in stored] == [5] * 16
    assert np.mean([row["prediction"] for row in stored]) == pytest.approx(record["last"])
    relevant = [row["relevance"] > 0 for row in ranked(16, 2)]
    assert [row["label"] for row in stored] == np.reshape(relevant, (16, 5)).sum(1).tolist()
    assert of_tally(np.array([row["tally"] for row in stored])) == pytest.approx(record["last"])
