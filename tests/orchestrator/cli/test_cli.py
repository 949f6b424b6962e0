"""The command line as its user meets it: exit codes, stdout for data, stderr for all else."""

import csv
import io
import json
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.fake_records import command_line_world
from tests.support.program import process, sweep
from tests.support.sweepfiles import DEMO, make_inputs

CELL_KEYS = {
    "model", "strategy", "k", "threshold", "task", "seed", "procedure",
    "kept_layers", "dropped_layers", "trial_id", "state",
}  # fmt: skip
PLAN_KEYS = {
    "sweep", "cells", "totals", "data", "estimate", "cluster", "profiles", "speeds", "notes",
}  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return command_line_world(tmp_path)


# -- plan


def test_plan_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    make_inputs(tmp_path, DEMO)
    done = sweep("plan", "sweep.yaml", "--json", "--data-dir", "glue", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert set(answer) == PLAN_KEYS
    assert len(answer["cells"]) == answer["totals"]["cells"] == 80
    assert answer["totals"]["trials"] == 44
    assert answer["totals"]["cells_deferred"] == 36
    for cell in answer["cells"]:
        assert set(cell) >= CELL_KEYS
        if cell["state"] == "deferred":
            assert cell["kept_layers"] is cell["dropped_layers"] is cell["trial_id"] is None
            assert cell["k"] is None
        else:
            depth = 6 if cell["model"].startswith("distil") else 12
            assert sorted(cell["kept_layers"] + cell["dropped_layers"]) == [*range(1, depth + 1)]
            assert len(cell["dropped_layers"]) == cell["k"]
    assert any(note.startswith("distilbert-base-cased has no K=0") for note in answer["notes"])


def test_plan_dry_run_and_plan_from_another_folder_agree(world: Path) -> None:
    plan = sweep("plan", "--data-dir", "glue", cwd=world)
    assert (plan.returncode, plan.stderr) == (0, "")
    for words in ("sweep plain", "cells ", "estimate ", "on one slot"):
        assert words in plan.stdout
    assert sweep("run", "sweep.yaml", "--data-dir", "glue", "--dry-run", cwd=world) == plan
    elsewhere = world / "else where"
    elsewhere.mkdir()
    file, data = str(world / "sweep.yaml"), str(world / "glue")
    assert sweep("plan", file, "--data-dir", data, cwd=elsewhere) == plan
    assert not (world / "lp-sweep-store").exists()


def test_version_and_no_command(tmp_path: Path) -> None:
    told = sweep("--version", cwd=tmp_path)
    assert told == (0, f"lp-sweep {version('lp-sweep')}\n", "")
    bare = sweep(cwd=tmp_path)
    assert "Usage:" in bare.stdout + bare.stderr


# -- a store


def test_status(world: Path) -> None:
    done = sweep("status", "--store", "store", "--json", cwd=world)
    assert json.loads(done.stdout) == [
        {
            "sweep": "demo", "cells": 6, "trials": 5,
            "trials_done": 3, "trials_failed": 1, "trials_pending": 1,
            "cells_done": 3, "cells_failed": 1, "cells_pending": 1, "cells_deferred": 1,
            "cells_impossible": 0, "cells_not_needed": 0, "running": [], "earlier": [],
        }
    ]  # fmt: skip
    text = sweep("status", "--store", "store", cwd=world)
    assert text.stderr == ""
    assert text.stdout.splitlines()[1].split() == ["demo", "6", "3", "5", "3", "1", "1", "1"]
    (world / "empty" / "trials").mkdir(parents=True)
    empty = ("status", "--store", "empty")
    assert sweep(*empty, cwd=world).stdout == "no sweep in this store yet\n"
    assert json.loads(sweep(*empty, "--json", cwd=world).stdout) == []


@pytest.mark.parametrize(
    "arguments", [["status"], ["query", "SELECT 1"], ["table", "tasks"]], ids=lambda a: a[0]
)
def test_a_torn_file_is_a_warning(world: Path, arguments: list[str]) -> None:
    (world / "store" / "sweeps" / "torn.parquet").write_bytes(b"PAR1")
    done = sweep(*arguments, "--store", "store", cwd=world)
    assert done.returncode == 0
    assert "sweeps/torn.parquet is left out: not a whole Parquet file" in done.stderr
    assert "torn" not in done.stdout


def test_query_forms(world: Path) -> None:
    columns = sweep("query", "DESCRIBE cells", "--store", "store", "--json", cwd=world)
    names = {row["column_name"] for row in json.loads(columns.stdout)}
    assert {"model", "strategy", "k", "task", "seed"} <= names
    sql = "SELECT k, seed FROM cells WHERE k < 5 ORDER BY k"
    as_json = sweep("query", sql, "--store", "store", "--json", cwd=world)
    assert json.loads(as_json.stdout) == [{"k": 0, "seed": 42}, {"k": 4, "seed": 42}]
    as_csv = sweep("query", sql, "--store", "store", "--format", "csv", cwd=world)
    assert list(csv.reader(io.StringIO(as_csv.stdout))) == [["k", "seed"], ["0", "42"], ["4", "42"]]
    for form in ("table", "markdown", "latex"):
        done = sweep("query", sql, "--store", "store", "-f", form, cwd=world)
        assert (done.returncode, done.stderr) == (0, "")
        assert "seed" in done.stdout
    piped = sweep("query", "-", "--store", "store", "--json", cwd=world, stdin="SELECT 7 AS n\n")
    assert json.loads(piped.stdout) == [{"n": 7}]


# -- pipes


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    arguments = ["plan", "sweep.yaml", "seed=1-500", "--data-dir", "glue", "--json"]
    running = process(*arguments, cwd=tmp_path)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.read(1)
    running.stdout.close()
    said = running.stderr.read()
    running.stderr.close()
    assert (running.wait(), said) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        running = process("schema", cwd=tmp_path, stdout=full)
        _, said = running.communicate()
    assert running.returncode == 4
    assert said == "error: can't write the answer: No space left on device\n"


def test_a_mistake_ends_a_process_without_a_traceback(tmp_path: Path) -> None:
    running = process("status", cwd=tmp_path)
    out, err = running.communicate()
    assert (running.returncode, out) == (4, "")
    assert err.startswith("error: no store at ")
    assert "Traceback" not in err


# -- names that are empty, as by an unset variable of a script


def test_an_empty_store_is_no_store(tmp_path: Path) -> None:
    told = sweep("run", "--store", "", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert "--store" in told.stderr
    assert "it is empty" in told.stderr
    assert "no sweep file" in sweep("plan", cwd=tmp_path, env={"LP_SWEEP_STORE": ""}).stderr


def test_an_empty_name_is_no_trial(world: Path) -> None:
    told = sweep("show", "", "--store", "store", cwd=world)
    assert (told.returncode, told.stdout) == (4, "")
    assert "the name of the trial is empty" in told.stderr
