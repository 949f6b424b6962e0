"""The documentation of the store: every query in docs/sql.md runs, every column is described."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lp_sweep.analysis.views import VIEWS, open_views
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES
from lp_sweep.trials.spec.specs import Recipe
from tests.support.fake_records import FakeSweep

DOCS = Path(__file__).parents[2] / "docs"
SQL_PAGE = (DOCS / "sql.md").read_text(encoding="utf-8")
STORE_PAGE = (DOCS / "store.md").read_text(encoding="utf-8")
COLUMNS_PAGE = (DOCS / "columns.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"^```sql\n(.*?)^```", SQL_PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """Two tasks, three strategies, two seeds; one cell failed, one is deferred."""
    fake = FakeSweep(tmp_path_factory.mktemp("store"))
    for task, full in (("SST-2", 92.0), ("RTE", 66.0)):
        fake.profile([0.96, 0.9, 0.97, 0.8, 0.99, 0.7], task=task)
        for seed in (42, 43):
            for k, loss in ((0, 0), (2, 0.5), (4, 3)):
                noise = 0.1 * k * (seed - 42)
                row = fake.cell(k=k, score=full - loss - noise, seed=seed, task=task, depth=6)
                fake.predictions(row["trial_id"], [True, k == 0, False])
            fake.cell(strategy="bottom", k=2, score=full - 9, seed=seed, task=task, depth=6)
    fake.cell(strategy="bottom", k=4, state="failed", depth=6)
    fake.cell(strategy="contribution", threshold=0.9, dropped=(1, 3, 5), score=90.0, depth=6)
    fake.cell(strategy="contribution", threshold=0.8, state="deferred", depth=6)
    return open_views(fake.publish())


@pytest.mark.parametrize("sql", QUERIES, ids=lambda sql: " ".join(sql.split())[:40])
def test_a_query_of_the_page_runs_and_finds_something(catalog: Catalog, sql: str) -> None:
    assert catalog.query(sql).num_rows > 0


def test_every_view_and_ten_queries_are_on_the_page() -> None:
    assert len(QUERIES) == 10
    listed = re.findall(r"^\| `(\w+)` \|", SQL_PAGE, re.MULTILINE)
    assert sorted(listed) == sorted(VIEWS)


def test_every_column_of_the_tables_is_described() -> None:
    assert f"This is version {SCHEMA_VERSION}." in STORE_PAGE
    for table in TABLES.keys() - {"earlier"}:  # it has the columns of `sweeps`
        section = COLUMNS_PAGE.split(f"\n## {table}\n")[1].split("\n## ")[0]
        first_cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
        described = [name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)]
        recipe = [key.name for key in fields(Recipe)] if "keys of `recipe:`" in section else []
        assert sorted([*described, *recipe]) == sorted(TABLES[table].names), table
