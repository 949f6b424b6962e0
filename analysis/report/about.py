"""The sections of a report besides its answer: request, missing results, sources."""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lp_sweep.analysis import phrases
from lp_sweep.analysis.notes import mixed, setup_notes
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.analysis.tabledef import Table, context, listing
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import also_in_train, listed, ranges, short
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.schema import PUBLISHED_VERSIONS
from lp_sweep.storage.store import Store


class Fact(NamedTuple):
    """A line of a list: `tasks`, `sst2, rte`."""

    name: str
    text: str


class Sheet(NamedTuple):
    """A table, and the command that prints it."""

    name: str
    table: Table
    command: str
    opened: bool


class Gaps(NamedTuple):
    """Missing, failed and single-seed results: tables and sentences."""

    sentences: Sequence[str]
    sheets: Sequence[Sheet]
    commands: Sequence[str]  # to get the missing results


class Origin(NamedTuple):
    """Where the numbers come from."""

    facts: Sequence[Fact]
    sheets: Sequence[Sheet]
    sweep_files: Sequence[Fact]  # the name, and the text of the file as it was run


_MOST_NAMES = 60  # names in a list

_AXIS = """
SELECT sweep, list(name ORDER BY first) AS names
FROM (SELECT sweep, {axis}::VARCHAR AS name, min(cell) AS first FROM cells GROUP BY ALL)
GROUP BY sweep
"""
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
# (label, column, the usual value, which gets no line)
_AXES = (
    ("models", "model", None),
    ("tasks", "task", None),
    ("seeds", "seed", None),
    ("procedures", "procedure", "direct"),
    ("feed-forwards removed", "feed_forward", "none"),
)


def asked(catalog: Catalog) -> dict[str, list[Fact]]:
    """The axes of each sweep of the catalog, and how much of it is done, sorted by name."""
    facts: dict[str, list[Fact]] = {}
    for label, axis, usual in _AXES:
        for row in catalog.query(_AXIS.format(axis=axis)).to_pylist():
            if row["names"] != [usual]:
                fact = Fact(label, listed(row["names"], _MOST_NAMES))
                facts.setdefault(row["sweep"], []).append(fact)
    for label, sql, say, between in _LINES:
        for sweep, texts in _by_sweep(catalog, sql, say).items():
            facts[sweep].append(Fact(label, between.join(texts)))
    return dict(sorted(facts.items()))


def _by_sweep(catalog: Catalog, sql: str, say: Any) -> dict[str, list[str]]:
    rows = grouped(catalog.query(sql).to_pylist(), lambda row: row["sweep"])
    return {sweep: [say(row) for row in own] for sweep, own in rows.items()}


def _strategy(row: Row) -> str:
    """`top K=0-3,6`, `contribution t=0.95, 0.9`."""
    parts = [row["strategy"]]
    if row["ks"]:
        parts.append(f"K={ranges(row['ks'])}")
    if row["thresholds"]:
        parts.append(f"t={', '.join(f'{value:g}' for value in row['thresholds'])}")
    return " ".join(parts)


def _state(row: Row) -> str:
    networks = f" ({row['networks']} networks)" if row["state"] == "done" else ""
    return f"{row['n']} {row['state'].replace('_', ' ')}{networks}"


def _recipe(row: Row) -> str:
    """A trial's recipe: `learning rate 2e-05, batch 32, 3 epochs, at most 128 tokens, ...`."""
    return ", ".join(
        f"{before}{value:{form}}{after}" for before, value, form, after in _parts(row) if value
    )


def _parts(row: Row) -> Iterable[tuple[str, Any, str, str]]:
    return (
        ("learning rate ", row["learning_rate"], "g", ""),
        ("batch ", row["batch_size"], "d", ""),
        ("", row["epochs"], "d", " epoch" if row["epochs"] == 1 else " epochs"),
        ("at most ", row["max_length"], "d", " tokens"),
        ("", row["precision_used"], "", ""),
        ("", row["compute_used"], "", ""),
        ("at most ", row["limit_train"], ",d", " train rows"),
        ("at most ", row["limit_dev"], ",d", " dev rows"),
    )


# (label, SQL of the rows, function that words a row, separator)
_LINES = (
    ("strategies", _STRATEGIES, _strategy, "; "),
    ("recipe", _RECIPES, _recipe, " / "),
    ("cells", _STATES, _state, ", "),
)


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
SELECT sweep, model, procedure, feed_forward, strategy, k, threshold, task, state,
    list(DISTINCT seed ORDER BY seed) AS seeds
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
    """The gaps of the catalog's sweeps. `store`: the store's location, for the commands."""
    open_ = catalog.query(_OPEN)
    sheets = failures(catalog)
    if open_.num_rows:
        sheets.append(Sheet("open-cells", _open_cells(open_), "", open_.num_rows <= 12))
    (counts,) = catalog.query(_COUNTS).to_pylist()
    return Gaps(
        sentences=[
            *_sentences(counts),
            *_also_in_train(catalog),
            *mixed(catalog),
            *(f"{note}." for note in setup_notes(catalog)),
            *unreadable_notes(catalog),
        ],
        sheets=sheets,
        commands=next_commands(catalog, store),
    )


def failures(catalog: Catalog) -> list[Sheet]:
    """A table of the failures by type, or no table; reads the views `cells` and `attempts`."""
    found = catalog.query(_FAILED)
    if not found.num_rows:
        return []
    columns = {
        "type": lambda row: str(row["error_type"]),
        "cells": lambda row: str(row["n_cells"]),
        "for example": lambda row: row["trial_id"] or "a measurement",
        "message": lambda row: redact_text(short(row["message"] or "")),
    }
    return [Sheet("failures", listing("What failed, and why", found, columns), "", True)]


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
    more = f", the first {_MOST_CELLS} of them" if len(rows) == _MOST_CELLS else ""
    return listing(f"Cells without a score{more}", found, columns)


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
        "and an answer that depends on them is an interval."
        if open_
        else f"Each of the {asked} cells has a record."
    )
    if counts["n_no_number"]:
        yield f"{counts['n_no_number']} trials ended with a score that is not a number."
    if counts["n_single"]:
        yield (
            f"{counts['n_single']} of {counts['n_means']} scores come from a single seed: another "
            "seed may score differently, by how much is unknown."
        )
    yield from _about_speed(counts["n_timed"], counts["n_networks"])
    if counts["n_tried_again"]:
        yield f"{counts['n_tried_again']} trials failed at first, and a later attempt succeeded."


def _about_speed(timed: int, networks: int) -> Iterator[str]:
    if timed < networks:
        which = "No network has" if not timed else f"{networks - timed} of {networks} networks lack"
        yield (
            f"{which} a measured speed, and none is estimated from the layers. To measure it, add "
            "`measure: {speed: cpu}` (or cuda) to the sweep file, then `lp-sweep run`."
        )


def _also_in_train(catalog: Catalog) -> Iterator[str]:
    for row in catalog.query(_SHARED_ROWS).to_pylist():
        both = also_in_train(row["dev_in_train"], row["dev_relabelled"], row["dev_examples"])
        yield f"Task {row['task']}: {both}"


def unreadable_notes(catalog: Catalog) -> Iterator[str]:
    for item in catalog.unreadable:
        where = "" if item.lost else "Left out, unreadable: "
        yield f"{where}{redact_text(item.location)}: {item.reason}"


def next_commands(catalog: Catalog, store: str) -> list[str]:
    """The commands to get the missing results. They name the sweep file `sweep.yaml`: only the
    reader knows its path."""
    failed, asked_by = (catalog.query(sql).to_pylist() for sql in (_FAILED, _ASKED_BY))
    at = f"--store {shlex.quote(store)}"
    named = [row["trial_id"] for row in failed if row["trial_id"]]
    commands = [f"lp-sweep logs {name} {at}" for name in named[:3]]
    of_failed = [row for row in asked_by if row["failed"]]
    for verb, rows in (("retry", of_failed), ("run", asked_by)):
        for row in rows:
            words = ["lp-sweep", verb, "sweep.yaml", row["overrides"], at]
            commands.append(" ".join(filter(None, words)))
    return commands


_MOST_COMMANDS = 5  # command lines
_SHOWN = 24  # first characters of a fingerprint

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
    "models": """
        SELECT model AS "model", depth AS "depth", model_revision AS "revision",
            model_fingerprint AS "fingerprint", count(*) AS "trials"
        FROM trials GROUP BY ALL ORDER BY ALL""",
    "data": """
        SELECT task AS "task", metric || coalesce(' of ''' || positive || '''', '') AS "metric",
            max(train_examples) AS "train rows",
            max(dev_examples) AS "dev rows", data_fingerprint AS "fingerprint", count(*) AS "trials"
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
    return Origin(
        facts=[
            Fact("store", redact_text(store.location)),
            *_when(catalog),
            *_command_lines(catalog),
        ],
        sheets=[sheet for name in _LISTS if (sheet := _listing(catalog, name))],
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


def _command_lines(catalog: Catalog) -> list[Fact]:
    found = catalog.query(_COMMANDS)["command"].to_pylist()
    more = (
        [Fact("command", f"and {len(found) - _MOST_COMMANDS} more")]
        if len(found) > _MOST_COMMANDS
        else []
    )
    return [*(Fact("command", redact_text(command)) for command in found[:_MOST_COMMANDS]), *more]


def _listing(catalog: Catalog, name: str) -> Sheet | None:
    found = catalog.query(_LISTS[name])
    if not found.num_rows:
        return None
    columns = {column: _shown(column) for column in found.column_names}
    table = listing(name.capitalize(), found, columns)
    return Sheet(name, table, "", name != "versions")


def _shown(column: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = row[column]
        if value is None:
            return "–"
        if column == "fingerprint" and len(value) > _SHOWN:
            return f"{value[:_SHOWN]}…"
        return f"{value:,}" if isinstance(value, int) else str(value)

    return text


def _sweep_files(catalog: Catalog, store: Store) -> list[Fact]:
    """The sweep files as they were run, without anything that looks like a secret."""
    names = catalog.query("SELECT DISTINCT sweep FROM cells ORDER BY ALL")["sweep"].to_pylist()
    stored = store.names("sweeps")  # the name inside a file may be any text
    texts = {name: store.read_text("sweeps", f"{name}.yaml") for name in names if name in stored}
    return [Fact(listed([name]), redact_text(text)) for name, text in texts.items() if text]
