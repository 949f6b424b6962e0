"""Where the numbers come from: models, data, machines, versions, dates, and the sweep files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

from lp_sweep.analysis.report.page import Fact, Origin, Sheet
from lp_sweep.analysis.tables import flat
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.printable import listed
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.schema import PUBLISHED_VERSIONS
from lp_sweep.storage.store import Store

Row = Mapping[str, Any]
_MOST = 5  # command lines
_SHOWN = 24  # characters of a fingerprint

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
_TITLES = {
    "models": "Models",
    "data": "Data",
    "machines": "Machines",
    "versions": "Versions",
}


def origin(catalog: Catalog, store: Store) -> Origin:
    """Of the trials and sweeps of the catalog, which is of the store."""
    return Origin(
        facts=[Fact("store", redact_text(store.location)), *_when(catalog), *_commands(catalog)],
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


def _commands(catalog: Catalog) -> list[Fact]:
    found = catalog.query(_COMMANDS)["command"].to_pylist()
    more = [Fact("command", f"and {len(found) - _MOST} more")] if len(found) > _MOST else []
    return [*(Fact("command", redact_text(command)) for command in found[:_MOST]), *more]


def _listing(catalog: Catalog, name: str) -> Sheet | None:
    found = catalog.query(_LISTS[name])
    if not found.num_rows:
        return None
    columns = {column: _shown(column) for column in found.column_names}
    table = flat(found, found.to_pylist(), _TITLES[name], columns, ())
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
    """As they were run, without what looks like a secret."""
    names = catalog.query("SELECT DISTINCT sweep FROM cells ORDER BY ALL")["sweep"].to_pylist()
    stored = store.names("sweeps")  # a name in a file may be any text
    texts = {name: store.read_text("sweeps", f"{name}.yaml") for name in names if name in stored}
    return [Fact(listed([name]), redact_text(text)) for name, text in texts.items() if text]
