"""Finds records that are whole files of ours and yet can't be true.

Their bytes have the right checksum, so only their content shows it: they were edited, or written by
a program that reused our writer. The reader leaves them out like damaged files, so a run does their
work again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.schema import LARGE

DEEPEST = 1000  # layers of a model
CORRELATIONS = ("pearson", "spearman", "mcc")  # from -1 to 1, other metrics from 0
_ROUNDING = 1e-6
_encode = json.JSONEncoder(separators=(",", ":")).encode  # as specs are
# columns without which a record says nothing
_CELL = ("cell", "model", "depth", "procedure", "strategy", "task", "seed")
_NEEDED = {
    "trials": ("kept_layers", "last"),
    "predictions": ("split", "example"),
    "teacher_logits": ("example",),
    "attempts": ("trial_id",),
    "sweeps": _CELL,
    "earlier": _CELL,
}
_LAYERS = ("kept_layers", "dropped_layers", "k", "trial_id")  # of cells
_OF_SPEC = ("kept_layers", "seed", "model_fingerprint", "data_fingerprint")  # of trials
_ROWS_OF = {**dict.fromkeys(("sweeps", "earlier"), "cell"), **dict.fromkeys(LARGE, "example")}


def checked_columns(table: str, columns: Collection[str] | None) -> Collection[str] | None:
    """`columns` and those that `senseless` looks at."""
    also = {
        "trials": ("spec", "metric", "majority", "epoch_metrics", *_OF_SPEC),
        "profiles": ("spec", "measure", "depth", "layers", "timings"),
        "sweeps": _LAYERS,
        "earlier": _LAYERS,
    }.get(table)
    if columns is None or also is None:
        return columns
    return {*columns, *_NEEDED.get(table, ()), *also}


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
    yield from _OF_TABLE.get(table, lambda _: ())(rows)


def _of_trials(rows: pa.Table) -> Iterator[tuple[Any, str]]:
    yield _out_of_range(rows, "last"), "its score is none that its metric can have"
    yield _out_of_range(rows, "majority"), "its majority is none that its metric can have"
    yield _not_the_last(rows), "its score is not that of its last epoch"
    yield pc.equal(pc.list_value_length(rows["kept_layers"]), 0), "it has no kept_layers"


def _of_predictions(rows: pa.Table) -> Iterator[tuple[Any, str]]:
    for name in {"label", "prediction"} & {*rows.column_names}:
        yield pc.invert(pc.is_finite(rows[name])), f"its {name} is no number"
    if "tally" in rows.column_names:
        lengths = pc.fill_null(pc.list_value_length(rows["tally"]), -1)
        sizes = pa.table({"id": rows.column(0), "n": lengths}).group_by("id")
        ends = sizes.aggregate([("n", "min"), ("n", "max")])
        uneven = ends.filter(pc.not_equal(ends["n_min"], ends["n_max"]))["id"].combine_chunks()
        yield pc.is_in(rows.column(0), uneven), "its rows have tally of several lengths"


def _of_cells(rows: pa.Table) -> Iterator[tuple[Any, str]]:
    """Layers that a cell can't have. While a cell is deferred, it has none."""
    kept, dropped = (pc.list_value_length(rows[name]) for name in _LAYERS[:2])
    depth, k = rows["depth"], rows["k"]
    yield pc.or_(pc.less(depth, 1), pc.greater(depth, DEEPEST)), "its depth is no number of layers"
    yield pc.not_equal(pc.add(kept, dropped), depth), "its layers are not those of its depth"
    yield pc.not_equal(dropped, k), "its dropped layers are not K"
    yield pc.or_(pc.less(k, 0), pc.greater(k, depth)), "its K is no number of dropped layers"
    yield pc.and_(pc.is_valid(rows["trial_id"]), pc.is_null(kept)), "it has no kept_layers"


def _of_measurements(rows: pa.Table) -> Iterator[tuple[Any, str]]:
    layers = pc.list_parent_indices(rows["layers"]).to_numpy()
    items = pc.list_flatten(rows["layers"])
    depth = rows["depth"].take(layers)
    number, value = (pc.struct_field(items, name) for name in ("layer", "value"))
    outside = pc.or_(pc.less(number, 1), pc.greater(number, depth))
    odd = pc.or_(pc.fill_null(outside, False), pc.invert(pc.is_finite(value)))
    yield _rows_with(odd, layers, len(rows)), "its values are not of its layers"
    timings = pc.list_parent_indices(rows["timings"]).to_numpy()
    speedup = pc.struct_field(pc.list_flatten(rows["timings"]), "speedup")
    odd = pc.or_(pc.less_equal(speedup, 0), pc.invert(pc.is_finite(speedup)))
    yield _rows_with(odd, timings, len(rows)), "its speed-up is no positive number"


_OF_TABLE: dict[str, Callable[[pa.Table], Iterable[tuple[Any, str]]]] = {
    "trials": _of_trials,
    "profiles": _of_measurements,
    "predictions": _of_predictions,
    "sweeps": _of_cells,
    "earlier": _of_cells,
}


def _rows_with(bad: Any, parents: Any, rows: int) -> pa.Array:
    """(rows,) whether some item is bad; of item i, `parents` has the row."""
    found = np.zeros(rows, bool)
    found[parents[pc.fill_null(bad, False).to_numpy()]] = True
    return pa.array(found)


def _not_the_last(trials: pa.Table) -> Any:
    """Whether the score is none that the last epoch has for the metric, in any split."""
    of = pc.list_parent_indices(trials["epoch_metrics"]).to_numpy()
    items = pc.list_flatten(trials["epoch_metrics"])
    epoch, metric, value = (pc.struct_field(items, name) for name in ("epoch", "metric", "value"))
    asked = pc.fill_null(pc.equal(metric, trials["metric"].take(of)), False).to_numpy()
    same = pc.fill_null(pc.equal(value, trials["last"].take(of)), False).to_numpy()
    epochs = pc.fill_null(epoch, 0).to_numpy()
    last = np.full(len(trials), -1)
    np.maximum.at(last, of[asked], epochs[asked])
    agrees = np.zeros(len(trials), bool)
    agrees[of[asked & (epochs == last[of]) & same]] = True
    return pa.array((last >= 0) & ~agrees)


def _out_of_range(trials: pa.Table, column: str) -> Any:
    last = trials[column]
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
