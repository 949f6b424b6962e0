"""How sure a mean score is: a 95% interval for each setting and task.

Over seeds and dev rows where there are two seeds or more; over the rows of the one network where
there is one, and then it says nothing about other seeds. Without stored answers to the dev rows it
is over the seeds alone. `over` names which. See `estimates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.answers import Network, Reader, compare, reader
from lp_sweep.analysis.statistics.estimates import Scores, combined, interval, scores_of
from lp_sweep.analysis.statistics.networks import Row
from lp_sweep.storage.catalog import Catalog

_text, _int, _float = pa.string(), pa.int64(), pa.float64()
SCHEMA = pa.schema(
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
    catalog: Catalog, *, models: Sequence[str] = (), strategies: Sequence[str] = ()
) -> pa.Table:
    """Rows of SCHEMA, one per setting and task."""
    read = reader(catalog)
    groups = networks.by_setting(networks.cells(catalog, models, strategies))
    return pa.Table.from_pylist([_row(group, read) for group in groups], schema=SCHEMA)


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
