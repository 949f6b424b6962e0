"""The command line as its user meets it: exit codes, stdout for data, stderr for all else."""

import json
import signal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.inputs import checks
from lp_sweep.orchestrator.service import run as running
from tests.support.fake_records import command_line_world, store_with_scores
from tests.support.program import process, python, sweep
from tests.support.sweepfiles import make_inputs
from tests.support.toyworld import save_world


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return command_line_world(tmp_path)


# -- plan


def test_plan_dry_run_and_plan_from_another_folder_agree(world: Path) -> None:
    plan = sweep("plan", "--data-dir", "glue", cwd=world)
    assert (plan.returncode, plan.stderr) == (0, "")
    for words in ("sweep plain", "trainings ", "estimate ", "on one slot"):
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
    [told] = json.loads(sweep("status", "--store", "store", "--json", cwd=world).stdout)
    more = {"running": [], "earlier": [], "slot_hours": 0.0556}  # the counts: test_states.py
    assert told.items() >= ({"sweep": "demo", "cells": 6, "trials": 5} | more).items()
    text = sweep("status", "--store", "store", cwd=world)
    assert text.stderr == ""
    assert text.stdout.splitlines()[1].split() == ["demo", "5", "3", "1", "1"]
    (world / "empty" / "trials").mkdir(parents=True)
    empty = ("status", "--store", "empty")
    assert sweep(*empty, cwd=world).stdout == "no sweep in this store yet\n"
    assert json.loads(sweep(*empty, "--json", cwd=world).stdout) == []
    (world / "empty" / "sweeps").mkdir()
    (world / "empty" / "sweeps" / "demo.parquet").write_bytes(b"damaged")
    damaged = sweep(*empty, cwd=world)
    assert "demo.parquet" in damaged.stderr
    assert "no sweep of this store can be read" in damaged.stdout


def test_a_torn_file_is_a_warning(world: Path) -> None:
    (world / "store" / "sweeps" / "torn.parquet").write_bytes(b"PAR1")
    done = sweep("query", "SELECT 1", "--store", "store", cwd=world)
    assert done.returncode == 0
    assert "sweeps/torn.parquet is left out: not a whole Parquet file" in done.stderr
    assert "torn" not in done.stdout


def test_query_forms(world: Path) -> None:
    sql = "SELECT k, seed FROM cells WHERE k < 5 ORDER BY k"
    as_json = sweep("query", sql, "--store", "store", "--json", cwd=world)
    assert json.loads(as_json.stdout) == [{"k": 0, "seed": 42}, {"k": 4, "seed": 42}]
    done = sweep("query", sql, "--store", "store", "-f", "md", cwd=world)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("|")[1:3] for line in done.stdout.splitlines()][2] == [" 0 ", " 42 "]
    piped = sweep("query", "-", "--store", "store", "--json", cwd=world, stdin="SELECT 7 AS n\n")
    assert json.loads(piped.stdout) == [{"n": 7}]


# -- pipes


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    arguments = ["plan", "sweep.yaml", "seed=1-100", "--data-dir", "glue", "--json"]
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


# -- Ctrl-C before the first trial; later: test_driver.py


def ctrl_c(*_: Any, **__: Any) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def _as_in_a_terminal() -> Any:
    """A shell's background job inherits an ignored SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


NOTHING_YET = (
    "stopped by Ctrl-C: nothing was trained yet. "
    "Go on: lp-sweep run sweep.yaml seed=4 --store 'a b'\n"
)


@pytest.mark.usefixtures("_as_in_a_terminal")
@pytest.mark.parametrize(
    ("room", "step", "said"),
    [
        pytest.param(running, "planned", NOTHING_YET, id="while inputs are looked up"),
        pytest.param(checks, "check", NOTHING_YET, id="while rows are read"),
        pytest.param(running, "run_sweep", "", id="in a run, which says it itself"),
    ],
)
def test_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Any, step: str, said: str
) -> None:
    save_world(tmp_path)
    monkeypatch.setattr(room, step, ctrl_c)
    told = sweep("run", "sweep.yaml", "seed=4", "--store", "a b", cwd=tmp_path)
    assert told == (130, "", said)


# -- a command that only reads loads few modules, so it starts in a fraction of a second

# what no driver needs: a mistake is reported without the seconds that these take to load
HEAVY = ["torch", "ray", "transformers", "datasets", "sklearn", "mlflow"]
READING = [*HEAVY, "yaml", "scipy"]
AT = ["--store", "store"]
# in this order: what one has loaded the next ones may need
COMMANDS = [
    (["--help"], [*READING, "numpy", "pyarrow", "duckdb"]),
    (["status", *AT, "--json"], READING),
    (["table", "tasks", *AT, "--json"], READING),
    (["schema"], HEAVY),
    (["init", "new.yaml"], HEAVY),
    (["plan", "sweep.yaml", "--data-dir", "glue", "--json"], HEAVY),
    (["run", "sweep.yaml", "--data-dir", "glue", "--dry-run"], HEAVY),
    (["query", "SELECT count(*) FROM cells", *AT], HEAVY),
    (["table", "min-layers", *AT], HEAVY),
]
_CODE = """
import json, sys
from lp_sweep.orchestrator.cli.__main__ import main
def check(words, not_needed):
    assert not {*not_needed} & {*sys.modules}, (words, {*not_needed} & {*sys.modules})
commands = json.loads(sys.argv[1])
for words, not_needed in commands:
    sys.argv = ["lp-sweep", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
    check(words, not_needed)
import lp_sweep.orchestrator.service.run, lp_sweep.orchestrator.engine.driver
check("a driver", not_needed)
"""


def test_what_is_not_needed_is_not_imported(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    store_with_scores(tmp_path)
    python(_CODE, json.dumps(COMMANDS), cwd=tmp_path)
