"""SQL over a store: its views, and what one sweep of it has. What is refused as it is no reading:
tests/analysis/test_fuzz_sql.py."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lp_sweep.analysis.views import VIEWS, open_views, view_sql
from lp_sweep.storage.errors import QueryError, SpecError
from lp_sweep.storage.schema import CELLS, TRIALS
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.stores import predictions


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 92.0, 6: 90.0})
    fake.publish()
    return fake


WRONG = {
    "SELEC 1": "syntax error",
    "FROM cell": r"cell does not exist\. Views: .*trials.*Did you mean 'cells'\?",
    "FROM python_variable": "does not exist",
    "SELECT $nope": "nope",
    "  ": "The query is empty",
    "SELECT 1; SELECT 2": "The query has 2 statements",
}


def test_wrong_sql_gets_duckdbs_message(fake: FakeSweep) -> None:
    python_variable = pa.table({"secret": [1]})
    catalog = open_views(fake.store)
    for sql, message in WRONG.items():
        with pytest.raises(QueryError, match=message):
            catalog.query(sql)
    assert python_variable.num_rows == 1
    assert catalog.query("FROM trials").num_rows == 2, "an error leaves the catalog usable"


def test_an_empty_store_has_every_view_with_no_rows(tmp_path: Path) -> None:
    catalog = open_views(Store(tmp_path, create=True))
    for view in VIEWS:
        if view != "unstable_tasks":
            assert catalog.query(f"FROM {view}").num_rows == 0, view
    assert catalog.unreadable == []


def test_a_view_file_is_a_query_that_a_user_can_run(fake: FakeSweep) -> None:
    catalog = open_views(fake.store)
    for view in VIEWS:
        text = view_sql(view)
        assert text.startswith(f"-- {view}: "), "it says first what a row is"
        rows, same = catalog.query(text), catalog.query(f"FROM {view}")
        assert rows.schema == same.schema
        assert rows.num_rows == same.num_rows


def test_a_sweep_by_name_leaves_out_all_that_is_only_others(fake: FakeSweep) -> None:
    other = FakeSweep(Path(fake.store.location), name="other")
    other.cell(k=0, score=92.0)  # one trial, two sweeps
    other.cell(k=2, score=91.0)
    other.cell(k=4, state="failed", task="RTE")
    other.publish()
    both, one = open_views(fake.store), open_views(fake.store, sweep="demo")
    assert both.query("FROM trials").num_rows == 3
    assert one.query("FROM trials").num_rows == 2
    assert both.query("FROM attempts").num_rows == 1
    assert one.query("FROM attempts").num_rows == 0
    assert one.query("SELECT DISTINCT sweep FROM cells")["sweep"].to_pylist() == ["demo"]
    grouped = both.query("SELECT sweep, max(k) AS k FROM task_table GROUP BY ALL ORDER BY sweep")
    assert grouped.to_pylist() == [{"sweep": "demo", "k": 6}, {"sweep": "other", "k": 4}]


def test_one_sweep_has_what_was_measured_of_its_networks(fake: FakeSweep) -> None:
    """No cell names such a profile: its trial is a cell's, or its model and task are. A speed is
    of no task and no trial."""
    mine = fake.cells[0]["trial_id"]
    for name, own in {
        "trained": {"trial_id": mine, "model": "bert", "task": "SST-2"},
        "pre-trained": {"trial_id": None, "model": "bert", "task": "SST-2"},
        "another trial": {"trial_id": "t1-00", "model": "bert", "task": "SST-2"},
        "another task": {"trial_id": None, "model": "bert", "task": "RTE"},
    }.items():
        values = [{"name": "accuracy", "layer": 1, "other": None, "value": 0.5}]
        row = {"profile_id": name, "measure": "probes", "values": values, **own}
        fake.store.put("profiles", name, [row])
    fake.speed(1.5, 1.6)
    fake.speed(2.5, 2.6, model="roberta")
    one = open_views(fake.store, sweep="demo")
    found = one.query("SELECT profile_id FROM layers")
    assert set(found["profile_id"].to_pylist()) == {"trained", "pre-trained"}
    assert one.query("SELECT count(*) AS n FROM store.profiles").to_pylist() == [{"n": 3}]
    found = one.query("SELECT finetune_speedup FROM speed_table WHERE k = 6")
    assert found["finetune_speedup"].to_pylist() == [1.5]


def test_one_sweep_has_the_attempts_that_no_cell_names(fake: FakeSweep) -> None:
    """Those at a measurement of its networks, or at the first stage of a trial."""
    other = FakeSweep(Path(fake.store.location), name="other")
    other.cell(k=2, score=91.0)
    other.publish()
    theirs = other.cells[0]["trial_id"]
    for name, row in {
        "measurement": {"trial_id": "p1-cka", "model": "bert", "task": "SST-2"},
        "stage one": {"trial_id": "t1-full", "model": "bert", "task": "SST-2"},
        "speed": {"trial_id": "p1-speed", "model": "bert", "task": None},
        "another task's": {"trial_id": "p1-rte", "model": "bert", "task": "RTE"},
        "another model's": {"trial_id": "p1-fast", "model": "roberta", "task": None},
        "another sweep's": {"trial_id": theirs, "model": "bert", "task": "SST-2"},
    }.items():
        fake.store.put("attempts", name, [{"attempt_id": name, "error_type": "bug", **row}])
    found = open_views(fake.store, sweep="demo").query("FROM attempts")["attempt_id"]
    assert set(found.to_pylist()) == {"measurement", "stage one", "speed"}


def test_one_sweep_has_the_deployments_of_its_networks_with_their_answers(fake: FakeSweep) -> None:
    mine = fake.cells[0]["trial_id"]
    for id_, trial in (("d1-mine", mine), ("d1-theirs", "t1-theirs")):
        fake.store.put("deployments", id_, [{"deployment_id": id_, "trial_id": trial}])
        fake.store.put("predictions", id_, predictions(id_))
    for table in ("deployments", "predictions"):
        found = open_views(fake.store, sweep="demo").query(f"SELECT DISTINCT * FROM {table}")
        assert set(found.column(0).to_pylist()) == {"d1-mine"}, table


def test_an_unknown_sweep_is_the_users_error(fake: FakeSweep) -> None:
    with pytest.raises(
        SpecError, match=r"no sweep named 'dmeo' .* It has: demo. Did you mean 'demo'"
    ):
        open_views(fake.store, sweep="dmeo")


def test_predictions_are_loaded_when_a_query_names_them(fake: FakeSweep) -> None:
    done = fake.cells[0]["trial_id"]
    fake.predictions(done, [True, True, False])
    (Path(fake.store.location) / "predictions" / "bad.parquet").touch()
    catalog = open_views(fake.store)
    assert catalog.unreadable == [], "nothing was read yet"
    right = "SELECT avg((label = prediction)::INT) AS share FROM Predictions GROUP BY trial_id"
    assert catalog.query(right)["share"].to_pylist() == pytest.approx([2 / 3])
    assert catalog.query("FROM predictions").num_rows == 3, "and only once"
    assert len(catalog.unreadable) == 1
    built = "FROM query_table('pre' || 'dictions')"
    assert open_views(fake.store).query(built).num_rows == 3


def test_columns_of_the_schema_reach_the_views(fake: FakeSweep) -> None:
    catalog = open_views(fake.store)
    assert set(TRIALS.names) | {"score"} == set(catalog.query("FROM trials").column_names)
    assert set(CELLS.names) - {"settings"} <= set(catalog.query("FROM cells").column_names)
