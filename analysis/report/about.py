"""The sections of a report besides its answers and tables: recipes, missing results, sources. Each
sheet is one query whose columns are those that people read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lp_sweep.analysis.figures.numbers import FULL
from lp_sweep.analysis.notes import setup_notes
from lp_sweep.analysis.tabledef import Table
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import listed, short
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.schema import PUBLISHED_VERSIONS
from lp_sweep.storage.store import Store


class Sheet(NamedTuple):
    """A table, and the command that prints it, if there is one."""

    name: str
    table: Table
    command: str = ""


_OPEN = "state NOT IN ('done', 'not_needed')"
_FINGERPRINT = "{0}_fingerprint[:24] || if(len({0}_fingerprint) > 24, '…', '')"
_MOST_CELLS = 500  # lines in a list

# by part of the page and name: the title, and the query
_RECIPES = {
    "recipes": (
        "Recipes",
        """
        SELECT DISTINCT cells.sweep, learning_rate AS "learning rate", batch_size AS batch, epochs,
            max_length AS tokens, precision_used AS precision, compute_used AS compute,
            limit_train AS "train rows at most", limit_dev AS "dev rows at most"
        FROM cells JOIN trials ON trials.trial_id = cells.trial_id
        ORDER BY ALL""",
    ),
}
_GAPS = {
    "failures": (
        "What failed, and why",
        """
        SELECT cells.error_type AS type, count(DISTINCT (cells.sweep, cells.cell)) AS cells,
            coalesce(min(cells.trial_id), 'a measurement') AS "for example",
            arg_max(attempts.message, attempts.ended_at) AS message
        FROM cells
        LEFT JOIN attempts ON attempts.trial_id = coalesce(cells.trial_id, cells.profile_id)
            AND attempts.error_type = cells.error_type
        WHERE state = 'failed'
        GROUP BY cells.error_type
        ORDER BY 2 DESC, 1""",
    ),
    "open-cells": (
        f"Cells without a score, at most {_MOST_CELLS}",
        f"""
        SELECT sweep, model, procedure, feed_forward AS "feed-forward",
            if(k = 0 AND threshold IS NULL, '{FULL}',
                strategy || coalesce(format(' t={{:g}}', threshold), '')) AS strategy,
            coalesce((depth - k)::VARCHAR, '?') || ' of ' || depth AS layers, task, state,
            list(DISTINCT seed ORDER BY seed) AS seeds
        FROM cells
        WHERE {_OPEN}
        GROUP BY ALL
        ORDER BY sweep, min(cell)
        LIMIT {_MOST_CELLS}""",
    ),
    "differences": (
        "Cells that were trained in more than one way",
        """
        SELECT sweep, model, procedure, task, setting, found
        FROM recipe_differences ORDER BY ALL""",
    ),
}
_SOURCES = {
    "runs": (
        "Runs",
        """
        SELECT command, device_name AS device, threads, precision_used AS precision,
            count(*) AS trials, count(DISTINCT host) AS hosts,
            round(sum(seconds_total) / 3600, 3) AS hours, min(started_at) AS first,
            max(ended_at) AS last
        FROM trials GROUP BY ALL ORDER BY 5 DESC, 1, 2, 3, 4""",
    ),
    "models": (
        "Models",
        f"""
        SELECT model, depth, model_revision AS revision, {_FINGERPRINT.format("model")} AS
            fingerprint, count(*) AS trials
        FROM trials GROUP BY ALL ORDER BY ALL""",
    ),
    "data": (
        "Data",
        f"""
        SELECT task, metric || coalesce(' of ''' || positive || '''', '') AS metric,
            max(train_examples) AS "train rows", max(dev_examples) AS "dev rows",
            nullif(max(dev_in_train), 0) AS "of these also in train",
            nullif(max(dev_relabelled), 0) AS "with another label",
            {_FINGERPRINT.format("data")} AS fingerprint, count(*) AS trials
        FROM trials GROUP BY task, metric, positive, data_fingerprint ORDER BY ALL""",
    ),
    "versions": (
        "Versions",
        f"""
        SELECT entry.key AS program, entry.value AS version, count(*) AS trials
        FROM (SELECT unnest(map_entries(versions)) AS entry FROM trials)
        WHERE entry.key IN {PUBLISHED_VERSIONS} GROUP BY ALL ORDER BY ALL""",
    ),
}


_QUERIES = {"recipes": _RECIPES, "gaps": _GAPS, "sources": _SOURCES}


def sheets(catalog: Catalog, part: Literal["recipes", "gaps", "sources"]) -> list[Sheet]:
    """How the trials were trained, what is missing, or where they come from: what has rows, without
    columns that are empty."""
    found = []
    for name, (title, sql) in _QUERIES[part].items():
        long = catalog.query(sql)
        long = long.select([at for at in long.column_names if long[at].null_count < len(long)])
        columns = [map(_shown, column.to_pylist()) for column in long.columns]
        names, rows = tuple(long.column_names), tuple(zip(*columns, strict=True))
        table = Table(title=title, columns=names, rows=rows, notes=(), long=long)
        found += [Sheet(name, table)] if rows else []
    return found


def _shown(value: object) -> str:
    """For people, and without secrets."""
    if value is None:
        return "–"
    if isinstance(value, dt.datetime):
        return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
    if isinstance(value, list):
        return listed(value)
    return f"{value:,}" if isinstance(value, int) else short(redact_text(str(value)))


def sweep_files(names: Sequence[str], store: Store) -> dict[str, str]:
    """The sweep files as they were run, by sweep, without anything that looks like a secret."""
    stored = store.names("sweeps")  # the name inside a file may be any text
    texts = {name: store.read_text("sweeps", f"{name}.yaml") for name in names if name in stored}
    return {name: redact_text(text) for name, text in texts.items() if text}


COUNTS = f"""
SELECT count(*) AS n_cells, count(*) FILTER (WHERE {_OPEN}) AS n_open,
    count(DISTINCT coalesce(trial_id, sweep || ' ' || cell)) FILTER (WHERE {_OPEN})
        AS n_open_networks,
    count(*) FILTER (WHERE state = 'not_needed') AS n_not_needed,
    (SELECT count(*) FROM trials WHERE score IS NULL) AS n_no_number
FROM cells
"""


def cautions(catalog: Catalog) -> list[str]:
    """What the catalog leaves out: earlier setups, and files that can't be read."""
    unread = (
        ("" if item.lost else "Left out, unreadable: ")
        + f"{redact_text(item.location)}: {item.reason}"
        for item in catalog.unreadable
    )
    return [*(f"{note}." for note in setup_notes(catalog)), *unread]
