"""`lp-sweep table` of some models and strategies, as a user asks for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.service.tables import TableAsked as Asked
from lp_sweep.orchestrator.service.tables import make_table
from lp_sweep.storage.store import Store
from tests.support.answered import network, right
from tests.support.fake_records import FakeSweep
from tests.support.program import sweep

BRACKETS = "./a[b]"  # a name that is a pattern, too


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
        sweep("table", "tasks", "--store", "store", "--format", form, cwd=world).stdout
        for form in ("md", "markdown")
    )
    assert short == long
    assert "|---|" in short.replace(" ", "").replace(":", "")


@pytest.mark.parametrize("name", OF_CELLS)
def test_every_table_takes_models(world: Path, name: str) -> None:
    assert {row["model"] for row in found(world, name, "--model", BRACKETS)} == {BRACKETS}
    both = found(world, name, "--model", BRACKETS, "--model", "bert")
    assert {row["model"] for row in both} == {"bert", BRACKETS}


@pytest.mark.parametrize("name", [name for name in OF_CELLS if name != "speed"])
def test_every_table_but_speed_takes_strategies(world: Path, name: str) -> None:
    assert {row["strategy"] for row in found(world, name, "--strategy", "bottom")} == {"bottom"}


@pytest.mark.parametrize("name", OF_CELLS)
def test_the_views_and_columns_that_are_read_are_all_that_a_table_says(
    world: Path, name: str
) -> None:
    asked = Asked(name, "points", ("*",), () if name == "speed" else ("*",))
    store = Store(world / "store")
    with open_views(store) as whole, open_views(store, only=TABLES[name].views) as narrow:
        assert make_table(narrow, asked) == make_table(whole, asked)
        columns = narrow.query("FROM trials LIMIT 0").column_names
        assert ("host" in columns) == ("trials" in TABLES[name].views)


def test_less_asked_for_is_less_corrected(world: Path) -> None:
    everything = found(world, "significance")
    (one,) = found(world, "significance", "--model", "bert", "--strategy", "top")
    assert (one["n_tests"], everything[0]["n_tests"]) == (1, 8)


def test_a_pattern_takes_all_that_match(world: Path) -> None:
    rows = found(world, "intervals", "--strategy", "random*", "--model", "bert")
    assert [row["strategy"] for row in rows] == ["random 0", "random 1"]


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
def test_what_there_is_not_is_said(world: Path, asked: list[str], message: str) -> None:
    done = sweep("table", *asked, "--store", "store", cwd=world)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
