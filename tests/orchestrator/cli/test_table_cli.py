"""`lp-sweep table` of some models and strategies, and `lp-sweep paper`, as a user asks for them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lp_sweep import Results, open_store
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.service.tables import make_table
from lp_sweep.storage.store import Store
from tests.support.answered import network, right
from tests.support.everyday import few
from tests.support.fake_records import FakeSweep
from tests.support.program import Done, command, sweep

BRACKETS = "./a[b]"  # this name is also a pattern


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, three strategies, one of them drawn twice."""
    folder = tmp_path_factory.mktemp("world")
    fake = FakeSweep(folder / "store")
    for model in ("bert", BRACKETS):
        network(fake, right(90), k=0, model=model)
        network(fake, right(80), k=2, model=model)
        network(fake, right(70), k=2, model=model, strategy="bottom")
        taught = {"strategy": "bottom", "procedure": "direct distill logits"}
        network(fake, right(75), k=2, model=model, **taught)
        for draw, dropped in enumerate([(3, 5), (2, 8)]):
            axes: dict[str, Any] = {"strategy": f"random {draw}", "dropped": dropped}
            network(fake, right(60 + draw), k=2, model=model, **axes)
    fake.publish()
    return folder


OF_CELLS = [
    name for name in TABLES if name not in ("setups", "embeddings", "candidates")
]  # that have rows here


@pytest.fixture(scope="module")
def results(world: Path) -> Iterator[Results]:
    with open_store(world / "store") as results:
        yield results


@pytest.mark.parametrize("name", few(OF_CELLS, 2))
def test_every_table_takes_models_and_strategies(results: Results, name: str) -> None:
    assert {row["model"] for row in results.table(name, models=[BRACKETS])} == {BRACKETS}
    if name != "speed":
        rows = results.table(name, strategies=["bottom"])
        assert {row["strategy"] for row in rows} == {"bottom"}
        assert {row["model"] for row in rows} == {"bert", BRACKETS}


@pytest.mark.parametrize("name", few(OF_CELLS, 1))
def test_a_table_names_all_views_and_columns_that_it_reads(world: Path, name: str) -> None:
    asked = {"models": ["*"], "strategies": [] if name == "speed" else ["*"]}
    store = Store(world / "store")
    with open_views(store) as whole, open_views(store, only=TABLES[name].views) as narrow:
        assert make_table(narrow, name, **asked) == make_table(whole, name, **asked)
        columns = narrow.query("FROM trials LIMIT 0").column_names
        assert ("host" in columns) == ("trials" in TABLES[name].views)


def test_fewer_comparisons_are_corrected_less_and_patterns_are_taken(
    world: Path, results: Results
) -> None:
    both = [*results.table("significance", models=[BRACKETS, "bert"])]
    assert both[0]["n_tests"] == 8
    assert {row["model"] for row in both} == {"bert", BRACKETS}
    (one,) = results.table("significance", models=["bert"], strategies=["top"])
    assert one["n_tests"] == 1

    asked = ("--store", "store", "--strategy", "random*", "--model", "bert", "--json")
    done = sweep("table", "strategies", *asked, cwd=world)
    assert (done.returncode, done.stderr) == (0, "")
    assert {row["strategy"] for row in json.loads(done.stdout)} == {"random 0", "random 1"}


# -- paper

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


@pytest.mark.parametrize(
    ("off", "of", "code", "verdict"),
    [
        (0.0, OF_QQP, 0, "paper 90.35"),
        (-20.0, OF_QQP, 1, "differs"),
        (0.0, {}, 1, "cannot tell"),  # 872 rows cannot tell a point, so nothing is confirmed
    ],
)
def test_check_is_an_exit_code(
    tmp_path: Path, off: float, of: dict[str, Any], code: int, verdict: str
) -> None:
    store(tmp_path, off=off, **of)
    told = paper(tmp_path, "--table", "1", "--check")
    assert told.returncode == code, told.stderr
    assert ("differs: " in told.stderr) is (verdict == "differs")
    assert ("no number agrees" in told.stderr) is (verdict == "cannot tell")
    assert verdict in told.stdout


def test_a_store_without_the_papers_models(tmp_path: Path) -> None:
    """It is told once, and a model may stand for one of the paper's."""
    store(tmp_path, model="./mine", off=-20.0)
    told = paper(tmp_path)
    assert (told.returncode, told.stdout) == (0, ""), "no exit code without --check"
    assert told.stderr.count("the store has none of the paper's models (bert-base-cased, ") == 1
    assert "It has: ./mine (12 layers)." in told.stderr
    assert "lp-sweep run examples/poor-mans-bert.yaml" in told.stderr
    assert "--model ./mine=bert-base-cased" in told.stderr
    nothing = paper(tmp_path, "--table", "1", "--check")
    assert nothing.returncode == 1
    assert "nothing was compared" in nothing.stderr
    named = paper(tmp_path, "--table", "1", "--check", "--model", "./mine=bert-base-cased")
    assert named.returncode == 1
    assert "differs: " in named.stderr


def test_several_tables_are_one_piece_of_json(tmp_path: Path) -> None:
    store(tmp_path)
    rows = json.loads(paper(tmp_path, "--table=1", "--table=4", "--json").stdout)
    assert len({row["source"] for row in rows}) > 1


def test_a_query_as_parquet_is_a_file_for_others(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0, 2: 89.5})
    fake.publish()
    words = command("query", "SELECT k, score FROM cells", "--store", "store", "-f", "parquet")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    rows = pq.read_table(pa.BufferReader(done.stdout))
    assert rows.column_names == ["k", "score"]
    assert sorted(rows["k"].to_pylist()) == [0, 2]
    told = sweep(
        "query", "FROM cells", "--store", "store", "-f", "parquet", cwd=tmp_path, screen=True
    )
    assert (told.returncode, "> cells.parquet" in told.stderr) == (2, True)
