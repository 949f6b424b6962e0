"""Reads the cells for statistics, each with its network, and the networks' answers to the dev rows.

Reads only the main dev split: the first, on which `score` is measured. Answers are matched by the
number of the example, never by the order of rows. Networks that can't be compared give a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.analysis.statistics.resampling import METRICS, TALLY, Array, scores
from lp_sweep.storage.catalog import Catalog
from lp_sweep.trials.spec.scoring import facts_of

# a cell that is listed twice counts once, as in task_table; all strategies share K=0. Leaves out
# cells that a search did not need.
_CELLS = """
WITH networks AS (
    SELECT trial_id, metric, score, coalesce(epoch_metrics[1].split, 'validation') AS split
    FROM trials
)
SELECT
    cells.sweep, cells.model, cells.procedure, cells.bridge, cells.distill, cells.feed_forward,
    cells.strategy, cells.k, cells.threshold, cells.task, cells.seed, cells.cell, cells.depth,
    cells.n_kept, cells.state, cells.score, cells.score_full, cells.change, cells.trial_id,
    cells.full_trial_id, cells.mixed,
    cells.metric || coalesce(' of ''' || cells.positive || '''', '') AS metric,
    own.metric AS own_metric, own.split, whole.metric AS full_metric,
    whole.split AS full_split
FROM cells
LEFT JOIN networks AS own ON own.trial_id = cells.trial_id
LEFT JOIN networks AS whole ON whole.trial_id = cells.full_trial_id
WHERE cells.state <> 'not_needed'
    AND (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], cells.model))
    AND (
        len($strategies::VARCHAR[]) = 0
        OR list_contains($strategies::VARCHAR[], cells.strategy)
    )
QUALIFY row_number() OVER (
    PARTITION BY cells.sweep, cells.model, cells.procedure, cells.feed_forward, cells.strategy,
        cells.k, cells.threshold, cells.task, cells.seed
    ORDER BY cells.cell
) = 1
ORDER BY sweep, cell
"""


def cells(catalog: Catalog, models: Sequence[str], strategies: Sequence[str]) -> list[Row]:
    """One row per cell, in the order of the plan. No name: all models, all strategies."""
    wanted = {"models": list(models), "strategies": list(strategies)}
    rows: list[Row] = catalog.query(_CELLS, wanted).to_pylist()
    return rows


def is_full(cell: Row) -> bool:
    """Whether the cell is K=0: a network with all its layers and their feed-forwards."""
    return bool(cell["n_kept"] == cell["depth"] and cell["feed_forward"] == "none")


def own(cell: Row) -> Network:
    """The network of a finished cell."""
    return Network(cell["trial_id"], cell["own_metric"], cell["split"], cell["score"])


def full(cell: Row) -> Network | None:
    """The network of K=0 of the same seed, if it is done."""
    if cell["full_trial_id"] is None:
        return None
    place = (cell["full_trial_id"], cell["full_metric"], cell["full_split"])
    return Network(*place, cell["score_full"])


def setting(cell: Row) -> tuple[Any, ...]:
    """All keys of a cell except its seed. The k of a threshold is a result, not a setting."""
    fixed = cell["k"] if cell["threshold"] is None else None
    place = (cell["sweep"], cell["model"], cell["procedure"], cell["feed_forward"])
    return (*place, cell["strategy"], fixed, cell["threshold"], cell["task"])


def by_setting(rows: Sequence[Row]) -> list[list[Row]]:
    """The cells of each setting, one per seed."""
    return list(grouped(rows, setting).values())


_KEPT_IN_MEMORY = 128  # networks; 0.8 MB each on QQP
_READ_TOGETHER = 1_000_000  # answers: 40 MB
_KEPT_CHUNKS = 4
_SAME_SCORE = 1e-4  # points: a recorded score comes from the same numbers


class Network(NamedTuple):
    """A finished trial: the part that statistics need."""

    trial_id: str
    metric: str
    split: str  # the main dev split
    score: float | None  # points
    record: str = ""  # the trial whose record names the class that f1 scores; "": this one


class Answers(NamedTuple):
    examples: Array  # (n,) ascending
    labels: Array
    predicted: Array  # (n,); for a metric that is a ratio of sums, tallies (n, 2m)
    score: float | None  # points, from these answers; None if it can't be computed


_NO_ANSWERS = Answers(np.array([]), np.array([]), np.array([]), None)


class AnswerSheet(NamedTuple):
    """Several networks' answers to the same examples."""

    metric: str  # a metric of `resampling`
    labels: Array  # (n,)
    predicted: Array  # (n, networks), or (n, networks, 2m)


Reader = Callable[[Network], Answers]


# the networks of a model and task stand together
_CHUNKS = """
SELECT trial_id,
    sum(count(*)) OVER (ORDER BY any_value(model), any_value(task), trial_id) // $size AS chunk
FROM predictions LEFT JOIN trials USING (trial_id)
GROUP BY trial_id
"""
_POSITIVE = "SELECT trial_id, positive_label FROM trials WHERE positive_label IS NOT NULL"
# DISTINCT counts a copied file once
_ANSWERS = """
SELECT trial_id, split, list(example ORDER BY example) AS examples,
    list(label ORDER BY example) AS labels, list({prediction} ORDER BY example) AS predicted,
    list(tally ORDER BY example) FILTER (tally IS NOT NULL) AS tallies
FROM (
    SELECT DISTINCT ON (trial_id, split, example) * FROM predictions
    WHERE list_contains($trials, trial_id)
)
GROUP BY ALL
"""
_MARGIN = "scores[2]::DOUBLE - scores[1]::DOUBLE"  # of class 1, from the logits


def reader(catalog: Catalog) -> Reader:
    """A function that reads a network's answers, and with them those of the networks beside it: a
    query for each of thousands takes minutes."""

    @cache
    def column(query: str, **given: int) -> dict[str, int]:
        names, values = catalog.query(query, given).columns
        return dict(zip(names.to_pylist(), values.to_pylist(), strict=True))

    @lru_cache(maxsize=_KEPT_CHUNKS)
    def chunk(number: int, prediction: str) -> dict[tuple[str, str], Sequence[Any]]:
        chunks = column(_CHUNKS, size=_READ_TOGETHER)
        names = [name for name, its_number in chunks.items() if its_number == number]
        rows = catalog.query(_ANSWERS.format(prediction=prediction), {"trials": names})
        places = zip(*(rows[name].to_pylist() for name in ("trial_id", "split")), strict=True)
        lists = zip(*(rows[name] for name in rows.column_names[2:]), strict=True)
        return dict(zip(places, lists, strict=True))

    @lru_cache(maxsize=_KEPT_IN_MEMORY)
    def read(network: Network) -> Answers:
        by_margin = facts_of(network.metric).by_margin
        number = column(_CHUNKS, size=_READ_TOGETHER).get(network.trial_id)
        prediction = _MARGIN if by_margin else "prediction"
        place = (network.trial_id, network.split)
        lists = None if number is None else chunk(number, prediction).get(place)
        if lists is None:
            return _NO_ANSWERS
        examples, labels, predicted = (
            one.values.to_numpy(zero_copy_only=False) for one in lists[:3]
        )
        positive = column(_POSITIVE).get(network.record or network.trial_id)
        tallies = lists[3].as_py() or ()
        return answers_of(network.metric, examples, labels, predicted, tallies, positive)

    return read


def answers_of(
    metric: str,
    examples: Array,
    labels: Array,
    predicted: Array,
    tallies: Sequence[Sequence[float] | None] = (),
    positive: int | None = None,
) -> Answers:
    """Answers from (n,) arrays, ascending by example. Tallies replace labels and predictions. The
    class that f1 scores, `positive` if the task names it, becomes 1; margins come as those of 1."""
    if positive is not None:
        labels = (labels == positive).astype(np.float64)
        if not facts_of(metric).by_margin:
            predicted = (predicted == positive).astype(np.float64)
        elif positive == 0:
            predicted = -predicted
    if len(tallies) and tallies[0] is not None:
        metric, labels, predicted = TALLY, np.zeros(len(examples)), np.array(tallies, np.float64)
    score = None
    finite = len(examples) and np.isfinite(labels).all() and np.isfinite(predicted).all()
    if finite and metric in METRICS:
        score = 100 * float(scores(metric, labels, predicted[:, None])[0])
    return Answers(examples, labels, predicted, score)


def compare(networks: Sequence[Network], read: Reader) -> AnswerSheet | str:
    """The networks' answers side by side, in the order of the examples, or why there are none."""
    answers = [read(network) for network in networks]
    metric, first = networks[0].metric, answers[0]
    if any(network.metric != metric for network in networks):
        return "different metrics"
    for network, answer in zip(networks, answers, strict=True):
        if reason := _unusable(network, answer):
            return reason
        if not np.array_equal(answer.examples, first.examples):
            return "different examples"
        if not np.array_equal(answer.labels, first.labels):
            return "different labels"
        if answer.predicted.shape != first.predicted.shape:
            return "different metrics"
    predicted = np.stack([answer.predicted for answer in answers], axis=1)
    return AnswerSheet(TALLY if predicted.ndim == 3 else metric, first.labels, predicted)


def _unusable(network: Network, answer: Answers) -> str | None:
    if network.score is None:
        return "a score is not a number"
    if not len(answer.examples):
        return "no predictions"
    if network.metric not in METRICS and answer.predicted.ndim == 1:
        return f"{network.metric} is not a sum over rows"
    if answer.score is None:
        return "a prediction is not a number"
    if abs(answer.score - network.score) > _SAME_SCORE:
        return "the stored predictions give a different score"
    return None
