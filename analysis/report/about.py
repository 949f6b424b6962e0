"""The sections of a report besides its answer: request, missing results, sources."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from lp_sweep.analysis import phrases
from lp_sweep.analysis.notes import setup_notes
from lp_sweep.analysis.rows import Row, grouped, picked
from lp_sweep.analysis.tabledef import Table, Text, context, plain, text
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import also_in_train, listed, ranges, short
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.schema import PUBLISHED_VERSIONS
from lp_sweep.storage.store import Store, Unreadable


class Fact(NamedTuple):
    """A line of a list: `tasks`, `sst2, rte`."""

    name: str
    text: str


class Sheet(NamedTuple):
    """A table, and the command that prints it."""

    name: str
    table: Table
    command: str


class Gaps(NamedTuple):
    """Missing, failed and single-seed results: counts, tables and further sentences."""

    counts: Mapping[str, int]  # the columns of _COUNTS
    sentences: Sequence[str]
    sheets: Sequence[Sheet]
    commands: Sequence[str]  # to get the missing results


class Origin(NamedTuple):
    """Where the numbers come from."""

    facts: Sequence[Fact]
    sheets: Sequence[Sheet]
    sweep_files: Sequence[Fact]  # the name, and the text of the file as it was run


_MOST_NAMES = 60  # names in a list

_AXES = """
SELECT sweep, list(model ORDER BY cell) AS models, list(task ORDER BY cell) AS tasks,
    list(seed ORDER BY cell) AS seeds, list(procedure ORDER BY cell) AS procedures,
    list(feed_forward ORDER BY cell) AS "feed-forwards removed"
FROM cells GROUP BY sweep ORDER BY sweep
"""
_USUAL = {"procedures": ["direct"], "feed-forwards removed": ["none"]}  # these get no line
_STRATEGIES = """
SELECT sweep, strategy, min(cell) AS first,
    list(DISTINCT k ORDER BY k) FILTER (threshold IS NULL AND k IS NOT NULL) AS ks,
    list(DISTINCT threshold ORDER BY threshold DESC) FILTER (threshold IS NOT NULL) AS thresholds
FROM cells
GROUP BY sweep, strategy
ORDER BY sweep, first
"""
_STATES = """
SELECT sweep, state, count(*) AS n, count(DISTINCT trial_id) AS networks
FROM cells GROUP BY sweep, state ORDER BY sweep, state = 'done' DESC, state
"""
_RECIPES = """
SELECT DISTINCT cells.sweep, learning_rate, batch_size, epochs, max_length, precision_used,
    compute_used, limit_train, limit_dev
FROM cells JOIN trials ON trials.trial_id = cells.trial_id
ORDER BY ALL
"""


def asked(catalog: Catalog) -> dict[str, list[Fact]]:
    """The axes of each sweep of the catalog, and how much of it is done, sorted by name."""
    facts: dict[str, list[Fact]] = {}
    for row in catalog.query(_AXES).to_pylist():
        axes = {
            label: [*dict.fromkeys(values)] for label, values in row.items() if label != "sweep"
        }
        facts[row["sweep"]] = [
            Fact(label, listed(names, _MOST_NAMES))
            for label, names in axes.items()
            if names != _USUAL.get(label)
        ]
    for label, sql, say, between in (
        ("strategies", _STRATEGIES, _strategy, "; "),
        ("recipe", _RECIPES, _recipe, " / "),
        ("cells", _STATES, _state, ", "),
    ):
        rows = grouped(catalog.query(sql).to_pylist(), lambda row: row["sweep"])
        for sweep, own in rows.items():
            facts[sweep].append(Fact(label, between.join(map(say, own))))
    return facts


def _strategy(row: Row) -> str:
    """`top (0-3,6 dropped)`, `contribution t=0.95, 0.9`."""
    parts = [row["strategy"]]
    if row["ks"]:
        parts.append(f"({ranges(row['ks'])} dropped)")
    if row["thresholds"]:
        parts.append(f"t={', '.join(f'{value:g}' for value in row['thresholds'])}")
    return " ".join(parts)


def _state(row: Row) -> str:
    networks = f" ({row['networks']} networks)" if row["state"] == "done" else ""
    return f"{row['n']} {row['state'].replace('_', ' ')}{networks}"


def _recipe(row: Row) -> str:
    """A trial's recipe: `learning rate 2e-05, batch 32, 3 epochs, at most 128 tokens, ...`."""
    parts = {
        "learning_rate": "learning rate {:g}",
        "batch_size": "batch {}",
        "epochs": "1 epoch" if row["epochs"] == 1 else "{} epochs",
        "max_length": "at most {} tokens",
        "precision_used": "{}",
        "compute_used": "{}",
        "limit_train": "at most {:,d} train rows",
        "limit_dev": "at most {:,d} dev rows",
    }
    return ", ".join(said.format(row[name]) for name, said in parts.items() if row[name])


_MOST_CELLS = 500  # lines in a list

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
SELECT sweep, model, procedure, feed_forward, strategy, depth, k, threshold, task,
    state, list(DISTINCT seed ORDER BY seed) AS seeds
FROM cells
WHERE state NOT IN ('done', 'not_needed')
GROUP BY ALL
ORDER BY sweep, min(cell)
LIMIT {_MOST_CELLS}
"""
# grouped by the overrides of the run that asked for them: a run without these would not ask again.
# The whole sweep comes first (no overrides): its run asks only for its own cells
_ASKED_BY = """
SELECT coalesce(overrides, '') AS overrides, bool_or(state = 'failed') AS failed
FROM cells
WHERE state NOT IN ('done', 'not_needed')
GROUP BY 1
ORDER BY 1
"""
_SHARED = ("dev_in_train", "dev_relabelled", "dev_examples")
_SHARED_ROWS = f"""
SELECT DISTINCT task, {", ".join(_SHARED)} FROM trials
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
    """The gaps of the catalog's sweeps. `store`: the store's location, for the commands."""
    failed, open_ = catalog.query(_FAILED).to_pylist(), catalog.query(_OPEN).to_pylist()
    of_failed: dict[str, Text] = {
        "type": text("error_type"),
        "cells": text("n_cells"),
        "for example": lambda row: row["trial_id"] or "a measurement",
        "message": lambda row: redact_text(short(row["message"] or "")),
    }
    of_open: dict[str, Text] = {
        **context(open_),
        "strategy": phrases.strategy,
        "layers": phrases.kept_of,
        "task": text("task"),
        "state": text("state"),
        "seeds": text("seeds", listed),
    }
    unlike = catalog.query("FROM recipe_differences ORDER BY ALL").to_pylist()
    of_unlike = {name: text(name) for name in ("sweep", "model", "procedure", "task", "setting")}
    of_unlike |= {"found": text("found", listed)}
    more = f", the first {_MOST_CELLS} of them" if len(open_) == _MOST_CELLS else ""
    return Gaps(
        counts=catalog.query(_COUNTS).to_pylist()[0],
        sentences=[
            *(
                f"Task {row['task']}: {also_in_train(*picked(row, _SHARED))}"
                for row in catalog.query(_SHARED_ROWS).to_pylist()
            ),
            *(f"{note}." for note in setup_notes(catalog)),
            *map(_unreadable, catalog.unreadable),
        ],
        sheets=[
            *_sheet("failures", "What failed, and why", failed, of_failed),
            *_sheet("open-cells", f"Cells without a score{more}", open_, of_open),
            *_sheet(
                "differences", "Cells that were trained in more than one way", unlike, of_unlike
            ),
        ],
        commands=_next_commands(catalog, failed, store),
    )


def _sheet(name: str, title: str, rows: Sequence[Row], columns: Mapping[str, Text]) -> list[Sheet]:
    """A table that is not in TABLES; none without rows."""
    long = pa.Table.from_pylist([*rows])
    lines = tuple(tuple(plain(show(row)) for show in columns.values()) for row in rows)
    table = Table(title=title, columns=tuple(columns), rows=lines, notes=(), long=long)
    return [Sheet(name, table, "")] if rows else []


def _unreadable(item: Unreadable) -> str:
    where = "" if item.lost else "Left out, unreadable: "
    return f"{where}{redact_text(item.location)}: {item.reason}"


def _next_commands(catalog: Catalog, failed: Sequence[Row], store: str) -> list[str]:
    """The commands to get the missing results. They name the sweep file `sweep.yaml`: only the
    reader knows its path."""
    at = f"--store {shlex.quote(store)}"
    named = [row["trial_id"] for row in failed if row["trial_id"]]
    commands = [f"lp-sweep logs {name} {at}" for name in named[:3]]
    asked_by = catalog.query(_ASKED_BY).to_pylist()
    for verb, rows in (("retry", [row for row in asked_by if row["failed"]]), ("run", asked_by)):
        for row in rows:
            words = ["lp-sweep", verb, "sweep.yaml", row["overrides"], at]
            commands.append(" ".join(filter(None, words)))
    return commands


_MOST_COMMANDS = 5  # command lines
_FINGERPRINT = "{0}_fingerprint[:24] || if(len({0}_fingerprint) > 24, '…', '')"

_WHEN = """
SELECT min(started_at) AS first, max(ended_at) AS last, sum(seconds_total) AS seconds,
    count(*) AS n, count(DISTINCT host) AS hosts
FROM trials
"""
_COMMANDS = """
SELECT command, count(*) AS n FROM trials WHERE command <> '' GROUP BY ALL
ORDER BY n DESC, command
"""
_LISTS = {
    "models": f"""
        SELECT model AS "model", depth AS "depth", model_revision AS "revision",
            {_FINGERPRINT.format("model")} AS "fingerprint", count(*) AS "trials"
        FROM trials GROUP BY ALL ORDER BY ALL""",
    "data": f"""
        SELECT task AS "task", metric || coalesce(' of ''' || positive || '''', '') AS "metric",
            max(train_examples) AS "train rows",
            max(dev_examples) AS "dev rows", {_FINGERPRINT.format("data")} AS "fingerprint",
            count(*) AS "trials"
        FROM trials GROUP BY task, metric, positive, data_fingerprint ORDER BY ALL""",
    "machines": """
        SELECT device_name AS "device", device_type AS "type", threads AS "threads",
            precision_used AS "precision", count(DISTINCT host) AS "hosts", count(*) AS "trials"
        FROM trials GROUP BY ALL ORDER BY ALL""",
    "versions": f"""
        SELECT entry.key AS "program", entry.value AS "version", count(*) AS "trials"
        FROM (SELECT unnest(map_entries(versions)) AS entry FROM trials)
        WHERE entry.key IN {PUBLISHED_VERSIONS} GROUP BY ALL ORDER BY ALL""",
}


def origin(catalog: Catalog, store: Store) -> Origin:
    """The sources of the catalog's trials and sweeps."""
    sheets = []
    for name, sql in _LISTS.items():
        found = catalog.query(sql)
        columns = {column: text(column, _shown) for column in found.column_names}
        sheets += _sheet(name, name.capitalize(), found.to_pylist(), columns)
    commands = catalog.query(_COMMANDS)["command"].to_pylist()
    shown = [redact_text(command) for command in commands[:_MOST_COMMANDS]]
    more = len(commands) - len(shown)
    return Origin(
        facts=[
            Fact("store", redact_text(store.location)),
            *_when(catalog),
            *(Fact("command", line) for line in (*shown, *([f"and {more} more"] if more else []))),
        ],
        sheets=sheets,
        sweep_files=_sweep_files(catalog, store),
    )


def _when(catalog: Catalog) -> list[Fact]:
    (row,) = catalog.query(_WHEN).to_pylist()
    if not row["n"]:
        return [Fact("trials", "none yet")]
    hosts = f"{row['hosts']} host{'' if row['hosts'] == 1 else 's'}"
    hours = (row["seconds"] or 0.0) / 3600
    return [
        Fact("trained", f"{_moment(row['first'])} to {_moment(row['last'])}"),
        Fact("trials", f"{row['n']} on {hosts}, {hours:.3g} hours in all"),
    ]


def _moment(value: dt.datetime | None) -> str:
    return "?" if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"


def _shown(value: object) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _sweep_files(catalog: Catalog, store: Store) -> list[Fact]:
    """The sweep files as they were run, without anything that looks like a secret."""
    names = catalog.query("SELECT DISTINCT sweep FROM cells ORDER BY ALL")["sweep"].to_pylist()
    stored = store.names("sweeps")  # the name inside a file may be any text
    texts = {name: store.read_text("sweeps", f"{name}.yaml") for name in names if name in stored}
    return [Fact(listed([name]), redact_text(text)) for name, text in texts.items() if text]
