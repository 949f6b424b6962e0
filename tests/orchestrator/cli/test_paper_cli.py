"""`lp-sweep paper` as a user calls it on a small store."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.fake_records import FakeSweep
from tests.support.program import Done, sweep

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


def paper(folder: Path, *words: str) -> Done:
    return sweep("paper", "--store", "store", *words, cwd=folder)


@pytest.mark.parametrize(("off", "code"), [(0.0, 0), (-20.0, 1)])
def test_check_is_an_exit_code(tmp_path: Path, off: float, code: int) -> None:
    store(tmp_path, off=off, **OF_QQP)
    told = paper(tmp_path, "--table", "1", "--check")
    assert told.returncode == code, told.stderr
    assert ("differs: " in told.stderr) is bool(code)
    assert "paper 90.35" in told.stdout
    assert paper(tmp_path, "--table", "1").returncode == 0


def test_check_without_power_is_no_confirmation(tmp_path: Path) -> None:
    """The paper's own numbers, and 872 rows cannot tell a point."""
    store(tmp_path)
    told = paper(tmp_path, "--table", "1", "--check")
    assert told.returncode == 1
    assert "0 agree" in told.stderr
    assert "cannot tell" in told.stdout


def test_a_store_without_the_papers_models(tmp_path: Path) -> None:
    """It is told once, and a model may stand for one of the paper's."""
    store(tmp_path, model="./mine", off=-20.0)
    told = paper(tmp_path)
    assert (told.returncode, told.stdout) == (0, "")
    assert told.stderr.count("the store has none of the paper's models (bert-base-cased, ") == 1
    assert "It has: ./mine (12 layers)." in told.stderr
    assert "lp-sweep run examples/poor-mans-bert.yaml" in told.stderr
    assert "--model ./mine=bert-base-cased" in told.stderr
    assert paper(tmp_path, "--table", "5").stdout.count("missing (paper") == 20
    nothing = paper(tmp_path, "--table", "1", "--check")
    assert nothing.returncode == 1
    assert "nothing was compared" in nothing.stderr
    named = paper(tmp_path, "--table", "1", "--check", "--model", "./mine=bert-base-cased")
    assert named.returncode == 1
    assert "differs: " in named.stderr


@pytest.mark.parametrize("pair", ["bert", "=bert-base-cased", "mine=", "mine=bort"])
def test_a_wrong_model(tmp_path: Path, pair: str) -> None:
    store(tmp_path)
    told = paper(tmp_path, "--model", pair)
    assert (told.returncode, told.stdout) == (2, "")
    assert "Traceback" not in told.stderr
    assert "bert-base-cased" in told.stderr  # what it should have been


def test_a_table_that_the_paper_has_not(tmp_path: Path) -> None:
    store(tmp_path)
    told = paper(tmp_path, "--table=7")
    assert (told.returncode, told.stdout) == (2, "")
    assert "the paper has no Table 7. Choose one of: 1, 2, 3, 4, 5, 6." in told.stderr


@pytest.mark.parametrize("asked", [(), ("--table=1", "--table=4")], ids=["all", "two"])
def test_json_and_csv_are_one_piece(tmp_path: Path, asked: tuple[str, ...]) -> None:
    store(tmp_path)
    rows = json.loads(paper(tmp_path, *asked, "--json").stdout)
    assert len({row["source"] for row in rows}) > 1
    header, *lines = csv.reader(io.StringIO(paper(tmp_path, *asked, "--format", "csv").stdout))
    assert header == list(rows[0])
    assert len(lines) == len(rows)
