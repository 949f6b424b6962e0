"""How much the score of one network moves from seed to seed: pooled over networks of a task.

Two or three seeds say little about their own spread. Networks of one model and task, trained with
the same seeds, together say more: what is left of their scores after a mean for each network and
one for each seed. Only networks within NEAR points of the full model count, since a broken network
moves by tens of points and says nothing about a healthy one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.estimates import Estimate
from lp_sweep.analysis.statistics.networks import Row

NEAR = 5.0  # points below the full model
WEIGHT = 4  # pooled degrees of freedom that count at most beside a network's own
ASSUMED_SD, _ASSUMED_FREEDOM = 1.0, 2  # points; where no network of the task has two seeds
OWN = "model and task"  # the source of a pool that has the network itself in it
_ROUNDING = 1e-9  # points²


class Spread(NamedTuple):
    """Spread of one network's score over seeds, without what all networks of a seed share."""

    variance: float  # points²
    freedom: int
    source: str  # model and task, task, assumed

    @property
    def sd(self) -> float:
        return float(self.variance**0.5)


class Squares(NamedTuple):
    total: float
    freedom: int


ASSUMED = Spread(ASSUMED_SD**2, _ASSUMED_FREEDOM, "assumed")


class Spreads:
    """The pooled spreads of a store's cells, by model and task."""

    def __init__(self, cells: Sequence[Row]) -> None:
        self._by_model: dict[tuple[Any, ...], list[Squares]] = {}
        self._by_task: dict[tuple[Any, ...], list[Squares]] = {}
        for (model, _, task, metric), scores in _scores(cells).items():
            squares = left_over(near(scores))
            self._by_model.setdefault((model, task, metric), []).append(squares)
            self._by_task.setdefault((task, metric), []).append(squares)

    def of(self, model: str, task: str, metric: str) -> Spread:
        """`metric` as cells name it."""
        places = (
            (OWN, self._by_model.get((model, task, metric), ())),
            ("task", self._by_task.get((task, metric), ())),
        )
        for source, found in places:
            spread = spread_of(found, source)
            if spread is not None:
                return spread
        return ASSUMED


def spread_of(found: Iterable[Squares], source: str) -> Spread | None:
    """None where nothing is left over: equal scores are a coincidence of few rows."""
    total, freedom = (sum(part) for part in zip((0.0, 0), *found, strict=True))
    if not freedom or total <= _ROUNDING:
        return None
    return Spread(float(total / freedom), int(freedom), source)


_Scores = Mapping[tuple[Any, int], float]  # network and seed -> points


def _scores(cells: Sequence[Row]) -> dict[tuple[Any, ...], dict[tuple[int, int], float]]:
    """By model, procedure, task and metric. A network is known by its trials: settings that keep
    the same layers, and sweeps that share trials, count once."""
    tables: dict[tuple[Any, ...], dict[tuple[int, int], float]] = {}
    network_of: dict[str, int] = {}  # by trial
    for group in networks.by_setting(cells):
        done = [cell for cell in group if cell["state"] == "done" and cell["score"] is not None]
        if not done:
            continue
        place = tuple(done[0][name] for name in ("model", "procedure", "task", "metric"))
        own = {cell["seed"]: (cell["trial_id"], cell["score"]) for cell in done}
        full = {
            cell["seed"]: (cell["full_trial_id"], cell["score_full"])
            for cell in done
            if cell["full_trial_id"] is not None and cell["score_full"] is not None
        }
        for seeds in (own, full):
            known = (network_of[trial] for trial, _ in seeds.values() if trial in network_of)
            network = next(known, len(network_of))
            network_of |= {trial: network for trial, _ in seeds.values()}
            scores = tables.setdefault(place, {})
            scores.update({(network, seed): score for seed, (_, score) in seeds.items()})
    return tables


def near(scores: _Scores) -> dict[tuple[Any, int], float]:
    """Those of networks within NEAR points of the best mean."""
    means: dict[Any, list[float]] = {}
    for (network, _), score in scores.items():
        means.setdefault(network, []).append(score)
    best = max(sum(points) / len(points) for points in means.values())
    near = {name for name, points in means.items() if sum(points) / len(points) >= best - NEAR}
    return {key: score for key, score in scores.items() if key[0] in near}


def left_over(scores: _Scores) -> Squares:
    """Residuals of a least-squares fit of one mean per network and one per seed."""
    if not scores:
        return Squares(0.0, 0)
    names = list(scores)
    columns = [sorted({name[part] for name in names}, key=str) for part in (0, 1)]
    design = np.array(
        [[name[part] == other for part in (0, 1) for other in columns[part]] for name in names],
        float,
    )
    points = np.array(list(scores.values()))
    fitted, _, rank, _ = np.linalg.lstsq(design, points, rcond=None)
    rest = points - design @ fitted
    return Squares(float(rest @ rest), len(points) - int(rank))


def moderated(change: Estimate, seeds: int, spread: Spread) -> Estimate:
    """A change against the full model whose variance over seeds is its own together with the pooled
    one (twice that of one network), which counts as up to WEIGHT more seeds: the posterior mean of
    the variance in Smyth 2004, *Linear models and empirical Bayes methods*, section 3. What the
    change itself brought into the pool does not count again."""
    own = seeds - 1
    others = spread.freedom - own if spread.source == OWN else spread.freedom
    extra = min(max(others, 0), WEIGHT)
    variance = own * change.seeds * seeds + extra * 2 * spread.variance
    return change._replace(seeds=variance / (own + extra) / seeds, freedom=own + extra)
