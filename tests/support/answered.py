"""Done cells whose answers to the dev examples are known, and tables as rows. Not a test."""

from __future__ import annotations

from typing import Any

import numpy as np

from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.trials.train.metrics import METRICS
from tests.support.fake_records import FakeSweep


def network(
    fake: FakeSweep,
    predicted: Any,
    labels: Any = None,
    *,
    metric: str = "accuracy",
    split: str = "validation",
    order: Any = None,
    **cell: Any,
) -> dict[str, Any]:
    """A cell that is done, and its answers, written in the order of `order`. Returns its row."""
    labels = np.ones(len(predicted)) if labels is None else labels
    score = 100 * METRICS[metric](np.asarray(labels), np.asarray(predicted))
    curve = [{"epoch": 3, "split": split, "metric": metric, "value": score / 100}]
    row = fake.cell(score=score, metric=metric, epoch_metrics=curve, **cell)
    rows = [
        {"trial_id": row["trial_id"], "split": split, "example": int(i), "scores": [0.0]}
        | {"label": float(labels[i]), "prediction": float(predicted[i])}
        for i in (range(len(predicted)) if order is None else order)
    ]
    other = {**rows[0], "split": "other", "example": 10**6, "prediction": 7.0}
    fake.store.put("predictions", row["trial_id"], [*rows, other])
    return row


def right(n_right: int, n: int = 100) -> Any:
    return (np.arange(n) < n_right).astype(float)


def made(fake: FakeSweep, name: str, deltas: tuple[float, ...] = (1,), **asked: Any) -> Table:
    """A table of all that the sweep has by now."""
    with open_views(fake.publish(), deltas=deltas, only=TABLES[name].views) as catalog:
        return TABLES[name](catalog, **asked)


def long(fake: FakeSweep, table: Any, deltas: tuple[float, ...] = (1,), **asked: Any) -> list[Any]:
    with open_views(fake.publish(), deltas=deltas, only=table.views) as catalog:
        return table(catalog, **asked).long.to_pylist()


def lines(table: Table) -> list[dict[str, str]]:
    """A table as a person reads it: each row by its headings."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]
