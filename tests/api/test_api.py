"""`from lp_sweep import ...`: what a notebook does, and that it is what the command line does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import lp_sweep
from lp_sweep import LpSweepError, ResultRows, Results, RunResult, Sweep, open_store
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.service import run as running
from tests.support.fake_records import FakeSweep
from tests.support.program import python
from tests.support.program import sweep as command
from tests.support.toyworld import save_world, sweep_content


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeSweep:
    fake = FakeSweep(tmp_path_factory.mktemp("world") / "records")
    fake.curve({0: 92.0, 2: 91.5, 6: 80.0})
    fake.curve({0: 70.0, 2: 60.0}, task="RTE")
    fake.publish()
    return fake


@pytest.fixture(scope="module")
def results(fake: FakeSweep) -> Iterator[Results]:
    with open_store(fake.store.location) as results:
        yield results


def test_an_import_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = ["torch", "ray", "pandas", "duckdb", "pyarrow", "matplotlib"]
    program = f"import lp_sweep, sys; print([name for name in {heavy} if name in sys.modules])"
    assert python(program, cwd=tmp_path).stdout == "[]\n"


def test_public_names() -> None:
    assert all(getattr(lp_sweep, name).__doc__ for name in lp_sweep.__all__)
    with pytest.raises(AttributeError, match="no attribute 'open_stoer'"):
        lp_sweep.__getattr__("open_stoer")


# -- answers


def test_rows_are_given_to_each_library(results: Results) -> None:
    rows = results.sql("SELECT k, score FROM cells WHERE task = $task ORDER BY k", task="RTE")
    assert list(rows) == [{"k": 0, "score": 70.0}, {"k": 2, "score": 60.0}]
    assert len(rows) == 2
    assert isinstance(rows.arrow(), pa.Table)
    assert isinstance(rows.df(), pd.DataFrame)
    assert rows.df().score.tolist() == [70.0, 60.0]
    assert "score" in repr(rows).splitlines()[0]
    if find_spec("polars"):
        assert rows.pl()["score"].to_list() == [70.0, 60.0]
    else:
        with pytest.raises(LpSweepError, match=r"\.pl.*pip install polars.*\.df"):
            rows.pl()


def test_a_table_is_that_of_the_command_line(fake: FakeSweep, results: Results) -> None:
    place, table = fake.store.location, results.table("tasks")
    for form in ("table", "json"):
        done = command("table", "tasks", "--store", place, "--format", form, cwd=Path(place))
        assert table.text(form) == done.stdout
    assert table.title


def test_notebooks_show_escaped_text(tmp_path: Path, fake: FakeSweep, results: Results) -> None:
    text = "<img src=x onerror=alert(1)>"
    hostile = FakeSweep(tmp_path / "hostile")
    hostile.curve({0: 92.0, 2: 91.5}, task=text)
    with open_store(hostile.publish().location) as found:
        table = found.table("tasks")
    task = {**sweep_content()["tasks"][0], "name": text}
    sweep = Sweep.from_yaml(save_world(tmp_path, tasks=[task]))
    for shown in (ResultRows(pa.table({text: [text]})), table, sweep.plan()):
        page = shown._repr_html_()
        assert "<img" not in page
        assert page.count("&lt;img") > 1, "in each of its parts"
    totals = {"trials": 3, "trials_done": 1}
    plan: Any = SimpleNamespace(totals=lambda: totals)
    failed = {"t1-<b>": "bug <b>"}
    run = RunResult(plan, fake.store, 1.0, 1, failed, "SIGINT")._repr_html_()
    assert all(part in run for part in ("SIGINT", "1 of 3 trials", "t1-&lt;b&gt;"))
    assert "<b>" not in run
    store = results._repr_html_()
    assert fake.store.location in store
    assert "<td>5</td>" in store, "cells"


def test_refresh_reads_what_came_since_and_one_sweep_is_read_alone(tmp_path: Path) -> None:
    for number, name in enumerate(("one", "other")):
        fake = FakeSweep(tmp_path, name)
        fake.cell(k=number, score=50.0 + number)
        fake.publish()
    with open_store(tmp_path, sweep="other") as results:
        fake.cell(k=8, score=70.0)
        fake.publish()
        asked = "SELECT score FROM cells ORDER BY k"
        assert list(results.sql(asked)) == [{"score": 51.0}]
        assert list(results.refresh().sql(asked)) == [{"score": 51.0}, {"score": 70.0}]
        assert [state["sweep"] for state in results.status()] == ["other"]


def test_records_and_upkeep(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path)
    fake.curve({0: 92.0, 2: 91.5})
    trial = fake.cells[0]["trial_id"]
    with open_store(fake.publish().location) as results:
        assert results.show(trial)["record"]["trial_id"] == trial
        assert results.logs(trial)
        assert results.compact()["records"] > 0
        assert results.doctor() == []


MISTAKES: dict[str, Callable[[Results], Any]] = {
    "Did you mean 'min-layers'": lambda found: found.table("min-layer"),
    "unknown strategy 'botom'": lambda found: found.table("tasks", strategies=["botom"]),
    "read-only": lambda found: found.sql("DELETE FROM cells"),
    "no Table 7": lambda found: found.paper(7),
    "no store at": lambda found: open_store(f"{found.location}/nothing"),
    "t1-none": lambda found: found.show("t1-none"),
    "unknown table '3'": lambda found: found.table(3),  # type: ignore[arg-type]
    "unknown strategy 'botom'. ": lambda found: found.table("tasks", strategies="botom"),
    "unknown unit 'pct'": lambda found: found.table(unit="pct"),  # type: ignore[arg-type]
    "no allowed loss": lambda found: open_store(found.location, within=[]),
    "a number of 0 or more": lambda found: open_store(found.location, within="1"),  # type: ignore[arg-type]
    "each override as a text": lambda _: Sweep.from_yaml("a.yaml", ["seed=1"]),  # type: ignore[arg-type]
}


def test_a_mistake_is_one_message(results: Results) -> None:
    for message, mistake in MISTAKES.items():
        with pytest.raises(LpSweepError, match=message):
            mistake(results)


# -- a sweep


@pytest.mark.parametrize("hours", [-1.0, float("nan"), "1"])
def test_hours_are_a_number_from_0(tmp_path: Path, hours: Any) -> None:
    with pytest.raises(LpSweepError, match="--max-hours"):
        Sweep.from_yaml(save_world(tmp_path)).run(inline=True, max_hours=hours)


def test_a_plan_is_the_one_of_the_command_line(tmp_path: Path) -> None:
    file = save_world(tmp_path)
    sweep = Sweep.from_yaml(file, "seed=1,2", store=tmp_path / "records")
    plan = sweep.plan()
    done = command("plan", str(file), "seed=1,2", "--store", sweep.store, cwd=tmp_path)
    assert repr(plan) == done.stdout.rstrip("\n")
    assert plan.totals["trials"] == 4
    assert {row["state"] for row in plan.cells()} == {"pending"}
    assert json.loads(json.dumps(plan.to_dict()))["sweep"] == sweep.name
    assert not Path(sweep.store).exists()


def test_places_of_the_file_of_arguments_and_of_variables(
    tmp_path: Path, fake: FakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables mean what they mean to the command line: else other revisions would be trained."""
    file = save_world(tmp_path, store="in-the-file")
    assert Sweep.from_yaml(file).store == str(tmp_path / "in-the-file")
    assert Sweep.from_yaml(file, store=tmp_path / "other").store == str(tmp_path / "other")
    monkeypatch.setenv("LP_SWEEP_STORE", fake.store.location)
    assert open_store().location == Sweep.from_yaml(file).store == fake.store.location
    monkeypatch.setenv("LP_SWEEP_DATA_DIR", "")
    for text, offline in (("1", True), ("off", False)):
        monkeypatch.setenv("LP_SWEEP_OFFLINE", text)
        request = Sweep.from_yaml(file)._request
        assert (request.offline, request.data_dir) == (offline, None)
    monkeypatch.setenv("LP_SWEEP_MANIFEST", str(tmp_path / "pins.json"))
    with pytest.raises(LpSweepError, match=r"no manifest .*pins\.json"):
        Sweep.from_yaml(file).plan()
    monkeypatch.setenv("LP_SWEEP_OFFLINE", "perhaps")
    with pytest.raises(LpSweepError, match=r"LP_SWEEP_OFFLINE.*valid boolean"):
        Sweep.from_yaml(file)


def test_an_argument_of_a_run_comes_before_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunOptions] = []

    def caught(options: RunOptions) -> None:
        asked.append(options)
        raise LpSweepError("enough")

    monkeypatch.setattr(running, "prepare", caught)
    monkeypatch.setenv("LP_SWEEP_MAX_HOURS", "2.5")
    monkeypatch.setenv("LP_SWEEP_FAIL_FAST", "1")
    sweep = Sweep.from_yaml(save_world(tmp_path), store=tmp_path / "records")
    for start in (sweep.retry, lambda: sweep.run(max_hours=1.0, fail_fast=False)):
        with pytest.raises(LpSweepError, match="enough"):
            start()
    retried, given = asked
    assert (retried.retry, retried.max_hours, retried.fail_fast) == (True, 2.5, True)
    assert (given.retry, given.max_hours, given.fail_fast) == (False, 1.0, False)
    assert retried.store == given.store == str(tmp_path / "records")


@pytest.mark.slow
@pytest.mark.ray
def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    save_world(tmp_path)
    program = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    assert "Did you mean 'min-layers'" in python(program, cwd=tmp_path).stdout
