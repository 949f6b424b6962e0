"""The 90% confidence set of a `min_layers` answer: the numbers of dropped layers that can be it.

The answer is the largest K whose loss is within the limit. K is in the set if

- its own loss may be within the limit, by a one-sided bound at 4.5%; and
- no larger K is surely within it. With a probability of 95.5%, no larger K is wrongly called so,
  however many there are. First, the K surely beyond the limit are set aside, at 0.5% in all. Each
  of the m others is tested at 4% / m (Romano, Shaikh and Wolf 2014, *A practical two-step method
  for testing moment inequalities*). A smaller K has more K above it, so its test is stricter and
  may pass where the test of a larger K does not. Then that larger K is in the set as well, since
  the evidence for it is at least as good.

Each condition is wrong about the true answer in at most 4.5% of studies. The last 1% allows for
approximations, so that the set holds the answer in 90%. A K without a score can be the answer: it
is in the set unless a larger K is surely within. This includes a K that was never asked for, if the
strategy has it and a larger K was asked for. A set says nothing about K above those asked for.

The loss is paired by seed and row. Its variance over seeds is partly pooled over other networks
(`Spreads`), so that one or two seeds also give a set. A search (`until: min_layers`) has its own
set, from `analysis.adaptive`: see `credible_sets`.

Two or three seeds say little about their own spread. Networks of one model and task, trained with
the same seeds, say more together: their scores minus a mean for each network and one for each seed.
Only networks within NEAR points of the full model count. A broken network moves by tens of points,
and says nothing about a healthy one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from lp_sweep.analysis.adaptive.posterior import Draws, Pair, draw
from lp_sweep.analysis.adaptive.search import credible
from lp_sweep.analysis.rows import Row, grouped, picked
from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.estimates import (
    Estimate,
    Scores,
    combined,
    limits,
    scores_of,
)
from lp_sweep.analysis.statistics.networks import Network, Reader, compare, reader
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.select import askable_k

Unit = Literal["points", "percent"]
_ITSELF = 0.045  # probability that the answer's own loss is called beyond the limit
_LARGER = 0.045  # probability that a larger K is called within it, of which ...
_ASIDE = 0.005  # ... this part is spent on setting aside the K surely beyond

_CURVE = ("sweep", "model", "procedure", "strategy", "task")
_ADDED = pa.schema(
    [
        ("credible", pa.list_(pa.int64())),  # the 90% set of K that can be the answer, ascending
        ("credible_open", pa.bool_()),  # whether a larger K, which nobody tried, can be it as well
        ("n_examples", pa.int64()),
        ("seed_sd", pa.float64()),  # points: pooled sd of one network's score over seeds
        ("seed_sd_from", pa.string()),  # model and task, task, assumed, untrained
        ("reason", pa.string()),  # why there is no set
    ]
)


class Curve(NamedTuple):
    """The scores of one curve, and the network of each K and seed."""

    scores: Scores
    places: Mapping[tuple[int, int], int]  # (K, seed) -> its place in `scores`
    ks: tuple[int, ...]  # 0 to the largest asked for, ascending, also without a score
    spread: Spread


def with_sets(catalog: Catalog, answers: pa.Table) -> pa.Table:
    """Rows of `min_layers`, each with the 90% set of its answer in the columns of _ADDED."""
    asked = answers.to_pylist()
    cells = networks.cells(catalog, (), ())
    listed, spreads, read = _by_curve(cells), Spreads(cells), reader(catalog)
    curves: dict[tuple[Any, ...], Curve | str] = {}
    rows = []
    for answer, of_search in zip(asked, credible_sets(catalog, asked), strict=True):
        key = _key(answer)
        if of_search is not None:
            rows.append(with_set(answer, of_search))
            continue
        if key not in curves:
            curves[key] = curve_of(listed.get(key, ()), spreads, read)
        rows.append(_row(answer, curves[key]))
    return pa.Table.from_pylist(rows, schema=pa.schema([*answers.schema, *_ADDED]))


def with_set(answer: Row, ks: Sequence[int]) -> dict[str, Any]:
    beyond = askable_k(answer["strategy"], answer["depth"])
    end = 0 < max(ks) >= max(answer["tried"] or (), default=0)
    return {**answer, "credible": ks, "credible_open": end and max(ks) < max(beyond, default=0)}


def _by_curve(cells: Sequence[Row]) -> dict[tuple[Any, ...], list[Row]]:
    """Cells grouped by curve, selected as in the view `min_layers`."""
    whole = (cell for cell in cells if cell["feed_forward"] == "none")
    return grouped((cell for cell in whole if cell["state"] != "impossible"), _key)


def curve_of(cells: Sequence[Row], spreads: Spreads, read: Reader) -> Curve | str:
    """The curve of these cells, or why there is none."""
    if any(cell["k"] is None for cell in cells):
        return f"{sum(cell['k'] is None for cell in cells)} deferred"
    found = _networks(cells)
    if not any(k == 0 for k, _ in found):
        return "no K=0"
    order = list(dict.fromkeys(found.values()))
    compared = compare(order, read)
    if compared.reason:
        return compared.reason
    points = np.array([network.score for network in order], float)
    scores = scores_of(compared.metric, compared.labels, compared.predicted, points)
    named = next((cell["metric"] for cell in cells if cell["metric"]), order[0].metric)
    spread = spreads.of(cells[0]["model"], cells[0]["task"], named)
    if cells[0]["procedure"].split()[0] == UNTRAINED:
        spread = NO_SEED
    asked = {cell["k"] for cell in cells}
    there = askable_k(cells[0]["strategy"], cells[0]["depth"])
    ks = tuple(sorted({0, *asked, *(k for k in there if k < max(asked))}))
    return Curve(scores, {at: order.index(network) for at, network in found.items()}, ks, spread)


def _networks(cells: Sequence[Row]) -> dict[tuple[int, int], Network]:
    """By K and seed: each pruned network that is done, and the K=0 of its seed."""
    found: dict[tuple[int, int], Network] = {}
    for cell in cells:
        whole = networks.full(cell)
        if whole is not None and whole.score is not None:
            found[0, cell["seed"]] = whole
        if cell["state"] == "done" and cell["score"] is not None and not networks.is_full(cell):
            found[cell["k"], cell["seed"]] = networks.own(cell)
    return found


def excess(curve: Curve, delta: float, unit: Unit) -> dict[int, Estimate | None]:
    """For each K above 0: how far its loss lies beyond the limit, in points; None without a pair. A
    loss in percent of the full model's mean is within delta if (1 - delta/100) of that mean is at
    most the score."""
    factor = 1 - delta / 100 if unit == "percent" else 1.0
    limit = 0.0 if unit == "percent" else delta
    found: dict[int, Estimate | None] = {}
    for k in curve.ks[1:]:
        pairs = [
            (curve.places[0, seed], place)
            for (of, seed), place in curve.places.items()
            if of == k and (0, seed) in curve.places
        ]
        if not pairs:
            found[k] = None
            continue
        weights = np.zeros((len(pairs), len(curve.scores.points)))
        for row, (full, pruned) in enumerate(pairs):
            weights[row, full] += factor
            weights[row, pruned] -= 1
        loss = moderated(combined(curve.scores, weights), len(pairs), curve.spread)
        found[k] = loss._replace(
            mean=loss.mean - limit, least=loss.least - limit, most=loss.most - limit
        )
    return found


def answer_set(beyond: Mapping[int, Estimate | None]) -> list[int]:
    """The K that can be the largest within the limit, ascending; 0 is always within."""
    known = {k: loss for k, loss in beyond.items() if loss is not None}
    each = _ASIDE / max(1, len(known))
    aside = {k for k, loss in known.items() if limits(loss, each).low > 0}

    def none_larger_is(k: int) -> bool:
        larger = [loss for other, loss in known.items() if other > k and other not in aside]
        tail = (_LARGER - _ASIDE) / max(1, len(larger))
        return not any(limits(loss, tail).high <= 0 for loss in larger)

    ks = sorted({0, *beyond})
    least = next(k for k in ks if none_larger_is(k))
    surely = {k for k, loss in known.items() if limits(loss, _ITSELF).low > 0}
    return [k for k in ks if k >= least and k not in surely]


def _row(answer: Row, curve: Curve | str) -> dict[str, Any]:
    if isinstance(curve, str):
        return {**answer, "reason": curve}
    can_be = {*answer_set(excess(curve, answer["delta"], answer["unit"]))}
    if answer["max_dropped"] is not None or answer["untried"]:
        can_be.add(answer["max_dropped_low"])  # the rules differ for a score below zero, in percent
    return {
        **with_set(answer, sorted(can_be)),
        "n_examples": curve.scores.rows,
        "seed_sd": curve.spread.sd,
        "seed_sd_from": curve.spread.source,
    }


NEAR = 5.0  # points below the best network
WEIGHT = 4  # at most this many pooled degrees of freedom are added to a network's own
ASSUMED_SD, _ASSUMED_FREEDOM = 1.0, 2  # points; if no network of the task has two seeds
OWN = "model and task"  # the source of a pool that includes the network itself
_ROUNDING = 1e-9  # points²
_SINGULAR = 1e-9  # share of the largest singular value


class Spread(NamedTuple):
    """The spread of one network's score over seeds, without the part that all networks share."""

    variance: float  # points²
    freedom: int
    source: str  # model and task, task, assumed, untrained

    @property
    def sd(self) -> float:
        return float(self.variance**0.5)


class Squares(NamedTuple):
    total: float
    freedom: int


UNTRAINED = "untrained"  # the procedure of networks that do not depend on a seed
NO_SEED = Spread(0.0, WEIGHT, UNTRAINED)
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
        """The pool for a model, task and metric (as cells name it), or the assumed spread."""
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
    """The pooled spread. None if it would be zero: equal scores are a coincidence of few rows."""
    total, freedom = (sum(part) for part in zip((0.0, 0), *found, strict=True))
    if not freedom or total <= _ROUNDING:
        return None
    return Spread(float(total / freedom), int(freedom), source)


_Scores = Mapping[tuple[Any, int], float]  # network and seed -> points


def _scores(cells: Sequence[Row]) -> dict[tuple[Any, ...], dict[tuple[int, int], float]]:
    """Scores by model, procedure, task and metric. Settings that share a trial are one network:
    settings that keep the same layers, and sweeps that share trials, count once."""
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
    """The scores of networks within NEAR points of the best mean."""
    points = {
        network: [score for _, score in found]
        for network, found in grouped(scores.items(), lambda item: item[0][0]).items()
    }
    means = {network: sum(found) / len(found) for network, found in points.items()}
    near = {network for network, mean in means.items() if mean >= max(means.values()) - NEAR}
    return {key: score for key, score in scores.items() if key[0] in near}


def left_over(scores: _Scores) -> Squares:
    """The squared residuals of a least-squares fit of one mean per network and one per seed. The
    larger group, which may have thousands of means, is eliminated from the normal equations."""
    if not scores:
        return Squares(0.0, 0)
    few, many = sorted((_numbered(name[part] for name in scores) for part in (0, 1)), key=max)
    points = np.array(list(scores.values()))
    counts = np.zeros((max(few) + 1, max(many) + 1))
    counts[few, many] = 1  # a network has one score per seed
    of_each = counts.sum(axis=0)

    def centred(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        means = np.bincount(many, values) / of_each
        return np.asarray(values - means[many])

    matrix = np.diag(counts.sum(axis=1)) - (counts / of_each) @ counts.T
    right = np.bincount(few, centred(points))
    means, _, rank, _ = np.linalg.lstsq(matrix, right, rcond=_SINGULAR)
    rest = centred(points) - centred(means[few])
    return Squares(float(rest @ rest), len(points) - len(of_each) - int(rank))


def _numbered(names: Iterable[Any]) -> list[int]:
    """A number from 0 for each different name."""
    known: dict[Any, int] = {}
    return [known.setdefault(name, len(known)) for name in names]


def moderated(change: Estimate, seeds: int, spread: Spread) -> Estimate:
    """A change against the full model, with a variance over seeds that combines its own with the
    pooled one (twice that of one network). The pool counts as up to WEIGHT more seeds. This is the
    posterior mean of the variance in Smyth 2004, *Linear models and empirical Bayes methods*,
    section 3. The change's own part of the pool does not count twice."""
    own = seeds - 1
    others = spread.freedom - own if spread.source == OWN else spread.freedom
    extra = min(max(others, 0), WEIGHT)
    variance = own * change.seeds * seeds + extra * 2 * spread.variance
    return change._replace(seeds=variance / (own + extra) / seeds, freedom=own + extra)


_CELLS = """
SELECT sweep, model, procedure, strategy, task, k, seed,
    any_value(CASE WHEN k = 0 THEN score_full ELSE score END) AS score
FROM cells
WHERE search IS NOT NULL AND feed_forward = 'none' AND k IS NOT NULL AND state <> 'impossible'
GROUP BY ALL
ORDER BY ALL
"""


def credible_sets(catalog: Catalog, answers: Iterable[Row]) -> list[list[int] | None]:
    """For each row of `min_layers`, the 90% set of K that can be the answer, ascending; None if the
    row belongs to no search, or if the search has no run to compare."""
    curves = _curves(catalog)
    return [_credible(curves.get(_key(answer)), answer) for answer in answers]


def _curves(catalog: Catalog) -> dict[tuple[Any, ...], Draws]:
    cells = grouped(catalog.query(_CELLS).to_pylist(), _key)
    return {key: draws for key, rows in cells.items() if (draws := _draws(rows)) is not None}


def _draws(rows: Sequence[Row]) -> Draws | None:
    points = {Pair(row["k"], row["seed"]): row["score"] for row in rows if row["score"] is not None}
    if not any(pair.k == 0 for pair in points):
        return None
    return draw(tuple(sorted({row["k"] for row in rows})), points)


def _credible(draws: Draws | None, answer: Row) -> list[int] | None:
    if draws is None:
        return None
    share = draws.full / 100 if answer["unit"] == "percent" else 1.0
    return list(credible(draws, answer["max_dropped_low"], answer["delta"] * share))


def _key(row: Row) -> tuple[Any, ...]:
    return picked(row, _CURVE)
