"""Finds records that are whole files of ours and yet can't be true.

Their bytes have the right checksum, so only their content shows it: they were edited, or written by
a program that reused our writer. The reader leaves them out like damaged files, so a run does their
work again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.trials.spec.identity import identifier

DEEPEST = 1000  # layers of a model
CORRELATIONS = ("pearson", "spearman", "mcc")  # from -1 to 1, other metrics from 0
_ROUNDING = 1e-6
# a table whose identifiers are hashes of its specs -> the columns that its rows are checked by
_SPECIFIED = {
    "trials": ("kept_layers", "seed", "model_fingerprint", "data_fingerprint"),
    "profiles": ("measure",),
    "deployments": (),
    "test_scores": (),
}
_KINDS = {"deployments": "DeploymentSpec", "test_scores": "HeldOutSpec"}  # of specs
_encode = json.JSONEncoder(separators=(",", ":")).encode  # as specs are

_Problems = Iterable[tuple[Any, str]]  # masks of bad rows, each with its reason


class _Rules(NamedTuple):
    """The columns without which a table's record says nothing, a check of its rows, and the other
    columns that the check looks at."""

    needed: tuple[str, ...] = ()
    problems: Callable[[pa.Table], _Problems] = lambda rows: ()
    looked_at: tuple[str, ...] = ()
    many_rows: bool = False  # a record may have


def checked_columns(table: str, columns: Collection[str] | None) -> Collection[str] | None:
    """`columns` and those that `senseless` looks at."""
    rules = _RULES[table]
    return None if columns is None else {*columns, *rules.needed, *rules.looked_at}


def senseless(table: str, rows: pa.Table) -> dict[str | None, str]:
    """Identifier -> why its record can't be true, for each such record of `rows`."""
    found: dict[str | None, str] = {}
    rules, ids = _RULES[table], rows.column(0)
    missing = (
        (pc.is_null(rows[name]), f"it has no {name}")
        for name in (rows.column_names[0], *rules.needed)
    )
    for bad, why in (*missing, *rules.problems(rows)):
        for id_ in ids.filter(pc.fill_null(bad, False)).to_pylist():
            found.setdefault(id_, why)
    if not rules.many_rows and len(ids.unique()) < len(ids):
        for item in ids.value_counts().to_pylist():
            if item["counts"] > 1:
                found[item["values"]] = f"{item['counts']} rows have this identifier"
    if table in _SPECIFIED:
        for id_, why in _misidentified(table, rows):
            found.setdefault(id_, why)
    return found


def without(rows: pa.Table, ids: Collection[str | None]) -> pa.Table:
    if not ids:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows.column(0), pa.array([*ids], pa.string()))))


def _of_trials(rows: pa.Table) -> _Problems:
    yield _out_of_range(rows, "last"), "its score is none that its metric can have"
    yield _out_of_range(rows, "majority"), "its majority is none that its metric can have"
    yield _not_the_last(rows), "its score is not that of its last epoch"
    yield pc.equal(pc.list_value_length(rows["kept_layers"]), 0), "it has no kept_layers"


def _of_predictions(rows: pa.Table) -> _Problems:
    for name in {"label", "prediction"} & {*rows.column_names}:
        yield pc.invert(pc.is_finite(rows[name])), f"its {name} is no number"
    if "tally" in rows.column_names:
        lengths = pc.fill_null(pc.list_value_length(rows["tally"]), -1)
        sizes = pa.table({"id": rows.column(0), "n": lengths}).group_by("id")
        ends = sizes.aggregate([("n", "min"), ("n", "max")])
        uneven = ends.filter(pc.not_equal(ends["n_min"], ends["n_max"]))["id"].combine_chunks()
        yield pc.is_in(rows.column(0), uneven), "its rows have tally of several lengths"


def _of_cells(rows: pa.Table) -> _Problems:
    """Layers that a cell can't have. While a cell is deferred, it has none."""
    kept, dropped = (pc.list_value_length(rows[f"{name}_layers"]) for name in ("kept", "dropped"))
    depth, k = rows["depth"], rows["k"]
    yield pc.or_(pc.less(depth, 1), pc.greater(depth, DEEPEST)), "its depth is no number of layers"
    yield pc.not_equal(pc.add(kept, dropped), depth), "its layers are not those of its depth"
    yield pc.not_equal(dropped, k), "its dropped layers are not K"
    yield pc.or_(pc.less(k, 0), pc.greater(k, depth)), "its K is no number of dropped layers"
    yield pc.and_(pc.is_valid(rows["trial_id"]), pc.is_null(kept)), "it has no kept_layers"


def _of_measurements(rows: pa.Table) -> _Problems:
    of, number, value = _items(rows["layers"], "layer", "value")
    outside = pc.or_(pc.less(number, 1), pc.greater(number, rows["depth"].take(of)))
    odd = pc.or_(pc.fill_null(outside, False), pc.invert(pc.is_finite(value)))
    yield _rows_with(odd, of, len(rows)), "its values are not of its layers"
    of, speedup = _items(rows["timings"], "speedup")
    odd = pc.or_(pc.less_equal(speedup, 0), pc.invert(pc.is_finite(speedup)))
    yield _rows_with(odd, of, len(rows)), "its speed-up is no positive number"


def _of_deployments(rows: pa.Table) -> _Problems:
    yield _out_of_range(rows, "score"), "its score is none that its metric can have"
    yield pc.less_equal(rows["ms"], 0), "its time is no positive number"


def _of_test_scores(rows: pa.Table) -> _Problems:
    yield _out_of_range(rows, "score"), "its score is none that its metric can have"


_CELLS = _Rules(
    ("cell", "model", "depth", "procedure", "strategy", "task", "seed"),
    _of_cells,
    ("kept_layers", "dropped_layers", "k", "trial_id"),
    many_rows=True,
)
_RULES = {
    "trials": _Rules(
        ("kept_layers", "last"),
        _of_trials,
        ("spec", "metric", "majority", "epoch_metrics", *_SPECIFIED["trials"]),
    ),
    "profiles": _Rules((), _of_measurements, ("spec", "measure", "depth", "layers", "timings")),
    "deployments": _Rules(("trial_id",), _of_deployments, ("spec", "metric", "score", "ms")),
    "test_scores": _Rules(("trial_id", "score"), _of_test_scores, ("spec", "metric")),
    "predictions": _Rules(("split", "example"), _of_predictions, many_rows=True),
    "teacher_logits": _Rules(("example",), many_rows=True),
    "attempts": _Rules(("trial_id",)),
    "sweeps": _CELLS,
    "earlier": _CELLS,
}


def _items(lists: Any, *fields: str) -> list[Any]:
    """(items,) the row of each item of a column of lists, and its fields."""
    flat = pc.list_flatten(lists)
    rows = pc.list_parent_indices(lists).to_numpy()
    return [rows, *(pc.struct_field(flat, field) for field in fields)]


def _rows_with(bad: Any, parents: Any, rows: int) -> pa.Array:
    """(rows,) whether some item is bad; of item i, `parents` has the row."""
    found = np.zeros(rows, bool)
    found[parents[pc.fill_null(bad, False).to_numpy()]] = True
    return pa.array(found)


def _not_the_last(trials: pa.Table) -> Any:
    """Whether the score is none that the last epoch has for the metric, in any split."""
    of, epoch, metric, value = _items(trials["epoch_metrics"], "epoch", "metric", "value")
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
    columns = _SPECIFIED[table]
    rows = rows.select([0, "spec", *columns])
    rows = rows.filter(pc.and_(pc.is_valid(rows.column(0)), pc.is_valid(rows["spec"])))
    ids, specs = rows.column(0).to_pylist(), rows["spec"].to_pylist()
    kinds = [_KINDS.get(table, "TrialSpec")] * len(rows)
    if table == "profiles":
        speed = pc.fill_null(pc.equal(rows["measure"], "speed"), False)
        kinds = pc.if_else(speed, "SpeedSpec", "ProfileSpec").to_pylist()
    for id_, kind, spec in zip(ids, kinds, specs, strict=True):
        if id_ != identifier(id_[:1], kind, spec, id_.partition("-")[0][1:]):
            yield id_, "its identifier is not that of its spec"
    for name in columns if table == "trials" else ():
        stated = _json_of(name, rows[name]).to_pylist()
        for id_, text, spec in zip(ids, stated, specs, strict=True):
            if text is not None and f'"{name}":' in spec and text not in spec:
                yield id_, f"its {name} is not that of its spec"


def _json_of(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """`"name":value` as specs have it, of each value that is not null. Arrow makes the texts, since
    encoding each value takes longer than reading the table; few fingerprints are different."""
    if pa.types.is_string(column.type):
        values = column.unique()
        texts = pa.array(
            [value if value is None else _encode(value) for value in values.to_pylist()],
            pa.string(),
        )
        value = texts.take(pc.index_in(column, values))
    elif pa.types.is_list(column.type):
        items = pc.binary_join(column.cast(pa.list_(pa.string())), ",")
        # a list with a null has no text, and is that of no spec
        items = pc.if_else(pc.is_valid(column), pc.fill_null(items, "null"), None)
        value = pc.binary_join_element_wise("[", items, "]", "")
    else:
        value = column.cast(pa.string())
    return pc.binary_join_element_wise(f'"{name}":', value, "")
