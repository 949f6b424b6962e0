"""How sure a mean score is, and a change against K=0: 95% intervals and paired tests.

Over seeds and dev rows where there are two seeds or more; over the rows of the one network where
there is one, and then nothing is said about other seeds. Without stored answers to the dev rows an
interval is over the seeds alone. `over` names which. See `estimates`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.estimates import (
    Scores,
    combined,
    interval,
    scores_of,
    two_sided_p,
)
from lp_sweep.analysis.statistics.networks import Network, Reader, Row, compare, reader
from lp_sweep.analysis.statistics.resampling import patterns_of, scores
from lp_sweep.storage.catalog import Catalog

_text, _int, _float = pa.string(), pa.int64(), pa.float64()
INTERVALS = pa.schema(
    [
        *((name, _text) for name in ("sweep", "model", "procedure", "feed_forward", "strategy")),
        ("k", _int),
        ("threshold", _float),
        ("task", _text),
        ("depth", _int),
        ("metric", _text),
        ("mean", _float),  # points; over the seeds that are done
        ("sd", _float),  # sample standard deviation over seeds, null for one
        ("n", _int),
        ("n_expected", _int),
        ("low", _float),
        ("high", _float),
        ("over", _text),  # what the interval accounts for: seeds and rows, rows, seeds, none
        ("reason", _text),  # why there is no interval
    ]
)
_SMALLEST = {"pearson": -100.0, "spearman": -100.0, "mcc": -100.0}  # points; others 0


class Interval(NamedTuple):
    low: float | None
    high: float | None
    over: str
    reason: str | None = None


def interval_rows(
    catalog: Catalog, models: Sequence[str] = (), strategies: Sequence[str] = ()
) -> pa.Table:
    """Rows of INTERVALS, one per setting and task."""
    read = reader(catalog)
    groups = networks.by_setting(networks.cells(catalog, models, strategies))
    return pa.Table.from_pylist([_row(group, read) for group in groups], schema=INTERVALS)


def _row(cells: Sequence[Row], read: Reader) -> dict[str, Any]:
    names = (
        *("sweep", "model", "procedure", "feed_forward", "strategy"),
        *("threshold", "task", "depth"),
    )
    scored = [cell for cell in cells if cell["score"] is not None]
    points = np.array([cell["score"] for cell in scored])
    return {
        **{name: cells[0][name] for name in names},
        "k": max((cell["k"] for cell in cells if cell["k"] is not None), default=None),
        "metric": next((cell["metric"] for cell in cells if cell["metric"]), None),
        "mean": float(points.mean()) if len(points) else None,
        "sd": float(points.std(ddof=1)) if len(points) > 1 else None,
        "n": len(points),
        "n_expected": len(cells),
        **interval_of([networks.own(cell) for cell in scored], read)._asdict(),
    }


def interval_of(seeds: Sequence[Network], read: Reader) -> Interval:
    """The mean score of one setting's networks, one per seed."""
    if not seeds:
        return Interval(None, None, "none", "no score")
    compared = compare(seeds, read)
    metric = seeds[0].metric
    points = np.array([network.score for network in seeds], float)
    over = "seeds and rows" if len(seeds) > 1 else "rows"
    if not compared.reason:
        scores = scores_of(metric, compared.labels, compared.predicted, points)
    elif len(seeds) > 1 and np.isfinite(points).all() and np.ptp(points):  # the seeds alone
        scores, over = Scores(points, np.zeros((len(seeds), len(seeds))), 0.0, 0), "seeds"
    else:
        return Interval(None, None, "none", compared.reason)
    low, high = interval(combined(scores, np.eye(len(seeds))))
    return Interval(max(low, _SMALLEST.get(metric, 0.0)), min(high, 100.0), over)


Array = npt.NDArray[Any]


class PairedTest(NamedTuple):
    """A change in points (negative is a loss), its 95% interval and a two-sided p."""

    change: float
    low: float
    high: float
    p: float
    test: str  # mcnemar, rows, seeds and rows
    b: int | None = None  # examples that only K=0 answers rightly
    c: int | None = None  # that only the pruned network does


def paired_test(metric: str, labels: Array, full: Array, pruned: Array) -> PairedTest:
    """`full` and `pruned` are (rows, seeds) answers, a column of each per seed."""
    seeds = full.shape[1]
    predicted = np.column_stack([full, pruned])
    points = 100 * scores(metric, patterns_of(metric, labels, predicted))
    change = combined(
        scores_of(metric, labels, predicted, points), np.hstack([-np.eye(seeds), np.eye(seeds)])
    )
    found = (change.mean, *interval(change))
    if seeds > 1:
        return PairedTest(*found, two_sided_p(change), "seeds and rows")
    if metric == "accuracy":
        p, b, c = _mcnemar(labels, full[:, 0], pruned[:, 0])
        return PairedTest(*found, p, "mcnemar", b, c)
    return PairedTest(*found, two_sided_p(change), "rows")


def _mcnemar(labels: Array, full: Array, pruned: Array) -> tuple[float, int, int]:
    from statsmodels.stats.contingency_tables import mcnemar

    full_right, pruned_right = full == labels, pruned == labels
    b = int((full_right & ~pruned_right).sum())
    c = int((~full_right & pruned_right).sum())
    both, neither = int((full_right & pruned_right).sum()), int((~full_right & ~pruned_right).sum())
    return float(mcnemar([[both, b], [c, neither]], exact=True).pvalue), b, c


def holm(ps: Sequence[float]) -> list[float]:
    """p adjusted for the whole family, in the same order."""
    from statsmodels.stats.multitest import multipletests

    return [float(p) for p in multipletests(ps, method="holm")[1]] if ps else []


TESTS = pa.schema(
    [
        *((name, _text) for name in ("sweep", "model", "procedure", "feed_forward", "strategy")),
        ("k", _int),
        ("threshold", _float),
        ("task", _text),
        ("seed", _int),  # null: over all seeds of the network
        ("n_seeds", _int),
        ("depth", _int),
        ("metric", _text),
        ("n_examples", _int),
        ("change", _float),  # points against K=0, negative is a loss; low, high: 95%
        ("low", _float),
        ("high", _float),
        ("p", _float),  # two-sided
        ("p_holm", _float),  # over all different tests of these rows
        ("n_tests", _int),  # how many these are
        ("test", _text),
        ("b", _int),  # examples that only K=0 answers rightly (McNemar)
        ("c", _int),  # that only the pruned network does
        ("reason", _text),  # why there is no test
    ]
)

Pair = tuple[Network, Network]


class _Tests:
    """Each different comparison is made once: strategies and sweeps share networks."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._done: dict[tuple[Pair, ...], PairedTest | str] = {}
        self._examples: dict[tuple[Pair, ...], int] = {}

    def row(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        key = tuple(sorted(pairs, key=lambda pair: (pair[0].trial_id, pair[1].trial_id)))
        if key not in self._done:
            self._done[key] = self._test(key)
        found = self._done[key]
        if isinstance(found, str):
            return {"reason": found}
        return {**found._asdict(), "n_examples": self._examples[key], "key": key}

    def _test(self, pairs: tuple[Pair, ...]) -> PairedTest | str:
        compared = compare([whole for whole, _ in pairs] + [cut for _, cut in pairs], self._read)
        if compared.reason:
            return compared.reason
        self._examples[pairs] = len(compared.labels)
        full, pruned = compared.predicted[:, : len(pairs)], compared.predicted[:, len(pairs) :]
        return paired_test(pairs[0][0].metric, compared.labels, full, pruned)

    def p_holm(self) -> dict[tuple[Pair, ...], float]:
        ps = {key: test.p for key, test in self._done.items() if isinstance(test, PairedTest)}
        return dict(zip(ps, holm(list(ps.values())), strict=True))


def significance_rows(
    catalog: Catalog, models: Sequence[str] = (), strategies: Sequence[str] = ()
) -> pa.Table:
    """Rows of TESTS. `p_holm` is of the family that these rows are: ask for less, correct less."""
    tests = _Tests(reader(catalog))
    rows = []
    for group in networks.by_setting(networks.cells(catalog, models, strategies)):
        pruned = [cell for cell in group if not networks.is_full(cell)]
        rows += [{**_place(cell), **_one_seed(cell, tests)} for cell in pruned]
        rows += list(_over_seeds(pruned, tests))
    adjusted = tests.p_holm()
    for row in rows:
        key = row.pop("key", None)
        if key is not None:
            row |= {"p_holm": adjusted[key], "n_tests": len(adjusted)}
    return pa.Table.from_pylist(rows, schema=TESTS)


def _place(cell: Row) -> dict[str, Any]:
    names = (
        *("sweep", "model", "procedure", "feed_forward", "strategy"),
        *("k", "threshold", "task", "seed", "depth"),
    )
    return {**{name: cell[name] for name in names}, "n_seeds": 1, "metric": cell["metric"]}


def _one_seed(cell: Row, tests: _Tests) -> dict[str, Any]:
    if cell["state"] != "done":
        return {"reason": cell["state"]}
    pair = _pair(cell)
    return {"reason": "no K=0"} if pair is None else tests.row([pair])


def _over_seeds(cells: Sequence[Row], tests: _Tests) -> Iterator[dict[str, Any]]:
    """The row of the network itself. None for a single seed: it would say the same again."""
    if len(cells) < 2:
        return
    first = cells[0]
    metric = next((cell["metric"] for cell in cells if cell["metric"]), None)
    k = max((cell["k"] for cell in cells if cell["k"] is not None), default=None)
    place = {**_place(first), "k": k, "seed": None, "n_seeds": len(cells), "metric": metric}
    pairs = [_pair(cell) for cell in cells if cell["state"] == "done"]
    complete = [pair for pair in pairs if pair is not None]
    if len(complete) < len(cells):
        missing = len(cells) - len(complete)
        yield {**place, "reason": f"{missing} of {len(cells)} seeds missing"}
    else:
        yield {**place, **tests.row(complete)}


def _pair(cell: Row) -> Pair | None:
    whole = networks.full(cell)
    return None if whole is None else (whole, networks.own(cell))
