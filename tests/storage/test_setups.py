"""Earlier recipes, data and models of a sweep: their results are named, and can be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lp_sweep import open_store
from lp_sweep.analysis.report.about import cautions
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.engine.course import Recorder
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import is_part
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.setups import compared, earlier_setups
from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import examine
from lp_sweep.trials.spec.identity import setup_id, setup_text
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition
from tests.support.program import sweep
from tests.support.sweepfiles import PLAIN, find, make_data, make_inputs, make_model, run_of

AMENDED = f"{PLAIN}recipe: {{epochs: 1}}\n"
RECIPE = "another setup (epochs 3 instead of 1)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Eight trials of three epochs are done."""
    file = make_inputs(tmp_path, PLAIN)
    run_of(file)
    return file


def store_of(file: Path) -> Store:
    return Store(file.parent / "store")


def begin(file: Path, text: str = AMENDED, *overrides: str) -> None:
    """Changes the file, and writes what its run writes before the first trial ends."""
    file.write_text(text)
    plan = make_plan(find(file, overrides), WorkHistory.nothing())
    Recorder(store_of(file), part=is_part(overrides), command="").cells(plan)


@pytest.fixture
def amended(file: Path) -> Path:
    """A run of another recipe has begun."""
    begin(file)
    return file


def told(file: Path) -> list[Any]:
    """Number, differences, cells and finished trials of each earlier setup."""
    return [(s.number, s.differences, s.cells, s.finished) for s in earlier_setups(store_of(file))]


def said(file: Path, *words: str) -> str:
    done = sweep(*words, "--store", "store", cwd=file.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_what_a_run_would_no_longer_show_is_in_the_plan(file: Path) -> None:
    assert "not shown" not in said(file, "status")
    file.write_text(AMENDED)
    text = said(file, "plan", "sweep.yaml", "--data-dir", "glue")
    assert f"8 finished trials of 'plain' used {RECIPE} and are not shown after a run" in text
    assert told(file) == [], "nothing is written"


def test_every_answer_names_what_it_does_not_show(amended: Path) -> None:
    for words in (("status",), ("table", "tasks", "--json")):
        text = said(amended, *words)
        assert f"8 finished trials of 'plain' used {RECIPE} and are not shown: `lp-sweep" in text
        assert "tasks --setup 1 --sweep plain" in text
    with open_views(store_of(amended)) as catalog:
        assert any(RECIPE in sentence for sentence in cautions(catalog))
    (row,) = json.loads(said(amended, "table", "setups", "--json"))
    differ = {"setup": 1, "differences": ["epochs 3 instead of 1"], "trials_finished": 8}
    assert row == {"sweep": "plain", "cells": 8, **differ}
    (state,) = json.loads(said(amended, "status", "--json"))
    assert state["earlier"] == [differ]
    with pytest.raises(SpecError, match=r"--setup 2.*1 of 'plain'.*table setups"):
        open_store(amended.parent / "store", setup=2)
    assert list(examine(store_of(amended))) == []


def test_the_command_of_the_note_shows_them(file: Path) -> None:
    before = open_store(file.parent / "store").table("tasks").text("csv")
    begin(file)
    assert open_store(file.parent / "store").table("tasks").text("csv") != before
    with open_store(file.parent / "store", setup=1) as earlier:
        table = earlier.table("tasks")
        assert table.text("csv") == before
        assert "earlier setup 1 of 'plain' (epochs 3 instead of 1)" in table.text()
    assert "10 of 12  90.00" in said(file, "table", "tasks", "--sweep", "plain", "--setup", "1")


@pytest.mark.slow  # draws every figure
def test_a_report_of_an_earlier_setup_shows_its_scores(amended: Path) -> None:
    with open_store(amended.parent / "store", setup=1) as earlier:
        page = earlier.report(amended.parent / "earlier.html").read_text()
    assert "90.00" in page
    assert "--store" in page
    assert page.count("--setup 1") > 5, "its commands read what it reads"


def test_numbers_stay_when_an_earlier_recipe_returns(file: Path) -> None:
    file.write_text(AMENDED)
    run_of(file)
    assert told(file) == [(1, ("epochs 3 instead of 1",), 8, 8)]
    begin(file, PLAIN)
    assert told(file) == [(2, ("epochs 1 instead of 3",), 8, 8)], "1 is today's again"
    begin(file, PLAIN + "recipe: {epochs: 5}\n")
    assert [(number, finished) for number, _, _, finished in told(file)] == [(1, 8), (2, 8)]


def test_many_earlier_setups_are_one_sentence(file: Path) -> None:
    for epochs in (4, 5, 6, 7):
        file.write_text(f"{PLAIN}recipe: {{epochs: {epochs}}}\n")
        run_of(file)
    text = said(file, "status")
    assert text.count("note:") == 1
    assert "32 finished trials of 'plain' used 4 earlier setups" in text
    assert "lp-sweep table setups" in text


def test_other_data_and_another_model_are_named(file: Path) -> None:
    make_data(file.parent / "glue", rows=6)
    begin(file, PLAIN)
    data = ("other data of task 'rte'", "other data of task 'mrpc'")
    assert told(file) == [(1, data, 8, 8)]
    make_model(file.parent / "folder/of/a/model", weight=1.0)
    begin(file, PLAIN)
    ((_, ways, _, _), *_) = told(file)
    assert "another revision or other weights of model './folder/of/a/model'" in ways


@pytest.mark.parametrize(
    ("content", "expected"),
    [(PLAIN, []), (AMENDED, [(1, ("epochs 3 instead of 1",), 8, 8)])],
    ids=["the same recipe", "another recipe"],
)
def test_cells_of_a_shorter_list(file: Path, content: str, expected: list[Any]) -> None:
    begin(file, content.replace("[42, 43]", "[42]").replace("[rte, mrpc]", "[rte]"))
    assert told(file) == expected


def test_parts_that_are_run_one_by_one_are_one_setup(file: Path) -> None:
    for task, cells in (("rte", 4), ("mrpc", 8)):
        begin(file, AMENDED, f"task={task}")
        assert told(file) == [(1, ("epochs 3 instead of 1",), cells, cells)]


def test_only_finished_trials_are_worth_a_note(file: Path) -> None:
    begin(file, PLAIN + "recipe: {epochs: 9}\n")
    begin(file)
    assert [(number, finished) for number, _, _, finished in told(file)] == [(1, 8), (2, 0)]
    assert said(file, "status").count("note:") == 1


def test_two_names_of_one_model_are_one_earlier_setup() -> None:
    text = setup_text("weights", TaskDefinition(text_columns=("t",)), "data", Recipe())
    row = {"sweep": "s", "task": "sst2", "setup": setup_id(text), "settings": text}
    cells = [
        row | {"model": "a", "trial_id": "t1-a"},
        row | {"model": "b", "trial_id": "t1-b"},
    ]
    earlier = pa.Table.from_pylist(cells, TABLES["earlier"])
    (setup,) = compared(earlier, earlier.slice(0, 0), {"t1-a", "t1-b"})
    assert (setup.number, setup.cells, setup.finished) == (1, 2, 2)
