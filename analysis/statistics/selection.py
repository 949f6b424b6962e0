"""Estimates how optimistic a score is if the network was chosen on the same dev set.

The best of several networks is partly the luckiest on these rows. Cross-fitting estimates how much
of its score is luck. The rows are split at random into `FOLDS` parts. The network is chosen on all
parts but one, by the rule of `export --best`, and scored on the part left out. The optimism is its
score on the rows it was chosen on minus its score on the rows left out, averaged over the parts and
over `REPEATS` splits (Efron, Tibshirani 1993, *An Introduction to the Bootstrap*, 17). Luck is
proportional to one over the root of the number of rows, so it is scaled to all rows. There are
three parts: with ten, the estimate varies twice as much from one dev set to the next.

A metric that is not a mean over rows (F1, correlations) is itself a little lower on few rows. So
the same difference is subtracted for the network chosen on all rows, which no split chooses; for
accuracy it is zero.

Only rows are drawn again, not seeds: the exported network has fixed weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.statistics.networks import Network, Reader, compare
from lp_sweep.analysis.statistics.resampling import METRICS, Array
from lp_sweep.storage.catalog import Catalog

FOLDS, REPEATS = 3, 50
_SLACK = 1e-9  # float noise, as in min_layers.sql
_SEED = 0
_FEWEST = 30  # dev rows
_TOGETHER = 10  # splits scored at a time: 20 MB of weights on QQP
_NONE = 0.05  # points: less luck is not worth a number

# min(trial_id): two thresholds may have chosen the same network
_CANDIDATES = """
SELECT procedure, strategy, coalesce(k, 0) AS k, seed, n_kept = depth AS is_full, full_trial_id,
    min(trial_id) AS trial_id, any_value(metric) AS metric, any_value(score) AS score,
    any_value(split) AS split, min(cell) AS position
FROM cells
JOIN (SELECT trial_id, coalesce(epoch_metrics[1].split, 'validation') AS split FROM trials)
    USING (trial_id)
WHERE (sweep, model, task) = ($sweep, $model, $task)
    AND feed_forward = 'none' AND state = 'done' AND score IS NOT NULL
    AND ($strategy::VARCHAR IS NULL OR strategy = $strategy OR n_kept = depth)
GROUP BY ALL
ORDER BY position
"""


class ChoicePlace(NamedTuple):
    """The networks among which it was chosen. `strategy`: only those of this strategy, and K=0."""

    sweep: str
    model: str
    task: str
    strategy: str | None = None


class Candidate(NamedTuple):
    """A K of a strategy: the columns of its networks, and those of K=0 of the same seeds."""

    k: int
    own: tuple[int, ...]
    full: tuple[int, ...]


class MeanScores(NamedTuple):
    """Means over seeds, in points: of each candidate, and of K=0 of the same seeds."""

    own: Array  # (splits, candidates)
    full: Array

    @property
    def losses(self) -> Array:
        return self.full - self.own


class Splits(NamedTuple):
    """Scores on all rows (as one split), on the rows to choose on, and on the rows left out."""

    ks: Array  # (candidates,); each K of a strategy counts as one
    whole: MeanScores
    inside: MeanScores
    outside: MeanScores
    rows: int
    strategies: int


class Optimism(NamedTuple):
    """How much lower a score and how much larger a loss to expect on other rows, in points."""

    score: float
    loss: float


def load(catalog: Catalog, place: ChoicePlace, read: Reader) -> Splits | str | None:
    """The splits, or why there is nothing to estimate; None if there was nothing to choose from."""
    rows = catalog.query(_CANDIDATES, place._asdict()).to_pylist()
    networks: dict[str, int] = {}  # columns by trial
    for row in rows:
        networks.setdefault(row["trial_id"], len(networks))
    candidates = _candidates(rows, networks)
    if len(candidates) < 2:
        return None
    found = {row["trial_id"]: row for row in rows}
    listed = (found[trial] for trial in networks)
    sheet = compare(
        [Network(row["trial_id"], row["metric"], row["split"], row["score"]) for row in listed],
        read,
    )
    if isinstance(sheet, str):
        return sheet
    if len(sheet.labels) < _FEWEST:
        return f"the dev set has only {len(sheet.labels)} rows"
    strategies = len({row["strategy"] for row in rows if not row["is_full"]})
    return split(*sheet, candidates, strategies)


def _candidates(rows: Iterable[Row], columns: Mapping[str, int]) -> list[Candidate]:
    """The candidates in the order of the plan; networks that several strategies list count once."""
    groups: dict[tuple[Any, ...], dict[int, tuple[int, int]]] = {}
    for row in rows:
        full = columns.get(row["full_trial_id"])
        if full is None:
            continue
        own = full if row["is_full"] else columns[row["trial_id"]]
        key = (row["procedure"], None if row["is_full"] else row["strategy"], row["k"])
        groups.setdefault(key, {})[row["seed"]] = (own, full)
    found: dict[Candidate, None] = {}
    for (_, _, k), pairs in groups.items():
        in_order = (pairs[seed] for seed in sorted(pairs))
        found[Candidate(k, *(tuple(side) for side in zip(*in_order, strict=True)))] = None
    return list(found)


def split(
    metric: str,
    labels: Array,
    predicted: Array,
    candidates: Sequence[Candidate],
    strategies: int,
    repeats: int = REPEATS,
) -> Splits:
    """Score the candidates on random splits. `labels` (n,); `predicted` (n, networks)."""
    rng = np.random.default_rng(_SEED)
    n = len(labels)
    weights = [np.ones((1, n))]
    for start in range(0, repeats, _TOGETHER):
        folds = [rng.permutation(n) % FOLDS for _ in range(start, min(start + _TOGETHER, repeats))]
        left_out = np.concatenate([fold == np.arange(FOLDS)[:, None] for fold in folds])
        weights += [1.0 - left_out, left_out.astype(np.float64)]
    points = [100 * METRICS[metric](part, labels, predicted) for part in weights]
    whole, *parts = [_scores(part, candidates) for part in points]
    return Splits(
        ks=np.array([candidate.k for candidate in candidates]),
        whole=whole,
        inside=MeanScores(*map(np.concatenate, zip(*parts[::2], strict=True))),
        outside=MeanScores(*map(np.concatenate, zip(*parts[1::2], strict=True))),
        rows=n,
        strategies=strategies,
    )


def _scores(points: Array, candidates: Sequence[Candidate]) -> MeanScores:
    """`points`: (splits, networks)."""
    own = [points[:, list(candidate.own)].mean(axis=1) for candidate in candidates]
    full = [points[:, list(candidate.full)].mean(axis=1) for candidate in candidates]
    return MeanScores(np.column_stack(own), np.column_stack(full))


def optimism(splits: Splits, within: float, unit: str) -> Optimism:
    """The optimism of choosing the smallest network within a loss: the largest K, then the best
    mean score."""
    [always] = _chosen(splits.ks, splits.whole, within, unit)
    chosen = _chosen(splits.ks, splits.inside, within, unit)
    each = np.arange(len(chosen))

    def luck(inside: Array, outside: Array) -> float:
        difference = inside - outside
        on_fewer_rows = difference[each, chosen].mean() - difference[:, always].mean()
        return float(on_fewer_rows * (1 - 1 / FOLDS) ** 0.5)

    return Optimism(
        score=luck(splits.inside.own, splits.outside.own),
        loss=-luck(splits.inside.losses, splits.outside.losses),
    )


def _chosen(ks: Array, scores: MeanScores, within: float, unit: str) -> Array:
    """(splits,): the candidate that `export --best` would choose."""
    allowed = within * (scores.full / 100 if unit == "percent" else 1.0)
    holds = (scores.losses <= allowed + _SLACK) | (ks == 0)
    most = np.where(holds, ks, -1).max(axis=1, keepdims=True)
    return np.asarray(np.where(holds & (ks == most), scores.own, -np.inf).argmax(axis=1))


def sentence(found: Splits | str | None, within: float, unit: str) -> str:
    """The optimism in a sentence; "" if there was nothing to choose from."""
    if found is None:
        return ""
    if isinstance(found, str):
        return (
            "It was chosen on the same dev set, so its score is optimistic. By how much can't be "
            f"estimated: {found}."
        )
    among = f"{found.strategies} strategies" if found.strategies > 1 else "one strategy"
    how = f"(cross-fitted over the {found.rows} dev rows)"
    chosen = f"Chosen from {among} ({len(found.ks)} networks) on the same dev set"
    score, loss = (max(value, 0.0) for value in optimism(found, within, unit))
    if max(score, loss) < _NONE:
        return f"{chosen}: that adds less than {_NONE:g} points to its score {how}."
    return f"{chosen}: expect about {score:.1f} points less, and {loss:.1f} more of loss {how}."
