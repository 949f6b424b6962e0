"""Each pruned network against K=0: a row per seed, and one over seeds where there are several.

The rows of `lp-sweep table significance`. What can't be tested stays, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.answers import Network, Reader, compare, reader
from lp_sweep.analysis.statistics.networks import Row
from lp_sweep.analysis.statistics.paired import PairedTest, holm, paired_test
from lp_sweep.storage.catalog import Catalog

_text, _int, _float = pa.string(), pa.int64(), pa.float64()
SCHEMA = pa.schema(
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
    catalog: Catalog, *, models: Sequence[str] = (), strategies: Sequence[str] = ()
) -> pa.Table:
    """Rows of SCHEMA. `p_holm` is of the family that these rows are: ask for less, correct less."""
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
    return pa.Table.from_pylist(rows, schema=SCHEMA)


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
