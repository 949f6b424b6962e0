"""The cells of a sweep in the store: whose run asked for them, so that another can go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp_sweep.analysis.notes import mixed_notes
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.engine.course import Recorder
from lp_sweep.orchestrator.plan.known import WorkHistory, read_ledger
from lp_sweep.orchestrator.plan.listing import trained_otherwise
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import is_part
from lp_sweep.storage.store import Store
from tests.support.program import sweep
from tests.support.sweepfiles import PLAIN, find, make_data, make_inputs, make_model, run_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_inputs(tmp_path, PLAIN)  # seeds 42 and 43


def asked(file: Path, *runs: str) -> dict[int, set[str]]:
    """The overrides that the store has for each seed, after runs that were stopped at once."""
    for words in runs:
        overrides = words.split()
        store = Store(file.parent / "store", create=True)
        recorder = Recorder(store, part=is_part(overrides), overrides=words, command="")
        recorder.cells(make_plan(find(file, ["task=rte", *overrides]), WorkHistory.nothing()))
    told: dict[int, set[str]] = {}
    for row in store.read_all("sweeps").rows.to_pylist():
        told.setdefault(row["seed"], set()).add(row["overrides"])
    return told


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        pytest.param(["", "seed=4"], {42: "", 43: "", 4: "seed=4"}, id="a part of its own"),
        pytest.param(["", "seed=43"], {42: "", 43: ""}, id="a part of the whole"),
        pytest.param(["seed=4", "seed=4,5"], {4: "seed=4,5", 5: "seed=4,5"}, id="the last part"),
        pytest.param(["seed=4", ""], {42: "", 43: ""}, id="the whole lists its own cells"),
        pytest.param(
            ["recipe.epochs=1", "seed=43"],  # which alone means the file's own recipe
            {42: "recipe.epochs=1", 43: "seed=43"},
            id="other trials are the later run's",
        ),
    ],
)
def test_whose_run_asked_for_a_cell(file: Path, runs: list[str], told: dict[int, str]) -> None:
    assert asked(file, *runs) == {seed: {words} for seed, words in told.items()}


def test_a_run_does_not_write_its_cells_over_those_of_a_later_run(file: Path) -> None:
    """The later run has another recipe and one seed more; both write their sweep file first."""
    store = Store(file.parent / "store", create=True)

    def began(*overrides: str) -> tuple[Recorder, Plan]:
        plan = make_plan(find(file, ["task=rte", *overrides]), WorkHistory.nothing())
        store.put_text("sweeps", f"{plan.sweep.name}.yaml", f"# where\n{overrides}")
        recorder = Recorder(store, part=False, command="")
        recorder.cells(plan)
        return recorder, plan

    first, old = began()
    began("recipe.epochs=1", "seeds=[42,44]")
    newer = store.read_all("sweeps").rows.to_pylist()
    first.cells(old)
    assert store.read_all("sweeps").rows.to_pylist() == newer
    again, today = began()
    store.put_text("sweeps", f"{today.sweep.name}.yaml", f"# elsewhere\n{()}")
    store.delete("sweeps", f"{today.sweep.name}.parquet")
    again.cells(today)
    assert {row["seed"] for row in store.read_all("sweeps").rows.to_pylist()} == {42, 43}


# -- what a run of a part leaves listed


def noted(file: Path, *overrides: str) -> list[str]:
    store = Store(file.parent / "store")
    plan = make_plan(find(file, overrides), read_ledger(store).known)
    return trained_otherwise(store, plan)


def plan_text(file: Path, *overrides: str) -> str:
    words = ("plan", "sweep.yaml", "--store", "store", "--data-dir", "glue", *overrides)
    return sweep(*words, cwd=file.parent).stdout


def test_a_part_beside_cells_of_another_recipe(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan notes them before a run, and tables after it."""
    run_of(file)
    store = Store(file.parent / "store")
    assert noted(file, "seed=43") == noted(file, "task=rte", "k=0,4", "seed=7") == []
    file.write_text(PLAIN + "recipe: {epochs: 5, learning_rate: 3e-5, freeze: {layers: [12]}}\n")
    (note,) = noted(file, "seed=43")
    assert note.startswith(
        "4 cells of sweep 'plain' that this run leaves as they are were trained in another way "
        "(learning_rate 2e-05 instead of 3e-05; epochs 3 instead of 5; freeze_layers none instead "
        "of 12), and its tables compare them"
    )
    assert noted(file) == [], "all of them are asked for again"
    monkeypatch.chdir(file.parent)
    assert "trained in another way" not in plan_text(file)
    assert "(learning_rate 2e-05 instead" in plan_text(file, "seed=43")
    run_of(file, "seed=43", "task=rte")
    with open_views(store) as catalog:
        (note,) = mixed_notes(catalog)
    assert "cells of sweep plain were trained in more than one way (rte)" in note
    run_of(file)
    with open_views(store) as catalog:
        assert list(mixed_notes(catalog)) == []


def test_a_part_beside_cells_of_other_data_or_another_model_is_noted(file: Path) -> None:
    run_of(file)
    make_data(file.parent / "glue", rows=6)
    (note,) = noted(file, "seed=43", "task=rte")
    assert "4 cells of" not in note, "nothing is known of MRPC: it is not asked for"
    assert "trained in another way (other data of task 'rte'), and" in note
    make_data(file.parent / "glue")
    make_model(file.parent / "folder/of/a/model", weight=1.0)
    (note,) = noted(file, "seed=43")
    assert "4 cells of" in note
    assert "other weights of model './folder/of/a/model'" in note
