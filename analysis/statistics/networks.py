"""Reads the cells for statistics, each with its network, and the networks' answers to the dev rows.

Reads only the main dev split: the first, on which `score` is measured. Answers are matched by the
number of the example, never by the order of rows. Networks that can't be compared give a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
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


class AnswerSheet(NamedTuple):
    """Several networks' answers to the same examples."""

    metric: str  # a metric of `resampling`
    labels: Array  # (n,)
    predicted: Array  # (n, networks), or (n, networks, 2m)


Reader = Callable[[Network], Answers]


def reader(catalog: Catalog) -> Reader:
    """A function that reads a network's answers, and caches those of the last few networks."""
    return lru_cache(maxsize=_KEPT_IN_MEMORY)(partial(_read, catalog))


# GROUP BY counts a copied file once. The class that f1 scores, if the task names it, becomes 1
_ANSWERS = """
WITH positive AS (SELECT any_value(positive_label) AS p FROM trials WHERE trial_id = $of)
SELECT
    example,
    min(CASE WHEN p IS NULL THEN label ELSE (label = p)::DOUBLE END) AS label,
    min({prediction}) AS prediction,
    min(tally) AS tally
FROM predictions CROSS JOIN positive
WHERE trial_id = $trial AND split = $split
GROUP BY example ORDER BY example
"""

_PREDICTION = "CASE WHEN p IS NULL THEN prediction ELSE (prediction = p)::DOUBLE END"
# the margin of the scored class, from the logits
_MARGIN = "(scores[2]::DOUBLE - scores[1]::DOUBLE) * CASE WHEN p = 0 THEN -1 ELSE 1 END"


def _read(catalog: Catalog, network: Network) -> Answers:
    names = {"trial": network.trial_id, "of": network.record or network.trial_id}
    by_margin = facts_of(network.metric).by_margin
    asked = _ANSWERS.format(prediction=_MARGIN if by_margin else _PREDICTION)
    rows = catalog.query(asked, {**names, "split": network.split})
    examples, labels, predicted = (
        rows[name].to_numpy() for name in ("example", "label", "prediction")
    )
    return answers_of(network.metric, examples, labels, predicted, rows["tally"].to_pylist())


def answers_of(
    metric: str,
    examples: Array,
    labels: Array,
    predicted: Array,
    tallies: Sequence[Sequence[float] | None] = (),
) -> Answers:
    """Answers from (n,) arrays, ascending by example. Tallies replace labels and predictions."""
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
