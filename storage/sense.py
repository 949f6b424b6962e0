"""Finds records that are whole files of ours and yet can't be true.

Their bytes have the right checksum, so only their content shows it: they were edited, or written by
a program that reused our writer. The reader leaves them out like damaged files, so a run does their
work again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.schema import LARGE

CORRELATIONS = ("pearson", "spearman", "mcc")  # from -1 to 1, other metrics from 0
_ROUNDING = 1e-6
_encode = json.JSONEncoder(separators=(",", ":")).encode  # as specs are
# columns without which a record says nothing
_NEEDED = {
    "trials": ("kept_layers", "last"),
    "predictions": ("split", "example"),
    "teacher_logits": ("example",),
    "attempts": ("trial_id",),
    "sweeps": ("cell",),
    "earlier": ("cell",),
}
_OF_SPEC = ("kept_layers", "seed", "model_fingerprint", "data_fingerprint")  # of trials
_ROWS_OF = {**dict.fromkeys(("sweeps", "earlier"), "cell"), **dict.fromkeys(LARGE, "example")}


def checked_columns(table: str, columns: Collection[str] | None) -> Collection[str] | None:
    """`columns` and those that `senseless` looks at."""
    if columns is None or table not in ("trials", "profiles"):
        return columns
    also = ("metric", *_OF_SPEC) if table == "trials" else ("measure",)
    return {*columns, "spec", *_NEEDED.get(table, ()), *also}


def senseless(table: str, rows: pa.Table) -> dict[str | None, str]:
    """Identifier -> why its record can't be true, for each such record of `rows`."""
    found: dict[str | None, str] = {}
    ids = rows.column(0)
    for bad, why in _problems(table, rows):
        for id_ in ids.filter(pc.fill_null(bad, False)).to_pylist():
            found.setdefault(id_, why)
    if table not in _ROWS_OF and len(ids.unique()) < len(ids):
        for item in ids.value_counts().to_pylist():
            if item["counts"] > 1:
                found[item["values"]] = f"{item['counts']} rows have this identifier"
    if table in ("trials", "profiles"):
        for id_, why in _misidentified(table, rows):
            found.setdefault(id_, why)
    return found


def without(rows: pa.Table, ids: Collection[str | None]) -> pa.Table:
    if not ids:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows.column(0), pa.array([*ids], pa.string()))))


def _problems(table: str, rows: pa.Table) -> Iterator[tuple[Any, str]]:
    """Masks of bad rows, each with its reason."""
    names = {*rows.column_names}
    if rows.column(0).null_count:
        yield pc.is_null(rows.column(0)), f"it has no {rows.column_names[0]}"
    for name in _NEEDED.get(table, ()):
        if name in names and rows[name].null_count:
            yield pc.is_null(rows[name]), f"it has no {name}"
    if table == "trials":
        yield _out_of_range(rows), "its score is none that its metric can have"
        layers = pc.list_value_length(rows["kept_layers"])
        yield pc.equal(layers, 0), "it has no kept_layers"


def _out_of_range(trials: pa.Table) -> Any:
    last = trials["last"]
    low = pc.if_else(pc.is_in(trials["metric"], pa.array(CORRELATIONS)), -1.0, 0.0)
    known = pc.is_valid(trials["metric"])
    outside = pc.or_(pc.less(last, pc.subtract(low, _ROUNDING)), pc.greater(last, 1 + _ROUNDING))
    return pc.or_(pc.invert(pc.is_finite(last)), pc.and_(known, outside))


def _misidentified(table: str, rows: pa.Table) -> Iterator[tuple[str | None, str]]:
    """Records whose identifier is not that of their spec, or whose columns differ from it. A record
    from before there were specs has none."""
    columns = _OF_SPEC if table == "trials" else ("measure",)
    lists = [rows[name].to_pylist() for name in columns]
    ids, specs = rows.column(0).to_pylist(), rows["spec"].to_pylist()
    for id_, spec, *values in zip(ids, specs, *lists, strict=True):
        if spec is None or id_ is None:
            continue
        kind = "TrialSpec"
        if table == "profiles":
            kind = "SpeedSpec" if values[0] == "speed" else "ProfileSpec"
        version = id_.partition("-")[0][1:]
        payload = f'{{"identity":{version},"kind":"{kind}","spec":{spec}}}'
        digest = hashlib.sha256(payload.encode("utf-8", "surrogatepass")).hexdigest()[:20]
        if id_ != f"{id_[:1]}{version}-{digest}":
            yield id_, "its identifier is not that of its spec"
        elif table == "trials":
            for name, value in zip(columns, values, strict=True):
                key = f'"{name}":'
                if value is not None and key in spec and f"{key}{_encode(value)}" not in spec:
                    yield id_, f"its {name} is not that of its spec"
