"""Strategies and metrics of the user's own: `plugins: [my.py]`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from lp_sweep import LpSweepError, Sweep, open_store, strategy
from lp_sweep.storage.places import run_with
from lp_sweep.trials import plugins
from lp_sweep.trials.spec.scoring import METRIC_FACTS
from lp_sweep.trials.spec.select import STRATEGIES, LayerScores, dropped_layers, possible_k
from tests.support.toyworld import save_world

MINE = """
from pathlib import Path

from lp_sweep import metric, strategy

Path(__file__).with_suffix(".ran").touch()
PRICE = 3


@strategy(name="below-last")
def below_last(depth, k):
    "the K layers below the last one"
    return [*range(1, depth - k), depth]


@strategy(measure="block_influence")
def weakest(depth, k, profile):
    return sorted(profile, key=profile.get)[k:]


@metric
def cost(labels, predictions):
    missed = ((labels == 1) & (predictions == 0)).sum()
    return 100 * (1 - min(1, PRICE * missed / len(labels)))
"""


@pytest.fixture(autouse=True)
def undeclared() -> Iterator[None]:
    """Strategies and metrics of one test are unknown to the next one."""
    before = dict(STRATEGIES), dict(METRIC_FACTS)
    yield
    for table, content in zip((STRATEGIES, METRIC_FACTS), before, strict=True):
        table.clear()
        table.update(content)  # type: ignore[call-overload]


def world(folder: Path, text: str = MINE, **changes: Any) -> Path:
    """A sweep that uses what the plugin has."""
    task = {"name": "mood", "train": "train.csv", "dev": "dev.csv", "text": ["text"]}
    content = {
        "plugins": ["my.py"],
        "tasks": [task | {"metric": "cost"}],
        "strategies": [{"name": "below-last", "k": [0, 2]}, {"name": "weakest", "k": [1]}],
    }
    file = save_world(folder, **content | changes)
    (folder / "my.py").write_text(text, errors="surrogateescape")
    return file


def test_a_sweep_trains_with_them_and_its_store_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep.from_yaml(world(tmp_path), store=tmp_path / "records")
    told: list[dict[str, Any]] = []
    while sweep.run(inline=True, cache_dir=tmp_path / "cache", on_trial=told.append).exit_code:
        assert len(told) < 10
    assert "failed" not in {work["status"] for work in told}
    kept = {tuple(work["kept_layers"]) for work in told if "kept_layers" in work}
    assert (1, 4) in kept
    cells = sweep.results().sql("SELECT score, metric FROM cells WHERE k = 0")
    assert {row["metric"] for row in cells} == {"cost"}
    (tmp_path / "my.ran").unlink()
    copy = tmp_path / "records" / "sweeps" / "toy.my.py"
    assert "def below_last(depth, k)" in copy.read_text()
    # a store that names a file of its own, whose plugin would be run
    evil = world(tmp_path / "records" / "evil")
    stored = tmp_path / "records" / "sweeps" / "toy.yaml"
    stored.write_text(run_with(str(evil), None) + evil.read_text())
    monkeypatch.chdir(tmp_path)  # a sweep.yaml here is looked at as well, but nobody named it
    with open_store(tmp_path / "records") as results:
        assert "cost" in repr(results.table("tasks"))
        results.report(tmp_path / "report.html")
        assert len(results.status()) == 1
        trial = results.sql("SELECT trial_id FROM cells WHERE k = 2")[0]["trial_id"]
        for table, name in ((METRIC_FACTS, "cost"), (STRATEGIES, "weakest")):
            del table[name]  # type: ignore[attr-defined]  # as in a new process
        with pytest.raises(LpSweepError, match=r"name|Name"):
            results.export(tmp_path / "out", trial)
    assert not [*tmp_path.rglob("*.ran")]


@pytest.mark.slow
@pytest.mark.ray
def test_workers_of_ray_have_its_metric(tmp_path: Path) -> None:
    changes = {"strategies": [{"name": "below-last", "k": [0, 2]}]}
    sweep = Sweep.from_yaml(world(tmp_path, **changes), store=tmp_path / "records")
    assert sweep.run(cache_dir=tmp_path / "cache").exit_code == 0


def ids(file: Path) -> set[str]:
    return {row["trial_id"] for row in Sweep.from_yaml(file).plan().cells() if row["trial_id"]}


def test_a_metric_is_identified_by_its_name_and_source(tmp_path: Path) -> None:
    asked = {"strategies": [{"name": "top", "k": [0, 2]}]}
    found = ids(world(tmp_path, **asked))
    assert found == ids(
        world(tmp_path, MINE.replace("PRICE = 3", "# a comment\nPRICE = 3"), **asked)
    )
    assert found.isdisjoint(ids(world(tmp_path, MINE.replace("PRICE *", "2 *"), **asked)))
    assert found == ids(world(tmp_path, **asked)), "as it was"
    plain = {"tasks": [{"name": "mood", "train": "train.csv", "dev": "dev.csv", "text": ["text"]}]}
    assert ids(world(tmp_path, **asked | plain)) == ids(save_world(tmp_path, **asked))


def test_a_strategy_says_what_is_possible() -> None:
    @strategy
    def pairs(depth: int, k: int) -> list[int] | None:
        return None if k % 2 else [*range(k + 1, depth + 1)]

    assert possible_k("pairs", 5) == (0, 2, 4)
    assert dropped_layers("pairs", 5, 2) == (1, 2)
    strategy(lambda depth, k, profile: sorted(profile)[k:], name="lowest", measure="contribution")
    found = STRATEGIES["lowest"].chosen(LayerScores({1: 0.5, 2: 0.1, 3: 0.2}), 1)
    assert found == (1,)


def test_an_entry_point_is_imported_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "company_metrics.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("company", "company_metrics", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    assert ids(world(tmp_path / "a", plugins=["company"]))
    assert METRIC_FACTS["cost"].file == ("company_metrics", "")


FILES = {"name": "mood", "train": "train.csv", "dev": "dev.csv", "text": ["text"]}
TAGS = FILES | {"kind": "tokens", "metric": "cost"}
MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    r"no file .*other\.py": (MINE, {"plugins": ["other.py"]}),
    "unknown entry point.*'company'": (MINE, {"plugins": ["company"]}),
    "my.py: SyntaxError": ("def (", {}),
    "my.py: ZeroDivisionError": ("1 / 0", {}),
    "my.py: SystemExit: bye": ("raise SystemExit('bye')", {}),
    "my.py: UnicodeDecodeError": ("# caf\udce9", {}),
    "'top' is no name for a strategy": (MINE.replace("below-last", "top"), {}),
    "unknown strategy 'below-last'": (MINE.replace("below-last", "other"), {}),
    r"'below-last' keeps \[1, 2, 3, 4\] of 4 layers at K=1: return 3": (
        MINE.replace("[*range(1, depth - k), depth]", "range(1, 5)"), {},
    ),
    "strategy 'below-last' of 4 layers at K=1: ZeroDivisionError": (
        MINE.replace("return [*range", "1 / 0\n    return [*range"), {},
    ),
    "metric 'cost' returned 1001: .* from 0 to 100": (
        MINE.replace("return 100 *", "return 1000 +"), {},
    ),
    "metric 'cost': NameError": (MINE.replace("PRICE = 3", ""), {}),
    "unknown measurement of layers 'angle'": (MINE.replace("block_influence", "angle"), {}),
    "unknown tokens metric 'cost'": (
        MINE,
        {"tasks": [TAGS]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_sentence(message: str, tmp_path: Path) -> None:
    text, changes = MISTAKES[message]
    with pytest.raises(LpSweepError, match=message):
        Sweep.from_yaml(world(tmp_path, text, **changes)).plan()


def test_a_metric_of_a_notebook_says_where_to_write_it() -> None:
    def mine(labels: Any, predictions: Any) -> float:
        return 1.0

    mine.__module__ = "__main__"
    with pytest.raises(LpSweepError, match=r"plugins: \[my.py\]"):
        plugins.metric(mine)
