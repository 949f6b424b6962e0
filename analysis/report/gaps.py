"""What a reader must know that no number says: what failed, what is missing, what was seen once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lp_sweep.analysis import phrases
from lp_sweep.analysis.mixed import mixed, setup_notes
from lp_sweep.analysis.report.page import Gaps, Sheet
from lp_sweep.analysis.tables import Table, context, flat
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import also_in_train, listed, short
from lp_sweep.storage.redact import redact_text

Row = Mapping[str, Any]
_MOST = 500  # lines of a list

_FAILED = """
SELECT cells.error_type, count(DISTINCT (cells.sweep, cells.cell)) AS n_cells,
    min(cells.trial_id) AS trial_id, arg_max(attempts.message, attempts.ended_at) AS message
FROM cells
LEFT JOIN attempts ON attempts.trial_id = coalesce(cells.trial_id, cells.profile_id)
    AND attempts.error_type = cells.error_type
WHERE state = 'failed'
GROUP BY ALL
ORDER BY n_cells DESC, cells.error_type
"""
_OPEN = f"""
SELECT sweep, model, procedure, feed_forward, strategy, k, threshold, task, state,
    list(DISTINCT seed ORDER BY seed) AS seeds
FROM cells
WHERE state NOT IN ('done', 'not_needed')
GROUP BY ALL
ORDER BY sweep, min(cell)
LIMIT {_MOST}
"""
# by the overrides of the run that asked for them: without these another run would not. Those of
# the whole sweep first: a run of it lists its own cells only
_ASKED_BY = """
SELECT coalesce(overrides, '') AS overrides, bool_or(state = 'failed') AS failed
FROM cells
WHERE state NOT IN ('done', 'not_needed')
GROUP BY 1
ORDER BY 1
"""
_SHARED_ROWS = """
SELECT DISTINCT task, dev_in_train, dev_relabelled, dev_examples FROM trials
WHERE dev_in_train > 0
ORDER BY ALL
"""
_COUNTS = """
SELECT
    (SELECT count(*) FROM cells) AS n_cells,
    (SELECT count(*) FROM cells WHERE state NOT IN ('done', 'not_needed')) AS n_open,
    (SELECT count(DISTINCT coalesce(trial_id, sweep || ' ' || cell)) FROM cells
        WHERE state NOT IN ('done', 'not_needed')) AS n_open_networks,
    (SELECT count(*) FROM cells WHERE state = 'not_needed') AS n_not_needed,
    (SELECT count(*) FROM trials WHERE score IS NULL) AS n_no_number,
    (SELECT count(*) FROM task_table WHERE n > 0) AS n_means,
    (SELECT count(*) FROM task_table WHERE n = 1) AS n_single,
    (SELECT count(*) FROM (SELECT DISTINCT sweep, model, feed_forward, kept_layers
        FROM speed_table)) AS n_networks,
    (SELECT count(*) FROM (SELECT DISTINCT sweep, model, feed_forward, kept_layers
        FROM speed_table WHERE inference_speedup IS NOT NULL)) AS n_timed,
    (SELECT count(DISTINCT trial_id) FROM attempts
        WHERE trial_id IN (SELECT trial_id FROM trials)) AS n_tried_again
"""


def gaps(catalog: Catalog, store: str) -> Gaps:
    """Of the sweeps of the catalog; `store` is its location, for the commands."""
    failed, open_ = catalog.query(_FAILED), catalog.query(_OPEN)
    sheets = []
    if failed.num_rows:
        sheets.append(Sheet("failures", _failures(failed), "", True))
    if open_.num_rows:
        sheets.append(Sheet("open-cells", _open_cells(open_), "", open_.num_rows <= 12))
    (counts,) = catalog.query(_COUNTS).to_pylist()
    return Gaps(
        sentences=[
            *_sentences(counts),
            *_also_in_train(catalog),
            *mixed(catalog),
            *(f"{note}." for note in setup_notes(catalog)),
            *_unreadable(catalog),
        ],
        sheets=sheets,
        commands=_commands(failed.to_pylist(), catalog.query(_ASKED_BY).to_pylist(), store),
    )


def _failures(found: Any) -> Table:
    columns = {
        "type": lambda row: str(row["error_type"]),
        "cells": lambda row: str(row["n_cells"]),
        "for example": lambda row: row["trial_id"] or "a measurement",
        "message": lambda row: redact_text(short(row["message"] or "")),
    }
    return flat(found, found.to_pylist(), "Failures by type", columns, ())


def _open_cells(found: Any) -> Table:
    rows = found.to_pylist()
    columns = {
        **context(rows),
        "strategy": lambda row: str(row["strategy"]),
        "K": lambda row: phrases.setting(row) if _is_set(row) else "?",
        "task": lambda row: str(row["task"]),
        "state": lambda row: str(row["state"]),
        "seeds": lambda row: listed(row["seeds"]),
    }
    more = f", the first {_MOST} of them" if len(rows) == _MOST else ""
    return flat(found, rows, f"Cells without a score{more}", columns, ())


def _is_set(row: Row) -> bool:
    return row["k"] is not None or row["threshold"] is not None


def _sentences(counts: Mapping[str, int]) -> Iterator[str]:
    if not counts["n_cells"]:
        yield "The store has no sweep: nothing was asked for yet."
        return
    asked = counts["n_cells"] - counts["n_not_needed"]
    open_, trials = counts["n_open"], counts["n_open_networks"]
    shared = f" ({trials} trial{'' if trials == 1 else 's'})" if trials < open_ else ""
    yield (
        f"Without a score: {open_} of {asked} cells{shared}. A mean over them is shown as missing, "
        "and an answer that hangs on them is an interval."
        if open_
        else f"Each of the {asked} cells has a record."
    )
    if counts["n_no_number"]:
        yield f"{counts['n_no_number']} trials ended with a score that is no number."
    if counts["n_single"]:
        yield (
            f"{counts['n_single']} of {counts['n_means']} scores are of one seed: they have no "
            "spread, and say nothing of other seeds."
        )
    yield from _about_speed(counts["n_timed"], counts["n_networks"])
    if counts["n_tried_again"]:
        yield f"{counts['n_tried_again']} trials failed at first and were done by a later try."


def _about_speed(timed: int, networks: int) -> Iterator[str]:
    if timed < networks:
        which = "No network has" if not timed else f"{networks - timed} of {networks} networks lack"
        yield f"{which} a measured speed: {phrases.NOT_MEASURED} is not derived from anything."


def _also_in_train(catalog: Catalog) -> Iterator[str]:
    for row in catalog.query(_SHARED_ROWS).to_pylist():
        both = also_in_train(row["dev_in_train"], row["dev_relabelled"], row["dev_examples"])
        yield f"Task {row['task']}: {both}"


def _unreadable(catalog: Catalog) -> Iterator[str]:
    for item in catalog.unreadable:
        yield f"Left out, unreadable: {redact_text(item.location)}: {item.reason}"


def _commands(failed: Sequence[Row], asked_by: Sequence[Row], store: str) -> list[str]:
    """Commands that the reader can type; the sweep file is where he has it."""
    at = f"--store {shlex.quote(store)}"
    named = [row["trial_id"] for row in failed if row["trial_id"]]
    commands = [f"lp-sweep logs {name} {at}" for name in named[:3]]
    of_failed = [row for row in asked_by if row["failed"]]
    for verb, rows in (("retry", of_failed), ("run", asked_by)):
        for row in rows:
            words = ["lp-sweep", verb, "sweep.yaml", row["overrides"], at]
            commands.append(" ".join(filter(None, words)))
    return commands
