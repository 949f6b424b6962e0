"""Cells and trials of a sweep by state, from its cells and what is done and failed."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.watch.picture import Waiting

COLUMNS = ("trial_id", "kept_layers", "search")  # of the cells
IDLE = ("waiting", "not_needed")  # cells of a search that nobody is asked to run


def state_counts(cells: pa.Table, done: Set[str], failed: Set[str]) -> dict[str, int]:
    """`cells`: rows of the table `sweeps`, with COLUMNS; the others: identifiers of trials."""
    ended = pc.is_in(cells["trial_id"], pa.array(done | failed, pa.string()))
    idle = pc.and_(pc.is_in(cells["search"], pa.array(IDLE)), pc.invert(ended))
    resting = cells.filter(idle)["search"]
    not_needed, searched = _among(resting, {"not_needed"}), _among(resting, {"waiting"})
    cells_asked = cells.filter(pc.invert(idle))
    asked = cells_asked["trial_id"]
    by_cell = _counts(asked, done, failed)
    by_trial = _counts(asked.unique(), done, failed)
    open_cells = cells_asked.filter(pc.is_null(asked))
    empty = pc.equal(pc.list_value_length(open_cells["kept_layers"]), 0)
    impossible = int(pc.sum(empty).as_py() or 0)
    return {
        "cells": len(cells),
        "trials": sum(by_trial.values()),
        **{f"trials_{key}": count for key, count in by_trial.items()},
        **{f"cells_{key}": count for key, count in by_cell.items()},
        "cells_deferred": len(open_cells) - impossible + searched,
        "cells_impossible": impossible,
        "cells_not_needed": not_needed,
    }


def _counts(trials: Any, done: Set[str], failed: Set[str]) -> dict[str, int]:
    """Of identifiers, without the nulls."""
    number = {
        "done": _among(trials, done),
        "failed": _among(trials, failed - done),
    }
    return number | {"pending": len(trials) - trials.null_count - sum(number.values())}


def _among(trials: Any, names: Set[str]) -> int:
    return int(pc.sum(pc.is_in(trials, pa.array(names, pa.string()))).as_py() or 0)


def waiting_trials(cells: pa.Table, begun: Set[str]) -> tuple[Waiting, ...]:
    """Of each model and task, in the order of the cells, the trials that are asked for and not
    among `begun`: ended, or at work. `cells`: with `model` and `task`, too."""
    resting = pc.is_in(cells["search"], pa.array(IDLE))
    settled = pc.is_in(cells["trial_id"], pa.array(begun, pa.string()))
    waits = pc.and_(pc.is_valid(cells["trial_id"]), pc.invert(pc.or_(resting, settled)))
    groups = cells.filter(waits).group_by(["model", "task"], use_threads=False)
    rows = groups.aggregate([("trial_id", "count_distinct")]).to_pylist()
    return tuple(
        Waiting(model=row["model"], task=row["task"], pieces=row["trial_id_count_distinct"])
        for row in rows
    )
