"""`lp-sweep paper` and the tables of statistics, as a user calls them on a small store."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.fake_records import FakeSweep
from tests.support.program import sweep

PAPER_FULL, PAPER_TOP_6 = 92.43, 90.25  # BERT on SST-2, Table 1
OF_QQP = {"task": "qqp", "rows": 40_430, "full": 91.07, "top_6": 90.35}


def store(
    folder: Path, *, model: str = "bert-base-cased", off: float = 0.0, task: str = "sst2",
    rows: int = 872, full: float = PAPER_FULL, top_6: float = PAPER_TOP_6,
) -> Path:  # fmt: skip
    """The paper's own numbers for a task, two seeds; K=6 is `off` points from them."""
    fake = FakeSweep(folder / "store")
    for seed in (1, 2):
        for k, score in ((0, full), (6, top_6 + off)):
            axes = {"model": model, "task": task, "seed": seed, "dev_examples": rows}
            row = fake.cell(k=k, score=score, **axes)
            fake.predictions(row["trial_id"], [i % 10 != k for i in range(100)])
    fake.publish()
    return folder


@pytest.mark.parametrize(("off", "code"), [(0.0, 0), (-20.0, 1)])
def test_check_is_an_exit_code(tmp_path: Path, off: float, code: int) -> None:
    store(tmp_path, off=off, **OF_QQP)
    asked = ("paper", "--table", "1", "--store", "store")
    told = sweep(*asked, "--check", cwd=tmp_path)
    assert told.returncode == code, told.stderr
    assert ("differs: " in told.stderr) is bool(code)
    assert sweep(*asked, cwd=tmp_path).returncode == 0  # without --check it only tells
    assert "paper 90.35" in told.stdout


def test_check_without_power_is_no_confirmation(tmp_path: Path) -> None:
    """The paper's own numbers, and 872 rows cannot tell a point."""
    store(tmp_path)
    told = sweep("paper", "--table", "1", "--store", "store", "--check", cwd=tmp_path)
    assert told.returncode == 1
    assert "0 agree" in told.stderr
    assert "cannot tell" in told.stdout


def test_another_name_for_the_papers_model(tmp_path: Path) -> None:
    store(tmp_path, model="./mine", off=-20.0)
    asked = ("paper", "--table", "1", "--store", "store", "--check")
    nothing = sweep(*asked, cwd=tmp_path)
    assert nothing.returncode == 1
    assert "nothing was compared" in nothing.stderr
    told = sweep(*asked, "--model", "./mine=bert-base-cased", cwd=tmp_path)
    assert told.returncode == 1
    assert "differs: " in told.stderr


def test_a_store_without_the_papers_models_is_told_once(tmp_path: Path) -> None:
    store(tmp_path, model="./mine")
    told = sweep("paper", "--store", "store", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (0, "")
    assert told.stderr.count("the store has none of the paper's models (bert-base-cased, ") == 1
    assert "It has: ./mine (12 layers)." in told.stderr
    assert "lp-sweep run examples/poor-mans-bert.yaml" in told.stderr
    assert "--model ./mine=bert-base-cased" in told.stderr
    asked = sweep("paper", "--store", "store", "--table", "5", cwd=tmp_path)
    assert (asked.returncode, asked.stdout.count("missing (paper")) == (0, 20)
    assert "Table 6" in sweep("paper", "--store", "store", "--json", cwd=tmp_path).stdout


@pytest.mark.parametrize("pair", ["bert", "=bert-base-cased", "mine=", "mine=bort"])
def test_a_wrong_model(tmp_path: Path, pair: str) -> None:
    store(tmp_path)
    told = sweep("paper", "--store", "store", "--model", pair, cwd=tmp_path)
    assert told.returncode == 2
    assert told.stdout == ""
    assert "Traceback" not in told.stderr
    assert "bert-base-cased" in told.stderr  # what it should have been


@pytest.mark.parametrize("number", ["0", "7", "-1"])
def test_a_table_that_the_paper_has_not(tmp_path: Path, number: str) -> None:
    store(tmp_path)
    told = sweep("paper", "--store", "store", f"--table={number}", cwd=tmp_path)
    assert (told.returncode, told.stdout) == (2, "")
    assert f"the paper has no Table {number}. Choose one of: 1, 2, 3, 4, 5, 6." in told.stderr


@pytest.mark.parametrize("numbers", [(), ("1",), ("1", "4")])
def test_json_and_csv_are_one_piece(tmp_path: Path, numbers: tuple[str, ...]) -> None:
    store(tmp_path)
    asked = ["paper", "--store", "store", *(f"--table={number}" for number in numbers)]
    rows = json.loads(sweep(*asked, "--json", cwd=tmp_path).stdout)
    assert rows
    read = csv.reader(io.StringIO(sweep(*asked, "--format", "csv", cwd=tmp_path).stdout))
    header, *lines = read
    assert header == list(rows[0])
    assert len(lines) == len(rows)
