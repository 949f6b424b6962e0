"""`lp-sweep table` of some models and strategies, as a user asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.service.tables import TableAsked, make_table
from lp_sweep.storage.store import Store
from tests.support.answered import network, right
from tests.support.fake_records import FakeSweep
from tests.support.program import sweep

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


OF_CELLS = [name for name in TABLES if name not in ("setups", "embeddings")]  # that have rows here


def found(folder: Path, name: str, *narrow: str) -> list[dict[str, Any]]:
    done = sweep("table", name, "--store", "store", *narrow, "--json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_md_is_markdown(world: Path) -> None:
    short, long = (
        sweep("table", "strategies", "--store", "store", "--format", form, cwd=world).stdout
        for form in ("md", "markdown")
    )
    assert short == long
    assert "|---|" in short.replace(" ", "").replace(":", "")


@pytest.mark.parametrize("name", OF_CELLS)
def test_every_table_takes_models_and_strategies(world: Path, name: str) -> None:
    assert {row["model"] for row in found(world, name, "--model", BRACKETS)} == {BRACKETS}
    if name != "speed":
        rows = found(world, name, "--strategy", "bottom")
        assert {row["strategy"] for row in rows} == {"bottom"}
        assert {row["model"] for row in rows} == {"bert", BRACKETS}


@pytest.mark.parametrize("name", OF_CELLS)
def test_a_table_names_all_views_and_columns_that_it_reads(world: Path, name: str) -> None:
    asked = TableAsked(name, "points", ("*",), () if name == "speed" else ("*",))
    store = Store(world / "store")
    with open_views(store) as whole, open_views(store, only=TABLES[name].views) as narrow:
        assert make_table(narrow, asked) == make_table(whole, asked)
        columns = narrow.query("FROM trials LIMIT 0").column_names
        assert ("host" in columns) == ("trials" in TABLES[name].views)


def test_fewer_comparisons_are_corrected_less(world: Path) -> None:
    several = ("--model", BRACKETS, "--model", "bert")
    both = found(world, "significance", *several)
    assert both[0]["n_tests"] == 8
    assert {row["model"] for row in both} == {"bert", BRACKETS}
    (one,) = found(world, "significance", "--model", "bert", "--strategy", "top")
    assert one["n_tests"] == 1


def test_a_pattern_takes_all_that_match(world: Path) -> None:
    rows = found(world, "strategies", "--strategy", "random*", "--model", "bert")
    assert {row["strategy"] for row in rows} == {"random 0", "random 1"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["tasks", "--model", "brt"], "--model: unknown model 'brt'. Choose one of: ./a[b], bert."),
        (["tasks", "--strategy", "topp"], "Did you mean 'top'?"),
        (["speed", "--strategy", "top"], "table speed takes no --strategy"),
        (["setups", "--model", "bert"], "table setups takes no --model"),
    ],
    ids=["model", "strategy", "speed", "setups"],
)
def test_an_unknown_or_needless_name_is_refused(
    world: Path, asked: list[str], message: str
) -> None:
    done = sweep("table", *asked, "--store", "store", cwd=world)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
