"""A store half written by an earlier version: this one reads it, goes on from it, and compacts it.

`older_store.tar.xz` was made by the code of commit 1096e18 (21 November 2026): a sweep of six
trials and a profile. Three trials are recorded, two of them in a pack; one has failed, since its
data were away; one was killed between its predictions and its record, and left half a file. Its
records lack columns of today's, such as `compute`, which was always `reference` then.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.views import open_views
from lp_sweep.storage.doctor import examine, fix
from lp_sweep.storage.packs import compact
from lp_sweep.storage.schema import TRIALS
from lp_sweep.storage.store import Store
from tests.support.plain_jobs import execute
from tests.support.program import sweep
from tests.support.toyworld import jobs

AS_THEN = "recipe.compute=reference"


@pytest.fixture
def older(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).parents[1] / "support" / "older_store.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def rows_of(store: Store) -> dict[str, Any]:
    listing = store.read_all("trials")
    assert listing.unreadable == []
    return {row["trial_id"]: row for row in listing.rows.to_pylist()}


def test_it_is_read_by_every_verb(older: Path) -> None:
    store = Store(older / "store")
    rows = rows_of(store)
    assert len(rows) == 3
    assert {row["last"] is not None for row in rows.values()} == {True}
    assert {row["compute"] for row in rows.values()} == {None}, "a column that it did not write"
    assert set(rows[min(rows)]) == set(TRIALS.names)
    for words in (
        *(["status"], ["table", "tasks"], ["table", "min-layers"], ["table", "speed"]),
        *(["show", min(rows)], ["logs", min(store.names("attempts")).rpartition(".")[0]]),
        *(["query", "FROM cells"], ["doctor"]),
    ):
        said = sweep(*words, "--store", "store", cwd=older)
        found = 1 if words == ["doctor"] else 0  # the half file, which is old by now
        assert (said.returncode, "Traceback (" in said.stderr) == (found, False), (words, said)


@pytest.mark.slow
def test_the_rest_is_done_and_what_was_done_stays(older: Path) -> None:
    store = Store(older / "store")
    before = rows_of(store)
    work = {job["id"]: job for job in jobs(older / "sweep.yaml", AS_THEN)}
    assert before.keys() < work.keys(), "identifiers are the same"
    assert store.names("profiles") < work.keys()
    for id_, job in work.items():
        assert execute(job, store.location)["status"] == "done", id_
    after = rows_of(store)
    assert after.keys() == {id_ for id_ in work if id_.startswith("t")}
    assert {id_: after[id_] for id_ in before} == before
    compact(store, settle=0)
    assert rows_of(store) == after
    fix(store, examine(store))
    assert examine(store) == []
    with open_views(store) as catalog:
        told = catalog.query("SELECT count(*) AS n, count(score) AS scored FROM trials").to_pylist()
        assert told == [{"n": 6, "scored": 6}]
        lone = "FROM predictions WHERE trial_id NOT IN (SELECT trial_id FROM trials)"
        assert catalog.query(lone).num_rows == 0
