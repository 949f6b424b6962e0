"""The numbers of a profile, layer by layer, as small tables for a person."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from lp_sweep.storage.printable import printable

_GREEDY_STEP = "step"  # at which the layer went
_Grid = Mapping[Any, Mapping[Any, float | None]]  # row -> column -> value


def layers_text(profile: Mapping[str, Any]) -> list[str]:
    """What was measured of which network, on what, and a table: a line a layer. Where a layer has
    a number with each of several others it is a matrix, with the others as columns."""
    by_layer: dict[Any, dict[Any, float | None]] = defaultdict(dict)
    measure = printable(str(profile["measure"])).replace("_", "-")
    chosen_by = _GREEDY_STEP if measure == "greedy" else measure
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
    # a matrix has the layers of the first network below each other
    compared = {"cka": f" (rows) with {beside} (columns)", "similarity": f" with {beside}"}
    if measure == "greedy":
        return printable(
            f"greedy of {network}, after fine-tuning, on held-out train rows of {profile['task']}"
        )
    rows = f"{profile['dev_examples']} dev rows of {profile['task']}"
    return printable(f"{measure} of {network}{compared.get(measure, '')}, on {rows}")


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
        texts = [_cell(column, cells, digits) for column in columns]
        row = "  ".join(f"{text:>{w}}" for text, w in zip(texts, widths, strict=True))
        lines.append(f"{layer!s:>5}  {row}")
    return lines


def _cell(column: Any, cells: Mapping[Any, float | None], digits: int) -> str:
    """Blank where there is none, – where it is no number."""
    if column not in cells:
        return ""
    value = cells[column]
    if value is None:
        return "–"
    return f"{value:.0f}" if column == _GREEDY_STEP else f"{value:.{digits}f}"
