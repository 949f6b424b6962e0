"""The cells of a sweep in the store: whose run asked for them, so that another can go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from lp_sweep.orchestrator.plan.known import Known
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.run.recorder import Recorder
from lp_sweep.orchestrator.sweepfile.overrides import is_part
from lp_sweep.storage.redact import redact_command
from lp_sweep.storage.store import Store
from tests.sweepfiles import PLAIN, find, make_inputs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_inputs(tmp_path, PLAIN)  # seeds 42 and 43


def asked(file: Path, *runs: str) -> dict[int, set[str]]:
    """Of each seed the overrides that the store names, after runs that were broken off at once."""
    store = Store(file.parent / "store", create=True)
    for words in runs:
        overrides = words.split()
        recorder = Recorder(
            store, part=is_part(overrides), overrides=redact_command(overrides), command=""
        )
        recorder.cells(make_plan(find(file, ["task=rte", *overrides]), Known.nothing()))
    told: dict[int, set[str]] = {}
    for row in store.read_all("sweeps").rows.to_pylist():
        told.setdefault(row["seed"], set()).add(row["overrides"])
    return told


def test_a_part_that_the_file_does_not_ask_for_is_known(file: Path) -> None:
    assert asked(file, "", "seed=4") == {42: {""}, 43: {""}, 4: {"seed=4"}}


def test_a_part_of_what_the_whole_asks_for_is_the_wholes(file: Path) -> None:
    assert asked(file, "", "seed=43") == {42: {""}, 43: {""}}


def test_of_two_parts_the_last_one_counts(file: Path) -> None:
    assert asked(file, "seed=4", "seed=4,5") == {4: {"seed=4,5"}, 5: {"seed=4,5"}}


def test_other_trials_are_the_later_runs(file: Path) -> None:
    """`seed=43` alone means the file's own recipe."""
    told = asked(file, "recipe.epochs=1", "seed=43")
    assert told == {42: {"recipe.epochs=1"}, 43: {"seed=43"}}


def test_a_run_of_the_whole_lists_its_own_cells(file: Path) -> None:
    assert asked(file, "seed=4", "") == {42: {""}, 43: {""}}
