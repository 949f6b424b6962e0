"""The text of `show`, and the numbers of a measurement as small tables."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from lp_sweep.orchestrator.service.store import History, attempt_line, moment, tries
from lp_sweep.storage.printable import page, printable, ranges
from lp_sweep.trials.measures.registry import MEASURES

# fields that `show` groups; the others follow
_GROUPS = {
    "what": """trial_id profile_id identity_version model model_fingerprint model_revision depth
        kept_layers dropped_layers k procedure bridge distill teacher measure task data_fingerprint
        seed""",
    "result": """metric positive last best best_epoch majority dev_blind train_losses steps
        train_examples dev_examples dev_in_train dev_relabelled params_total params_encoder
        params_embedding micro_batch out_of_memory_retries resumed_from_step""",
    "where": """host device_type device_name threads started_at ended_at command versions""",
}
# only in the JSON; epochs and speeds have views, and a profile's numbers a table
_NOT_SHOWN = ("spec", "epoch_metrics", "layers", "values", "timings")
_GREEDY_STEP = "step"  # the step that removed the layer
_SPEED_COLUMNS = ("batch", "full ms", "ms", "speed-up", "quartiles", "pairs")
_Grid = Mapping[Any, Mapping[Any, float | None]]  # row -> column -> value


def show_text(found: History) -> str:
    lines: list[str] = []
    if found.record is None:
        lines += [f"{found.id}: no record, {tries(found)}"]
    else:
        shown = dict(found.record)
        for group, names in _GROUPS.items():
            known = [name for name in names.split() if name in shown]
            lines += [group, *(_line(name, shown.pop(name)) for name in known)]
        rest = {name: value for name, value in shown.items() if name not in _NOT_SHOWN}
        lines += ["recipe and times", *(_line(name, value) for name, value in rest.items())]
        lines += ["", *_numbers(found.record)] if "measure" in found.record else []
    lines += [""] * bool(found.attempts) + [attempt_line(attempt) for attempt in found.attempts]
    if found.attempts:
        lines.append(f"tracebacks: lp-sweep logs {found.id}")
    return page(lines)


def _numbers(profile: Mapping[str, Any]) -> list[str]:
    return _timings_text(profile) if profile["timings"] else layers_text(profile)


def _line(name: str, value: Any) -> str:
    return f"  {name:<26} {_value(value)}"


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


def layers_text(profile: Mapping[str, Any]) -> list[str]:
    """A measurement: its network, its rows, and a table with a line for each layer. Numbers that
    compare a layer with several others are a matrix, with the others as columns."""
    by_layer: dict[Any, dict[Any, float | None]] = defaultdict(dict)
    measure = printable(str(profile["measure"])).replace("_", "-")
    known = MEASURES.get(profile["measure"])
    chosen_by = (known and known.column) or measure
    for item in profile["layers"] or ():
        by_layer[item["layer"]][chosen_by] = item["value"]
    lines = [_measured_on(measure, profile)]
    for name, grid in _by_name(profile["values"] or ()).items():
        if any(len(others) > 1 for others in grid.values()):
            lines += ["", f"{printable(name)}:", *_table(grid, 3)]
            continue
        for layer, others in grid.items():
            [by_layer[layer][name]] = others.values()
    return lines + ["", *_table(by_layer, 4)] * bool(by_layer)


def _measured_on(measure: str, profile: Mapping[str, Any]) -> str:
    trial, other = profile["trial_id"], profile["against"]
    network = f"the network of {trial}" if trial else f"{profile['model']}, pre-trained"
    beside = f"that of {other}" if other else "the pre-trained one"
    task = profile["task"]
    rows = f"{profile['dev_examples']} dev rows of {task}"
    known = MEASURES.get(profile["measure"])
    shown = known.shown if known else "{measure} of {network}, on {rows}"
    return printable(
        shown.format(measure=measure, network=network, beside=beside, rows=rows, task=task)
    )


def _by_name(values: Iterable[Mapping[str, Any]]) -> dict[str, dict[Any, dict[Any, float | None]]]:
    """Name -> layer -> other -> value, in the profile's order."""
    grids: dict[str, dict[Any, dict[Any, float | None]]] = defaultdict(lambda: defaultdict(dict))
    for item in values:
        grids[str(item["name"])][item["layer"]][item["other"]] = item["value"]
    return grids


def _table(grid: _Grid, digits: int) -> list[str]:
    columns = list(dict.fromkeys(column for cells in grid.values() for column in cells))
    heads = [printable(str(column)) for column in columns]
    widths = [max(len(head), digits + 3) for head in heads]
    lines = ["layer  " + "  ".join(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True))]
    for layer, cells in grid.items():
        texts = [_number(column, cells, digits) for column in columns]
        row = "  ".join(f"{text:>{w}}" for text, w in zip(texts, widths, strict=True))
        lines.append(f"{layer!s:>5}  {row}")
    return lines


def _number(column: Any, cells: Mapping[Any, float | None], digits: int) -> str:
    """Empty if there is no value, – if the value is not a number."""
    if column not in cells:
        return ""
    value = cells[column]
    if value is None:
        return "–"
    return f"{value:.0f}" if column == _GREEDY_STEP else f"{value:.{digits}f}"


def _timings_text(speed: Mapping[str, Any]) -> list[str]:
    """A speed measurement: its network and device, and a line for each quantity and batch."""
    kept = ranges(speed["kept_layers"])
    gone = speed["removed_feed_forwards"]
    without = f" without feed-forwards {ranges(gone)}" if gone else ""
    first = (
        f"speed of {speed['model']}, layers {kept}{without}, beside all {speed['depth']}: batches "
        f"of rows of {speed['max_length']} tokens, on {speed['device_name']}"
    )
    head = f"{'':<9}  " + "  ".join(f"{name:>9}" for name in _SPEED_COLUMNS)
    return [printable(first), "", head, *map(_timing, speed["timings"] or ())]


def _timing(timing: Mapping[str, Any]) -> str:
    cells = (
        f"{timing['batch']}",
        f"{timing['full_ms']:.2f}",
        f"{timing['pruned_ms']:.2f}",
        f"{timing['speedup']:.3f}",
        f"{timing['speedup_q25']:.2f}-{timing['speedup_q75']:.2f}",
        f"{timing['pairs']}",
    )
    return f"{printable(timing['quantity']):<9}  " + "  ".join(f"{cell:>9}" for cell in cells)
