"""What a table says in text is made of its rows alone, in every format.

For each entry of TABLES, on the records of docs/studies and on a store in which much is missing.
"""

from __future__ import annotations

import csv
import functools
import io
import json
from typing import Any

import pyarrow as pa
import pytest

from lp_sweep.analysis.render import markdown_escape, render, render_rows
from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.store import Store
from tests.support.answered import network, right
from tests.support.docpages import ROOT
from tests.support.fake_records import FakeSweep

RECORDS = ROOT / "docs" / "studies" / "records"
FEW = "sst2"  # for the tables that read predictions


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with each kind of gap and doubt."""
    fake = FakeSweep(tmp_path_factory.mktemp("gaps"))
    for seed in (1, 2):
        for k, n_right in ((0, 90), (2, 88), (4, 50)):
            network(fake, right(n_right), k=k, seed=seed)
            network(fake, right(n_right), k=k, seed=seed, procedure="direct distill logits")
        fake.cell(k=6, seed=seed, score=80.0 if seed == 1 else None)
        for draw in (0, 1):
            fake.cell(strategy=f"random {draw}", k=2, dropped=(3, 5), seed=seed, score=85.0 + draw)
    fake.cell(k=8, state="failed")
    fake.cell(k=6, procedure="direct distill logits")
    fake.cell(strategy="random 0", k=4, dropped=(3, 5, 7, 8))
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    fake.cell(strategy="contribution", threshold=0.1, dropped=range(1, 13))
    fake.curve({0: 50.0, 2: 50.0}, task="unlearned")
    fake.curve({0: 52.0, 2: 49.0, 11: 51.5}, task="near")
    fake.curve({2: 52.0}, task="no full model")
    fake.curve({0: 80.0, 2: 79.0}, task="vectors", metric="spearman", vector_width=8)
    for k, setup in ((0, "a"), (2, "b")):
        fake.cell(k=k, score=90.0, task="mixed", setup=setup)
    return fake.publish()


@functools.cache
def made(store: Store, name: str) -> tuple[Table, pa.Table | None]:
    """The table, and its view's rows as SQL has them, unless Python adds to them."""
    table = TABLES[name]
    sweep = FEW if "predictions" in table.views and store.location == str(RECORDS) else None
    with open_views(store, sweep=sweep, only={*table.views, "min_layers"}) as catalog:
        of = {"min_layers_by_unit": "min_layers"}.get(table.view, table.view)
        rows = catalog.query(f"FROM {of}") if table.fetch is None else None
        return table(catalog), rows


@pytest.fixture(
    scope="module",
    params=["gaps", pytest.param("the records of docs/studies", marks=pytest.mark.slow)],
)
def store(request: pytest.FixtureRequest, gaps: Store) -> Store:
    return gaps if request.param == "gaps" else Store(RECORDS)


def from_csv(text: str, schema: pa.Schema) -> list[dict[str, Any]]:
    read = {"string": str, "int64": int, "int32": int, "double": float}
    return [
        {
            field.name: read.get(str(field.type), json.loads)(row[field.name])
            if row[field.name]
            else None
            for field in schema
        }
        for row in csv.DictReader(io.StringIO(text))
    ]


@pytest.mark.parametrize("name", TABLES)
def test_the_text_is_made_of_the_rows_that_machines_read(store: Store, name: str) -> None:
    table = TABLES[name]
    shown, in_sql = made(store, name)
    formats = {
        "json": json.loads(render(shown, "json", terminal=False)),
        "csv": from_csv(render(shown, "csv", terminal=False), shown.long.schema),
        "df": pa.Table.from_pandas(shown.long.to_pandas(), schema=shown.long.schema).to_pylist(),
    }
    for form, rows in formats.items():
        worded = table.worded(rows)
        assert (worded.columns, worded.rows, worded.lead) == (
            shown.columns,
            shown.rows,
            shown.lead,
        ), form
    if in_sql is not None:
        key = sorted(map(json.dumps, json.loads(render_rows(in_sql, "json", terminal=False))))
        assert key == sorted(map(json.dumps, formats["json"])), "query"
    markdown = render(shown, "markdown")
    assert all(markdown_escape(cell) in markdown for line in shown.rows for cell in line)


@pytest.mark.parametrize("name", [name for name in TABLES if "strategy" in TABLES[name].takes])
def test_what_is_not_comparable_is_in_its_row_as_in_the_notes(gaps: Store, name: str) -> None:
    shown, _ = made(gaps, name)
    rows = [row for row in shown.long.to_pylist() if row.get("task", "mixed") == "mixed"]
    marks = [row["mixed"] if "mixed" in row else "not comparable" in row["caveats"] for row in rows]
    assert not rows or (all if "task" in rows[0] else any)(marks), rows
    others = (row for row in shown.long.to_pylist() if row.get("task", "mixed") != "mixed")
    assert not any(row.get("mixed") or "not comparable" in row.get("caveats", ()) for row in others)
