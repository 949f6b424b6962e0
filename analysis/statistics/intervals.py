"""95% intervals and paired tests: of a mean score, of a change against K=0 or another strategy, and
of a change against a network that was not distilled.

With two or more seeds, an interval accounts for seeds and dev rows. With one seed, it accounts only
for the rows, and says nothing about other seeds. Without stored answers to the dev rows, it
accounts only for the seeds. The column `over` says which. See `estimates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lp_sweep.analysis.rows import Row, TableSelection
from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.estimates import (
    Scores,
    combined,
    least_of,
    limits,
    scores_of,
    two_sided_p,
)
from lp_sweep.analysis.statistics.networks import Network, Reader, compare, reader
from lp_sweep.analysis.statistics.resampling import Array, scores
from lp_sweep.storage.catalog import Catalog
from lp_sweep.trials.spec.procedures import own_label

_text, _int, _float = pa.string(), pa.int64(), pa.float64()
_PLACE = [("sweep", _text), ("model", _text), ("procedure", _text)]
_NETWORK = [("feed_forward", _text), ("strategy", _text), ("k", _int), ("threshold", _float)]
_SETTING = [*_NETWORK, ("task", _text)]
_MIXED = ("mixed", pa.bool_())  # its task's cells are not comparable: see the view `cells`
_LIMITS = [("low", _float), ("high", _float)]  # 95%
_P = [
    ("p", _float),  # two-sided
    ("p_holm", _float),  # over all different tests of these rows
    ("n_tests", _int),  # number of these tests
]
_HOW = [
    ("test", _text),
    ("b", _int),  # examples that only K=0, or the network it is compared with, answers rightly
    ("c", _int),  # that only the other one does (McNemar)
    ("reason", _text),  # why there is no test
    _MIXED,
]
INTERVALS = pa.schema(
    [
        *_PLACE,
        *_SETTING,
        ("depth", _int),
        ("metric", _text),
        ("mean", _float),  # points, over the seeds that are done
        ("sd", _float),  # sample standard deviation over seeds; null for one seed
        ("n", _int),
        ("n_expected", _int),
        *_LIMITS,
        ("over", _text),  # the interval accounts for: seeds and rows, rows, seeds, none
        ("reason", _text),  # why there is no interval
        _MIXED,
    ]
)


class Interval(NamedTuple):
    low: float | None
    high: float | None
    over: str
    reason: str | None = None


def interval_rows(catalog: Catalog, wanted: TableSelection) -> pa.Table:
    """Rows of INTERVALS, one per setting and task."""
    read = reader(catalog)
    groups = networks.by_setting(networks.cells(catalog, wanted.models, wanted.strategies))
    return pa.Table.from_pylist([_row(group, read) for group in groups], schema=INTERVALS)


def _row(cells: Sequence[Row], read: Reader) -> dict[str, Any]:
    scored = [cell for cell in cells if cell["score"] is not None]
    points = np.array([cell["score"] for cell in scored])
    return {
        **_place(cells[0]),
        **_known(cells),
        "mean": float(points.mean()) if len(points) else None,
        "sd": float(points.std(ddof=1)) if len(points) > 1 else None,
        "n": len(points),
        "n_expected": len(cells),
        **interval_of([networks.own(cell) for cell in scored], read)._asdict(),
    }


def interval_of(seeds: Sequence[Network], read: Reader) -> Interval:
    """The interval of the mean score of one setting's networks, one per seed."""
    if not seeds:
        return Interval(None, None, "none", "no score")
    sheet = compare(seeds, read)
    points = np.array([network.score for network in seeds], float)
    over = "seeds and rows" if len(seeds) > 1 else "rows"
    if not isinstance(sheet, str):
        scores = scores_of(*sheet, points)
    elif len(seeds) > 1 and np.isfinite(points).all() and np.ptp(points):  # the seeds alone
        no_rows = np.zeros((len(seeds), len(seeds)))
        scores, over = Scores(points, no_rows, 0.0, 0, least_of(seeds[0].metric)), "seeds"
    else:
        return Interval(None, None, "none", sheet)
    return Interval(*limits(combined(scores, np.eye(len(seeds)))), over)


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
    """The change from `full` to `pruned`: (rows, seeds) answers, or (rows, seeds, 2m) tallies."""
    seeds = full.shape[1]
    predicted = np.concatenate([full, pruned], axis=1)
    points = 100 * scores(metric, labels, predicted)
    change = combined(
        scores_of(metric, labels, predicted, points), np.hstack([-np.eye(seeds), np.eye(seeds)])
    )
    found = (change.mean, *limits(change))
    if seeds > 1:
        return PairedTest(*found, two_sided_p(change), "seeds and rows")
    if metric == "accuracy":
        p, b, c = _mcnemar(labels, full[:, 0], pruned[:, 0])
        return PairedTest(*found, p, "mcnemar", b, c)
    return PairedTest(*found, two_sided_p(change), "rows")


def _mcnemar(labels: Array, full: Array, pruned: Array) -> tuple[float, int, int]:
    from scipy.stats import binomtest

    full_right, pruned_right = full == labels, pruned == labels
    b = int((full_right & ~pruned_right).sum())
    c = int((~full_right & pruned_right).sum())
    return float(binomtest(b, b + c).pvalue) if b + c else 1.0, b, c


def holm(ps: Sequence[float]) -> list[float]:
    """The p values adjusted for the whole family, in the same order (Holm 1979): the i-th smallest
    of m is multiplied by m - i + 1, is never below a smaller one's result, and is at most 1."""
    order = np.argsort(ps, kind="stable")
    adjusted = np.empty(len(ps))
    adjusted[order] = np.maximum.accumulate(np.sort(ps) * np.arange(len(ps), 0, -1))
    return [float(p) for p in np.minimum(adjusted, 1)]


TESTS = pa.schema(
    [
        *_PLACE,
        *_SETTING,
        ("seed", _int),  # null: over all seeds of the network
        ("n_seeds", _int),
        ("depth", _int),
        ("metric", _text),
        ("n_examples", _int),
        ("change", _float),  # points against K=0 or another strategy, negative is a loss
        *_LIMITS,
        *_P,
        *_HOW,
    ]
)
_Pair = tuple[Network, Network]  # of one seed: the full or plain network, the other one


class _Tests:
    """Runs each different comparison once: strategies and sweeps share networks."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._done: dict[tuple[_Pair, ...], dict[str, Any]] = {}

    def row(self, pairs: Sequence[_Pair | str]) -> dict[str, Any]:
        """The test over these seeds; for a seed without a pair, the reason."""
        if missing := [pair for pair in pairs if isinstance(pair, str)]:
            several = f"{len(missing)} of {len(pairs)} seeds missing"
            alike = len(missing) == len(pairs) and len(set(missing)) == 1
            return {"reason": missing[0] if alike else several}
        found = (pair for pair in pairs if not isinstance(pair, str))
        key = tuple(sorted(found, key=lambda pair: (pair[0].trial_id, pair[1].trial_id)))
        if key not in self._done:
            self._done[key] = self._test(key)
        return {**self._done[key], "key": key}

    def _test(self, pairs: Sequence[_Pair]) -> dict[str, Any]:
        sheet = compare([whole for whole, _ in pairs] + [cut for _, cut in pairs], self._read)
        if isinstance(sheet, str):
            return {"reason": sheet}
        full, pruned = np.split(sheet.predicted, 2, axis=1)
        test = paired_test(sheet.metric, sheet.labels, full, pruned)
        return {**test._asdict(), "n_examples": len(sheet.labels)}

    def with_holm(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ps = {key: test["p"] for key, test in self._done.items() if "p" in test}
        adjusted = dict(zip(ps, holm(list(ps.values())), strict=True))
        for row in rows:
            if (key := row.pop("key", None)) in adjusted:
                row |= {"p_holm": adjusted[key], "n_tests": len(adjusted)}
        return rows


def significance_rows(catalog: Catalog, wanted: TableSelection) -> pa.Table:
    """Rows of TESTS. `p_holm` corrects for all these rows: fewer rows need less correction."""
    tests = _Tests(reader(catalog))
    rows = []
    against = wanted.against
    named = [*wanted.strategies, against] if against and wanted.strategies else wanted.strategies
    cells = networks.cells(catalog, wanted.models, named)
    others = {_of_any_strategy(cell): cell for cell in cells if cell["strategy"] == against}
    for group in networks.by_setting(cells):
        pruned = [
            cell for cell in group if not networks.is_full(cell) and cell["strategy"] != against
        ]
        pairs = [_pair(cell, against, others.get(_of_any_strategy(cell))) for cell in pruned]
        for cell, pair in zip(pruned, pairs, strict=True):
            rows.append({**_place(cell), **tests.row([pair])})
        if len(pruned) > 1:  # over a single seed: it would repeat its row
            over = {"seed": None, "n_seeds": len(pruned)}
            rows.append({**_place(pruned[0]), **_known(pruned), **over, **tests.row(pairs)})
    return pa.Table.from_pylist(tests.with_holm(rows), schema=TESTS)


def _pair(cell: Row, against: str, other: Row | None) -> _Pair | str:
    if cell["state"] != "done":
        return str(cell["state"])
    if not against:
        whole = networks.full(cell)
        return "no K=0" if whole is None else (whole, networks.own(cell))
    if other is None or other["state"] != "done":
        return f"no {against}"
    same = other["trial_id"] == cell["trial_id"]
    return "the same layers" if same else (networks.own(other), networks.own(cell))


def _of_any_strategy(cell: Row) -> tuple[Any, ...]:
    """The keys of a cell without its strategy: the same for all that drop this number of layers."""
    return (*networks.setting({**cell, "strategy": None, "threshold": None}), cell["seed"])


def _place(cell: Row) -> dict[str, Any]:
    """The first columns of all schemas here; each table takes those that it has."""
    names = [*(name for name, _ in (*_PLACE, *_SETTING)), "seed", "depth", "mixed", "metric"]
    return {**{name: cell[name] for name in names}, "n_seeds": 1}


def _known(cells: Sequence[Row]) -> dict[str, Any]:
    """The metric, and the K of a threshold: they are known as soon as one seed is done."""
    return {
        "k": max((cell["k"] for cell in cells if cell["k"] is not None), default=None),
        "metric": next((cell["metric"] for cell in cells if cell["metric"]), None),
    }


DISTILLATION = pa.schema(
    [
        *_PLACE,
        *[("plain", _text), ("bridge", _text), ("distill", _text)],
        *_SETTING,
        ("depth", _int),
        ("metric", _text),
        ("n", _int),  # seeds that both list; then how many of them have a score
        ("n_plain", _int),
        ("n_distilled", _int),
        ("mean_plain", _float),  # points
        ("mean_distilled", _float),
        ("gain", _float),  # distilled - plain, in points
        *_LIMITS,
        *_P,
        ("n_examples", _int),
        *_HOW,
        ("seconds_plain", _float),  # duration of a trial, mean over seeds
        ("seconds_distilled", _float),
        ("seconds_logits", _float),  # time for the teacher's logits, which all its students share
    ]
)
_SECONDS = """
SELECT trials.trial_id, trials.seconds_total AS own, any_value(logits.seconds_total) AS logits
FROM trials
LEFT JOIN store.profiles AS logits
    ON coalesce(logits.trial_id, logits.profile_id) = trials.teacher AND logits.measure = 'teacher'
GROUP BY ALL
"""


def distillation_rows(catalog: Catalog, wanted: TableSelection) -> pa.Table:
    """Rows of DISTILLATION, one per setting: the distilled networks against the plain ones, paired
    by seed. The plain network has the same procedure; if there is none, `direct`. A network with a
    bridge that was not distilled is compared with the network without a bridge."""
    cells = networks.cells(catalog, wanted.models, wanted.strategies)
    seconds = {row["trial_id"]: row for row in catalog.query(_SECONDS).to_pylist()}
    listed: dict[tuple[Any, ...], dict[str, list[Row]]] = {}  # by setting and procedure
    for group in networks.by_setting(cells):
        setting = networks.setting({**group[0], "procedure": None})
        listed.setdefault(setting, {})[group[0]["procedure"]] = group
    tests = _Tests(reader(catalog))
    rows = [
        _distilled(group, same, tests, seconds)
        for same in listed.values()
        for group in same.values()
        if _way(group) != "none" and not _is_shared(group, same)
    ]
    return pa.Table.from_pylist(tests.with_holm(rows), schema=DISTILLATION)


def _plain(group: Sequence[Row], same: Mapping[str, Sequence[Row]]) -> Sequence[Row]:
    """The cells that `group` is compared with; none if the sweep does not list them."""
    row = group[0]
    part = "distill" if row["distill"] != "none" else "bridge"
    return same.get(own_label(row["procedure"], **{part: row[part]})) or same.get("direct", ())


def _way(group: Sequence[Row]) -> str:
    """`logits T=4`; `bridge linear` if the network was not distilled; `none`."""
    bridge, distill = str(group[0]["bridge"]), str(group[0]["distill"])
    return f"bridge {bridge}" if bridge != "none" == distill else distill


def _is_shared(group: Sequence[Row], same: Mapping[str, Sequence[Row]]) -> bool:
    """Whether the group is K=0, and did not learn from another model."""
    plain = {cell["trial_id"] for cell in _plain(group, same)}
    own = {cell["trial_id"] for cell in group}
    return networks.is_full(group[0]) and (not plain or own <= plain)


def _distilled(
    group: Sequence[Row],
    same: Mapping[str, Sequence[Row]],
    tests: _Tests,
    seconds: Mapping[str, Row],
) -> dict[str, Any]:
    other = {cell["seed"]: cell for cell in _plain(group, same)}
    distilled = [cell for cell in group if cell["seed"] in other or not other]
    plain = [other[cell["seed"]] for cell in distilled] if other else []
    return {
        **_place(group[0]),
        **_known(group),
        "plain": plain[0]["procedure"] if plain else None,
        "bridge": group[0]["bridge"],
        "distill": _way(group),
        "n": len(distilled),
        **_side("plain", plain, seconds),
        **_side("distilled", distilled, seconds),
        "seconds_logits": _mean([_of(seconds, cell, "logits") for cell in distilled]),
        **_compared(plain, distilled, tests),
    }


def _side(name: str, cells: Sequence[Row], seconds: Mapping[str, Row]) -> dict[str, Any]:
    scores = [cell["score"] for cell in cells]
    return {
        f"n_{name}": sum(score is not None for score in scores),
        f"mean_{name}": _mean(scores),
        f"seconds_{name}": _mean([_of(seconds, cell, "own") for cell in cells]),
    }


def _of(seconds: Mapping[str, Row], cell: Row, name: str) -> float | None:
    return seconds.get(cell["trial_id"], {}).get(name)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _compared(plain: Sequence[Row], distilled: Sequence[Row], tests: _Tests) -> dict[str, Any]:
    if not plain:
        return {"reason": "no plain one"}
    pairs: list[_Pair | str] = []
    for cells in zip(plain, distilled, strict=True):
        states = [cell["state"] for cell in cells if cell["state"] != "done"]
        pairs.append(states[0] if states else (networks.own(cells[0]), networks.own(cells[1])))
    found = tests.row(pairs)
    return {**found, "gain": found.get("change")}
