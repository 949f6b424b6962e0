"""The command line as its user meets it: exit codes, stdout for data, stderr for all else."""

import csv
import io
import json
from importlib.metadata import version
from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.everyday import few
from tests.support.fake_records import command_line_world
from tests.support.program import process, sweep
from tests.support.sweepfiles import DEMO, make_inputs

CELL_KEYS = {
    "model", "strategy", "k", "threshold", "task", "seed", "procedure",
    "kept_layers", "dropped_layers", "trial_id", "state",
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
    assert set(answer) == {
        "sweep",
        "cells",
        "totals",
        "data",
        "estimate",
        "cluster",
        "profiles",
        "speeds",
        "notes",
    }
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


def test_plan_text_and_dry_run_agree(world: Path) -> None:
    plan = sweep("plan", "--data-dir", "glue", cwd=world)
    dry = sweep("run", "sweep.yaml", "--data-dir", "glue", "--dry-run", cwd=world)
    assert (plan.returncode, dry.returncode) == (0, 0)
    assert plan.stdout == dry.stdout
    assert plan.stderr == dry.stderr == ""
    for words in ("sweep plain", "cells ", "estimate ", "on one slot"):
        assert words in plan.stdout
    assert not (world / "lp-sweep-store").exists()


def test_a_sweep_file_in_another_folder(world: Path) -> None:
    elsewhere = world / "else where"
    elsewhere.mkdir()
    arguments = (str(world / "sweep.yaml"), "--data-dir", str(world / "glue"), "--json")
    here = sweep("plan", *arguments, cwd=elsewhere)
    assert (
        json.loads(here.stdout)["cells"]
        == json.loads(sweep("plan", "--data-dir", "glue", "--json", cwd=world).stdout)["cells"]
    )


# -- help


def test_help_and_version(tmp_path: Path) -> None:
    shown = sweep("--help", cwd=tmp_path)
    assert shown.returncode == 0
    told = sweep("--version", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == f"lp-sweep {version('lp-sweep')}\n"
    bare = sweep(cwd=tmp_path)
    assert "Usage:" in bare.stdout + bare.stderr
    assert "Traceback" not in bare.stderr


# -- a store


def test_store_and_data_from_the_environment(world: Path) -> None:
    env = {"LP_SWEEP_STORE": "store", "LP_SWEEP_DATA_DIR": "glue"}
    assert json.loads(sweep("status", "--json", cwd=world, env=env).stdout)[0]["sweep"] == "demo"
    assert sweep("plan", cwd=world, env=env).returncode == 0
    option = sweep("status", "--store", "nowhere", cwd=world, env=env)
    assert option.returncode == 4  # an option comes before the environment


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


def test_status_of_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "store" / "trials").mkdir(parents=True)
    assert (
        sweep("status", "--store", "store", cwd=tmp_path).stdout == "no sweep in this store yet\n"
    )
    assert json.loads(sweep("status", "--store", "store", "--json", cwd=tmp_path).stdout) == []


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


def test_query_from_stdin(world: Path) -> None:
    done = sweep("query", "-", "--store", "store", "--json", cwd=world, stdin="SELECT 7 AS n\n")
    assert json.loads(done.stdout) == [{"n": 7}]


# -- pipes


@pytest.mark.parametrize("reads", few([1, 0], 1))
def test_a_reader_that_leaves_is_no_error(tmp_path: Path, reads: int) -> None:
    make_inputs(tmp_path)
    arguments = ["plan", "sweep.yaml", "seed=1-500", "--data-dir", "glue", "--json"]
    running = process(*arguments, cwd=tmp_path)
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.read(reads)
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


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["status"], 4), (["schema"], 0)],
    ids=["store", "good"],
)
def test_exit_codes_of_a_process(tmp_path: Path, arguments: list[str], code: int) -> None:
    running = process(*arguments, cwd=tmp_path)
    out, err = running.communicate()
    assert running.returncode == code
    assert bool(out) == (code == 0)
    assert bool(err) == (code != 0)
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", ["plan", "run", "status"])
def test_an_empty_store_is_no_store(tmp_path: Path, verb: str) -> None:
    """An unset variable of a script: `--store "$STORE"`."""
    told = sweep(verb, "--store", "", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert "--store" in told.stderr
    assert "it is empty" in told.stderr
    assert "no sweep file" in sweep("plan", cwd=tmp_path, env={"LP_SWEEP_STORE": ""}).stderr


@pytest.mark.parametrize("verb", ["show", "logs"])
def test_an_empty_name_is_no_trial(tmp_path: Path, verb: str) -> None:
    Store(tmp_path / "lp-sweep-store", create=True)
    told = sweep(verb, "", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (4, "")
    assert "the name of the trial is empty" in told.stderr
