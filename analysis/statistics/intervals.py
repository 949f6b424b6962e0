"""How sure a mean score is: a 95% interval for each setting and task.

Over seeds where there are two or more, else over the dev examples of the one network: `over` says
which, since they answer different questions. Over seeds: what would other seeds give on this dev
set? Over examples: what would this network give on other examples?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.answers import Network, Reader, compare, reader
from lp_sweep.analysis.statistics.networks import Row
from lp_sweep.analysis.statistics.paired import LEVEL, RESAMPLES, percentile_interval
from lp_sweep.analysis.statistics.resampling import patterns_of, resampled_scores
from lp_sweep.storage.catalog import Catalog

ENOUGH_FOR_BCA = 5  # seeds; its acceleration is a skewness, that of fewer is noise
_SEED = 0

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
        ("over", _text),  # seeds, examples, none
        ("method", _text),  # bca, percentile
        ("reason", _text),  # why there is no interval
    ]
)


class Interval(NamedTuple):
    low: float | None
    high: float | None
    over: str
    method: str | None
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
    interval = over_seeds(points) if len(points) > 1 else _of_one_seed(scored, read)
    return {
        **{name: cells[0][name] for name in names},
        "k": max((cell["k"] for cell in cells if cell["k"] is not None), default=None),
        "metric": next((cell["metric"] for cell in cells if cell["metric"]), None),
        "mean": float(points.mean()) if len(points) else None,
        "sd": float(points.std(ddof=1)) if len(points) > 1 else None,
        "n": len(points),
        "n_expected": len(cells),
        **interval._asdict(),
    }


def over_seeds(points: np.ndarray) -> Interval:
    """Of the mean of two scores or more: a bootstrap over them. Equal ones give no width."""
    from scipy.stats import bootstrap

    if np.ptp(points) == 0:
        return Interval(float(points[0]), float(points[0]), "seeds", "percentile")
    method = "bca" if len(points) >= ENOUGH_FOR_BCA else "percentile"
    found = bootstrap(
        (points,), np.mean, confidence_level=LEVEL, method=method, rng=np.random.default_rng(_SEED)
    ).confidence_interval
    return Interval(float(found.low), float(found.high), "seeds", method)


def _of_one_seed(scored: Sequence[Row], read: Reader) -> Interval:
    if not scored:
        return Interval(None, None, "none", None, "no score")
    return over_examples(networks.own(scored[0]), read)


def over_examples(network: Network, read: Reader) -> Interval:
    """Of one network's score, in points: a bootstrap over the dev examples."""
    compared = compare([network], read)
    if compared.reason:
        return Interval(None, None, "none", None, compared.reason)
    patterns = patterns_of(network.metric, compared.labels, compared.predicted)
    shares = resampled_scores(network.metric, patterns, RESAMPLES, np.random.default_rng(_SEED))
    return Interval(*percentile_interval(100 * shares[:, 0]), "examples", "percentile")
