"""Counts how often each interval and set of `docs/statistics.md` holds the truth, by simulation.

    python -m benchmarks.coverage [--studies 1000] [--out benchmarks/results/coverage.json]

A study is one model on one task: a network for each K and seed, scored by accuracy on one dev set.
Network (K, s) answers a text correctly with probability 90% - loss(K) + a seed's luck of `seed_sd`
points. All K of the seed share half of that luck's variance. Whether a network answers one text
correctly depends on how hard the text is, which all networks share (correlation 0.8 on the probit
scale, so that two seeds differ in about one answer of fifteen). Everything except the true losses
comes from the code that the tables use. All studies use common random numbers, the same texts and
seeds: a smaller dev set has the first rows, and fewer seeds are the first seeds.

    interval          `table intervals`: the mean score at K=0; with one seed the truth is that
                      network's own accuracy (rows only)
    paired interval   `table significance`: the change at K=2 (at K=1 if the curve ends there)
    set               `table min-layers-interval`: the K that can be the answer, limit 1 point
    oracle set        the same with the true variance over seeds
    size              points from low to high; for a set, the number of K

`noisier` is a stress test outside the assumptions of the table: the luck's sd grows with the loss,
to three times at 10 points, while the pooled spread assumes that it is equal.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from lp_sweep.analysis.statistics.answerset import (
    OWN,
    ScoredCurve,
    answer_set,
    excess,
    left_over,
    near,
    spread_of,
)
from lp_sweep.analysis.statistics.estimates import Estimate, Scores, combined, limits
from lp_sweep.analysis.statistics.minimum import ASSUMED

CURVES = {  # true losses in points, K = 0, 1, 2, ...
    "flat": (0, 0, 0.1, 0.2, 0.3, 0.4),
    "falling": (0, 0.1, 0.3, 0.6, 1.4, 2.5, 5, 10),
    "steep": (0, 2, 5, 9, 14, 20),
    "dip": (0, 0.2, 0.5, 3.5, 3.5, 0.3, 5, 9),
    "at the limit": (0, 0.6, 0.9, 1.1, 1.4, 6),
    "many at the limit": (0, 0.9, 0.95, 1, 1.02, 1.05, 1.1, 1.2),
    "two networks": (0, 1),
    "three networks": (0, 1, 1.02),
    "noisier": (0, 0.1, 0.3, 0.6, 1.4, 2.5, 5, 10),
}
STRESS = "noisier"
SEEDS = (1, 2, 3, 5, 10)
ROWS = (277, 872, 5000)
SEED_SDS = (0.3, 1, 2)  # points
LIMIT = 1.0
FULL = 0.9  # accuracy of the full model
SHARED = 0.5  # share of the luck's variance that all K of a seed have in common
ALIKE = 0.8  # correlation of two networks on one text
_MOST_K = max(map(len, CURVES.values()))


class Study(NamedTuple):
    """Common random numbers for the largest study; a smaller study uses a part of them."""

    latent: np.ndarray  # (rows, seeds, K) float32: correct if below the network's threshold
    common: np.ndarray  # (seeds,) luck
    own: np.ndarray  # (seeds, K)


def study_of(seed: int) -> Study:
    rng = np.random.default_rng(seed)
    rows, seeds = max(ROWS), max(SEEDS)
    hard = rng.standard_normal((rows, 1, 1), dtype=np.float32)
    own = rng.standard_normal((rows, seeds, _MOST_K), dtype=np.float32)
    latent = np.float32(ALIKE**0.5) * hard + np.float32((1 - ALIKE) ** 0.5) * own
    return Study(latent, rng.standard_normal(seeds), rng.standard_normal((seeds, _MOST_K)))


def accuracies(study: Study, name: str, seed_sd: float) -> np.ndarray:
    """(seeds, K): the accuracy of each network on all texts."""
    losses = np.array(CURVES[name], float)
    growth = 1 + losses / 5 if name == STRESS else np.ones_like(losses)
    luck = SHARED**0.5 * study.common[:, None]
    luck = luck + (1 - SHARED) ** 0.5 * study.own[:, : len(losses)] * growth
    return np.clip(FULL - losses / 100 + seed_sd / 100 * luck, 0.01, 0.999)


def scores_of_all(right: np.ndarray, rows: int) -> Scores:
    """Accuracies as `estimates.scores_of` makes them, from (rows, networks) right answers."""
    part = right[:rows]
    means = part.mean(axis=0)
    covariance = (part.T @ part).astype(float) / rows - np.outer(means, means)
    return Scores(100.0 * means, 1e4 * covariance / (rows - 1), (100 / rows) ** 2, rows)


def part_of(scores: Scores, seeds: int, ks: int) -> Scores:
    """The scores of the first seeds; networks are in the order of seed and K."""
    n = seeds * ks
    return scores._replace(points=scores.points[:n], covariance=scores.covariance[:n, :n])


def checked(study: Study, name: str, seed_sd: float) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Key of the row -> (held, size)."""
    truth = accuracies(study, name, seed_sd)
    losses, ks = CURVES[name], len(CURVES[name])
    threshold = ndtri(truth).astype(np.float32)
    right = (study.latent[:, :, :ks] < threshold).reshape(len(study.latent), -1)
    right = right.astype(np.float32)
    for rows in ROWS:
        whole = scores_of_all(right, rows)
        for seeds in SEEDS:
            scores, key = part_of(whole, seeds, ks), (name, seeds, rows, seed_sd)
            yield from intervals_of(scores, seeds, ks, truth, losses, key)
            yield from sets_of(scores, seeds, losses, seed_sd, key)


def intervals_of(
    scores: Scores, seeds: int, ks: int, truth: np.ndarray, losses: Any, key: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    networks = np.eye(seeds * ks).reshape(seeds, ks, -1)
    low, high = limits(combined(scores, networks[:, 0]))
    true = 100 * (truth[0, 0] if seeds == 1 else FULL)
    yield ("interval", *key), (low <= true <= high, high - low)
    k = min(2, ks - 1)
    low, high = limits(combined(scores, networks[:, 0] - networks[:, k]))
    true = 100 * (truth[0, 0] - truth[0, k]) if seeds == 1 else losses[k]
    yield ("paired interval", *key), (low <= true <= high, high - low)


def sets_of(
    scores: Scores, seeds: int, losses: Any, seed_sd: float, key: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    ks = len(losses)
    places = {(k, s): s * ks + k for s in range(seeds) for k in range(ks)}
    named = {(k, s): float(scores.points[at]) for (k, s), at in places.items()}
    spread = spread_of([left_over(near(named))], OWN) or ASSUMED
    beyond = excess(ScoredCurve(scores, places, tuple(range(ks)), spread), LIMIT, "points")
    answer = max(k for k in range(ks) if losses[k] <= LIMIT)
    found = answer_set(beyond)
    yield ("set", *key), (answer in found, len(found))
    found = answer_set(known_spread(beyond, scores, seeds, losses, seed_sd, key[0]))
    yield ("oracle set", *key), (answer in found, len(found))


def known_spread(
    beyond: dict[int, Estimate | None],
    scores: Scores,
    seeds: int,
    losses: Any,
    sd: float,
    name: str,
) -> dict[int, Estimate | None]:
    """The same means with the true variance over seeds and the whole variance over rows."""
    growth = 1 + np.array(losses) / 5 if name == STRESS else np.ones(len(losses))
    true = (1 - SHARED) * sd**2 * (1 + growth**2) / seeds
    whole = scores.covariance.reshape(seeds, len(losses), seeds, len(losses)).mean(axis=(0, 2))
    known: dict[int, Estimate | None] = {}
    for k, loss in beyond.items():
        assert loss is not None
        rows = whole[0, 0] - 2 * whole[0, k] + whole[k, k]
        known[k] = loss._replace(seeds=float(true[k]), freedom=1e9, rows=float(rows))
    return known


def sums(seeds: range) -> dict[tuple[Any, ...], np.ndarray]:
    found: dict[tuple[Any, ...], np.ndarray] = {}
    for seed in seeds:
        study = study_of(seed)
        for name, seed_sd in itertools.product(CURVES, SEED_SDS):
            for key, held in checked(study, name, seed_sd):
                found[key] = found.get(key, 0.0) + np.array(held, float)
    return found


def rows_of(studies: int) -> list[dict[str, Any]]:
    parts = [range(start, studies, 2) for start in (0, 1)]
    with ProcessPoolExecutor(2) as pool:
        first, second = pool.map(sums, parts)
    rows = []
    for key, total in first.items():
        method, curve, seeds, n, seed_sd = key
        coverage, size = (total + second.get(key, 0.0)) / studies
        rows.append(
            {
                "method": method,
                "curve": curve,
                "seeds": seeds,
                "rows": n,
                "seed_sd": seed_sd,
                "nominal": 0.9 if "set" in method else 0.95,
                "coverage": round(float(coverage), 4),
                "mean_size": round(float(size), 3),
            }
        )
    return sorted(rows, key=lambda row: (row["method"], row["seeds"], row["rows"]))


def show(rows: list[dict[str, Any]]) -> None:
    """Print by method and seeds: the smallest and largest coverage, and the mean size."""
    print(f"{'method':<16} {'seeds':>5} {'nominal':>7}  least   most  {'mean size':>9}  worst")
    for (method, seeds), group in itertools.groupby(
        (row for row in rows if row["curve"] != STRESS), lambda row: (row["method"], row["seeds"])
    ):
        mine = list(group)
        worst = min(mine, key=lambda row: row["coverage"])
        size = np.mean([row["mean_size"] for row in mine])
        print(
            f"{method:<16} {seeds:>5} {mine[0]['nominal']:>7}  {worst['coverage']:.3f}  "
            f"{max(row['coverage'] for row in mine):.3f}  {size:>9.2f}  {worst['curve']}, "
            f"{worst['rows']} rows, sd {worst['seed_sd']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = rows_of(asked.studies)
    show(rows)
    if asked.out:
        listed = ",\n  ".join(json.dumps(row) for row in rows)
        asked.out.write_text(f'{{"studies": {asked.studies}, "rows": [\n  {listed}\n]}}\n')


if __name__ == "__main__":
    main()
