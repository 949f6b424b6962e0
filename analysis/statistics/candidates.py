"""Candidates: the networks of a task as they are shipped, each next to the full model as torch, and
which of them to ship.

An artefact is judged by its own answers to the whole dev set, and its loss is at least that of its
network as torch. Its change is paired with the full model's by row, so the interval covers
other dev rows, not other seeds: a deployment is of one network. Speeds are compared as ratios to
the full model, which takes part in every session; rows of two devices are never compared.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lp_sweep.analysis.rows import Row, ServingBudget, TableSelection, grouped
from lp_sweep.analysis.statistics.intervals import paired_test
from lp_sweep.analysis.statistics.networks import Network, Reader, compare, reader
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.redact import redact_text

_text, _int, _float = pa.string(), pa.int64(), pa.float64()
CANDIDATES = pa.schema(
    [
        *[("model", _text), ("task", _text), ("device_name", _text), ("threads", _int)],
        *[("deployment_id", _text), ("trial_id", _text), ("seed", _int)],
        *[("kept_layers", pa.list_(_int)), ("n_kept", _int), ("depth", _int)],
        *[("format", _text), ("vocabulary", _text), ("extra_texts", _text), ("artefact", _text)],
        *[("metric", _text), ("score", _float), ("dev_examples", _int)],  # score in points
        ("change", _float),  # points against the full model as torch; negative is a loss
        *[("low", _float), ("high", _float)],  # its 95% interval over other dev rows
        ("reason", _text),  # why there is no interval
        ("loses", _float),  # points that count: at least those of its network as torch
        *[(name, _float) for name in ("ms", "ms_p95", "times_as_fast", "texts_per_second")],
        *[("mb", _float), ("share_of_size", _float), ("peak_memory_mb", _float)],
        ("others_busy_cores", _float),  # that other processes kept busy meanwhile
        ("front", pa.bool_()),  # whether none is better in score, speed or size and as good in all
        ("chosen_within", pa.list_(_float)),  # the allowed losses, in points, whose choice it is
        ("nearest_within", pa.list_(_float)),  # those that nothing meets, where it comes closest
        ("error", _text),  # why it could not be made or run
        ("command", _text),  # that exports it
    ]
)
_ROUNDING = 1e-9  # points
_NOISE = 0.05  # share of a speed that differs from one measurement to the next
_DEPLOYMENTS = """
SELECT own.*, trials.epoch_metrics[1].split AS split, whole.trial_id AS full_trial_id,
    (SELECT min(sweep) FROM store.sweeps WHERE trial_id = own.trial_id) AS sweep
FROM deployments AS own
JOIN trials ON trials.trial_id = own.trial_id
LEFT JOIN deployments AS whole ON whole.deployment_id = own.baseline
WHERE (len($models::VARCHAR[]) = 0 OR list_contains($models::VARCHAR[], own.model))
    AND (len($ids::VARCHAR[]) = 0 OR
        (own.model, own.task, own.device_name, coalesce(own.threads, 0)) IN (
            SELECT (model, task, device_name, coalesce(threads, 0)) FROM deployments
            WHERE list_contains($ids::VARCHAR[], deployment_id)))
ORDER BY own.model, own.task, own.device_name, own.threads, own.ms DESC NULLS LAST,
    own.deployment_id
"""


def candidate_rows(catalog: Catalog, wanted: TableSelection) -> pa.Table:
    """Rows of CANDIDATES, the slowest first. If `wanted.deployments` names some, they are these and
    those to ship, which are chosen among all of their tasks."""
    read = reader(catalog)
    names = {"models": list(wanted.models), "ids": list(wanted.deployments)}
    rows = catalog.query(_DEPLOYMENTS, names).to_pylist()
    losses = catalog.query("SELECT delta FROM store.deltas ORDER BY ALL")["delta"].to_pylist()
    store = ["--store", redact_text(catalog.location)]
    options = {of: [*store, *catalog.inputs_of(of)] for of in {row["sweep"] for row in rows}}
    for group in grouped(rows, _place).values():
        able = filter(_is_able, group)
        plain = {row["trial_id"]: -row["change"] for row in able if row["artefact"] == "torch"}
        for row in group:  # points that rounding to 8 bits adds are chance
            own = -row["change"] if _is_able(row) else math.inf
            row["loses"] = max(own, plain.get(row["trial_id"], -math.inf))
            row["front"] = _is_able(row) and not any(_is_better(other, row) for other in group)
            row |= {"chosen_within": [], "nearest_within": []}
        for loss in losses:
            if best := choice(group, loss, wanted.budget):
                best["chosen_within"].append(loss)
            else:
                for row in nearest(group, loss, wanted.budget):
                    row["nearest_within"].append(loss)
    shown = {*wanted.deployments}
    rows = [
        {**row, **_interval(row, read), "command": _command(row, options[row["sweep"]])}
        for row in rows
        if not shown
        or row["deployment_id"] in shown
        or row["chosen_within"]
        or row["nearest_within"]
    ]
    return pa.Table.from_pylist(rows, schema=CANDIDATES)


def _place(row: Row) -> tuple[Any, ...]:
    return row["model"], row["task"], row["device_name"], row["threads"]


def _command(row: Row, options: Sequence[str]) -> str:
    words = ["lp-sweep", "export", row["trial_id"], "--as", row["format"]]
    words += ["--vocabulary", "task"] * (row["vocabulary"] == "task")
    words += ["--texts", "FILE"] * bool(row["extra_texts"])
    return shlex.join([*words, "--out", "smaller", *options])


def _interval(row: Row, read: Reader) -> dict[str, Any]:
    """The change against the full model, and its interval."""
    if row["error"] or row["change"] is None:
        return {"low": None, "high": None, "reason": "not measured"}
    if row["deployment_id"] == row["baseline"]:  # rows of a search would give it an interval
        return {"low": 0.0, "high": 0.0, "reason": None}
    split = row["split"] or "validation"
    score = row["score"] - row["change"]
    whole = Network(row["baseline"], row["metric"], split, score, row["full_trial_id"])
    own = Network(row["deployment_id"], row["metric"], split, row["score"], row["trial_id"])
    return paired_interval(whole, own, read)


def paired_interval(whole: Network, own: Network, read: Reader) -> dict[str, Any]:
    """The 95% interval of the change from `whole` to `own` over other rows, `low` and `high` in
    points, or the `reason` why there is none."""
    sheet = compare([whole, own], read)
    if isinstance(sheet, str):
        return {"low": None, "high": None, "reason": sheet}
    test = paired_test(sheet.metric, sheet.labels, sheet.predicted[:, :1], sheet.predicted[:, 1:])
    return {"low": test.low, "high": test.high, "reason": None}


def choice(rows: Iterable[Mapping[str, Any]], loss: float, budget: ServingBudget) -> Any:
    """The row to ship: the fastest or smallest of those that lose at most `loss` points, also as
    torch, and meet the budget. Of those that are as fast within `_NOISE`, it is the smallest.
    None if no row loses so little."""
    able = [row for row in rows if row["loses"] <= loss + _ROUNDING and not excess(row, budget)]
    if able and not budget.smallest:
        fastest = max(row["times_as_fast"] for row in able)
        able = [row for row in able if row["times_as_fast"] >= fastest * (1 - _NOISE)]
    return min(able, key=lambda row: (row["mb"], -row["times_as_fast"]), default=None)


def nearest(rows: Sequence[Any], loss: float, budget: ServingBudget) -> list[Any]:
    """The rows that come closest where nothing meets loss and budget: the best score within the
    budget, and of those within the loss the one that is least beyond the budget."""
    within = [row for row in rows if row["loses"] <= loss + _ROUNDING]
    affordable = [row for row in rows if _is_able(row) and not excess(row, budget)]
    found = [
        min(affordable, key=lambda row: row["loses"], default=None),
        min(within, key=lambda row: excess(row, budget), default=None),
    ]
    return [row for row in found[: 1 if found[0] is found[1] else 2] if row is not None]


def excess(row: Row, budget: ServingBudget) -> float:
    """How far a row is beyond the budget: the largest share of a limit; 0 within it."""
    limits = ((row["ms"], budget.max_ms), (row["mb"], budget.max_mb))
    return max((value / most - 1 for value, most in limits if most and value > most), default=0.0)


def _is_able(row: Row) -> bool:
    return row["error"] is None and row["change"] is not None


def _is_better(other: Row, row: Row) -> bool:
    """Whether `other` is as good in score, speed and size, and better in one of them."""
    if not _is_able(other):
        return False
    both = [(each["score"], each["times_as_fast"], -each["mb"]) for each in (other, row)]
    return both[0] != both[1] and all(a >= b for a, b in zip(*both, strict=True))
