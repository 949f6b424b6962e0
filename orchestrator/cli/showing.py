"""The text of `show`: a record's fields, and the numbers of a measurement as tables."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lp_sweep.analysis.render import render_rows
from lp_sweep.orchestrator.service.store import History, attempt_line, moment, tries
from lp_sweep.storage.printable import page, ranges
from lp_sweep.trials.measures.registry import MEASURES

# only in the JSON; epochs and speeds have views, and a profile's numbers a table
_NOT_SHOWN = ("spec", "epoch_metrics", "layers", "values", "timings")
_SPEED_COLUMNS = (
    *("quantity", "batch", "full_ms", "pruned_ms", "speedup", "speedup_q25", "speedup_q75"),
    "pairs",
)


def show_text(found: History) -> str:
    record = found.record
    if record is None:
        lines = [f"{found.id}: no record, {tries(found)}"]
    else:
        shown = {name: value for name, value in record.items() if name not in _NOT_SHOWN}
        lines = [f"{name:<26} {_value(value)}" for name, value in shown.items()]
        if "measure" in record:
            lines += ["", *(_speed(record) if record["timings"] else _measurement(record))]
    lines += [""] * bool(found.attempts) + [attempt_line(attempt) for attempt in found.attempts]
    if found.attempts:
        lines.append(f"tracebacks: lp-sweep logs {found.id}")
    return page(lines)


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dt.datetime):
        return moment(value)
    if isinstance(value, list) and value and isinstance(value[0], tuple):  # an Arrow map
        return ", ".join(f"{key} {text}" for key, text in value)
    if isinstance(value, list):
        return " ".join(_value(item) for item in value)
    if isinstance(value, Mapping):
        return "=".join(_value(item) for item in value.values())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _measurement(profile: Mapping[str, Any]) -> list[str]:
    """Its network, its rows, and a table with a line for each layer. Numbers that compare a layer
    with several others are a matrix, with the others as columns."""
    measure = str(profile["measure"]).replace("_", "-")
    known = MEASURES.get(profile["measure"])
    by_layer: dict[Any, dict[str, float]] = defaultdict(dict)
    for item in profile["layers"] or ():
        by_layer[item["layer"]][(known and known.column) or measure] = item["value"]
    grids: dict[str, dict[Any, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for item in profile["values"] or ():
        grids[str(item["name"])][item["layer"]][str(item["other"])] = item["value"]
    lines = [_measured_on(measure, profile)]
    for name, grid in grids.items():
        if any(len(others) > 1 for others in grid.values()):
            lines += ["", f"{name}:", *_table(grid)]
        else:
            for layer, others in grid.items():
                [by_layer[layer][name]] = others.values()
    return lines + ["", *_table(by_layer)] * bool(by_layer)


def _measured_on(measure: str, profile: Mapping[str, Any]) -> str:
    trial, other = profile["trial_id"], profile["against"]
    network = f"the network of {trial}" if trial else f"{profile['model']}, pre-trained"
    beside = f"that of {other}" if other else "the pre-trained one"
    task = profile["task"]
    rows = f"{profile['dev_examples']} dev rows of {task}"
    known = MEASURES.get(profile["measure"])
    shown = known.shown if known else "{measure} of {network}, on {rows}"
    return shown.format(measure=measure, network=network, beside=beside, rows=rows, task=task)


def _table(grid: Mapping[Any, Mapping[str, float]]) -> list[str]:
    names = dict.fromkeys(name for numbers in grid.values() for name in numbers)
    columns = {name: [numbers.get(name) for numbers in grid.values()] for name in names}
    return _lines(pa.table({"layer": [*grid], **columns}))


def _speed(profile: Mapping[str, Any]) -> list[str]:
    """Its network and device, and a line for each quantity and batch."""
    kept = ranges(profile["kept_layers"])
    gone = profile["removed_feed_forwards"]
    without = f" without feed-forwards {ranges(gone)}" if gone else ""
    first = (
        f"speed of {profile['model']}, layers {kept}{without}, beside all {profile['depth']}: "
        f"batches of rows of {profile['max_length']} tokens, on {profile['device_name']}"
    )
    return [first, "", *_lines(pa.Table.from_pylist(profile["timings"]).select(_SPEED_COLUMNS))]


def _lines(rows: pa.Table) -> list[str]:
    return render_rows(rows, terminal=False).splitlines()
