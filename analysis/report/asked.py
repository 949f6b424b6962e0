"""What each sweep asked for, and how far it is: a list of facts a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lp_sweep.analysis.report.page import Asked, Fact
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import listed, ranges

Row = Mapping[str, Any]
_MOST = 60  # names of a list

_AXIS = """
SELECT sweep, list(name ORDER BY first) AS names
FROM (SELECT sweep, {axis}::VARCHAR AS name, min(cell) AS first FROM cells GROUP BY ALL)
GROUP BY sweep
"""
_STRATEGIES = """
SELECT sweep, strategy, min(cell) AS first,
    list(DISTINCT k ORDER BY k) FILTER (threshold IS NULL AND k IS NOT NULL) AS ks,
    list(DISTINCT threshold ORDER BY threshold DESC) FILTER (threshold IS NOT NULL) AS thresholds
FROM cells
GROUP BY sweep, strategy
ORDER BY sweep, first
"""
_STATES = """
SELECT sweep, state, count(*) AS n, count(DISTINCT trial_id) AS networks
FROM cells GROUP BY sweep, state ORDER BY sweep, state = 'done' DESC, state
"""
_RECIPES = """
SELECT DISTINCT cells.sweep, learning_rate, batch_size, epochs, max_length, precision_used,
    compute_used, limit_train, limit_dev
FROM cells JOIN trials ON trials.trial_id = cells.trial_id
ORDER BY ALL
"""
# (label, column, what is not worth a line)
_AXES = (
    ("models", "model", None),
    ("tasks", "task", None),
    ("seeds", "seed", None),
    ("procedures", "procedure", "direct"),
    ("feed-forwards removed", "feed_forward", "none"),
)


def asked(catalog: Catalog) -> list[Asked]:
    """One per sweep of the catalog, by name."""
    facts: dict[str, list[Fact]] = {}
    for label, axis, usual in _AXES:
        for row in catalog.query(_AXIS.format(axis=axis)).to_pylist():
            if row["names"] != [usual]:
                fact = Fact(label, listed(row["names"], _MOST))
                facts.setdefault(row["sweep"], []).append(fact)
    for label, sql, say, between in _LINES:
        for sweep, texts in _by_sweep(catalog, sql, say).items():
            facts[sweep].append(Fact(label, between.join(texts)))
    return [Asked(sweep, facts[sweep]) for sweep in sorted(facts)]


def _by_sweep(catalog: Catalog, sql: str, say: Any) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for row in catalog.query(sql).to_pylist():
        texts.setdefault(row["sweep"], []).append(say(row))
    return texts


def _strategy(row: Row) -> str:
    """`top K=0-3,6`, `contribution t=0.95, 0.9`."""
    parts = [row["strategy"]]
    if row["ks"]:
        parts.append(f"K={ranges(row['ks'])}")
    if row["thresholds"]:
        parts.append(f"t={', '.join(f'{value:g}' for value in row['thresholds'])}")
    return " ".join(parts)


def _state(row: Row) -> str:
    networks = f" ({row['networks']} networks)" if row["state"] == "done" else ""
    return f"{row['n']} {row['state'].replace('_', ' ')}{networks}"


def _recipe(row: Row) -> str:
    """Of a trial's record: `learning rate 2e-05, batch 32, 3 epochs, at most 128 tokens, ...`."""
    return ", ".join(
        f"{before}{value:{form}}{after}" for before, value, form, after in _parts(row) if value
    )


def _parts(row: Row) -> Iterable[tuple[str, Any, str, str]]:
    return (
        ("learning rate ", row["learning_rate"], "g", ""),
        ("batch ", row["batch_size"], "d", ""),
        ("", row["epochs"], "d", " epoch" if row["epochs"] == 1 else " epochs"),
        ("at most ", row["max_length"], "d", " tokens"),
        ("", row["precision_used"], "", ""),
        ("", row["compute_used"], "", ""),
        ("at most ", row["limit_train"], ",d", " train rows"),
        ("at most ", row["limit_dev"], ",d", " dev rows"),
    )


# (label, rows, how a row is said, what stands between)
_LINES = (
    ("strategies", _STRATEGIES, _strategy, "; "),
    ("recipe", _RECIPES, _recipe, " / "),
    ("cells", _STATES, _state, ", "),
)
