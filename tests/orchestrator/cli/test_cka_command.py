"""`lp-sweep cka`: two kept networks of a sweep, compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.orchestrator.service import cka
from lp_sweep.orchestrator.service.plan import planned
from lp_sweep.storage.store import Store
from tests.support.plain_jobs import execute
from tests.support.program import Done, sweep
from tests.support.toyworld import RECIPE, save_world

Numbers = dict[tuple[int, int], float | None]  # by layer of the first and of the second network


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks of K = 0 and 2 that were kept, and one of K = 1 that was not."""
    folder = tmp_path_factory.mktemp("world")
    strategies = [{"name": "top", "k": [0, 2, 1]}]
    save_world(folder, strategies=strategies, recipe={**RECIPE, "epochs": 1})
    store = Store(folder / "lp-sweep-store", create=True)
    for work, keep in zip(works(folder), ("all", "all", "none"), strict=True):
        job = work.job().to_plain() | {"cache_dir": str(folder / "cache"), "keep": keep}
        execute(job, store.location)
    return folder


def works(folder: Path) -> list[Work]:
    return [*planned(Request(str(folder / "sweep.yaml"))).plan.trials.values()]


def compare(world: Path, first: str, second: str, *words: str) -> Done:
    return sweep("cka", first, second, "--cache-dir", "cache", *words, cwd=world)


def numbers(done: Done, site: str) -> Numbers:
    values = json.loads(done.stdout)["values"]
    return {(v["layer"], v["other"]): v["value"] for v in values if v["name"] == site}


def test_layers_keep_their_original_numbers_and_are_like_themselves(world: Path) -> None:
    full, pruned, _ = (work.id for work in works(world))
    layers = numbers(compare(world, pruned, full, "--json"), "layer")
    assert set(layers) == {(row, column) for row in range(3) for column in range(5)}
    for place, value in layers.items():
        assert value is None if 0 in place else 0 < (value or 0) <= 1 + 1e-9
    itself = compare(world, full, full, "--json")
    for site in ("layer", "attention"):
        assert [numbers(itself, site)[i, i] for i in range(1, 5)] == pytest.approx([1.0] * 4)


def test_a_comparison_is_stored_and_measured_once(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = works(world)[0].id
    first = compare(world, full[:8], "pretrained")
    assert f"cka of the network of {full} (rows) with the pre-trained one (columns)" in first.stdout
    monkeypatch.setattr(cka, "_measured", lambda *_: pytest.fail("measured again"))
    assert compare(world, full, "pretrained") == first


@pytest.mark.parametrize(
    ("first", "second", "nouns"),
    [
        ("t1-zz", "pretrained", ["no trial 't1-zz'", "lp-sweep query"]),
        ("t1-", "pretrained", ["3 trials", "'t1-'"]),
        ("{2}", "{0}", ["{2}", "keep: all"]),
        ("{0}", "{2}", ["{2}", "keep: all"]),
    ],
    ids=["unknown", "several", "not kept", "the other not kept"],
)
def test_what_can_not_be_compared(world: Path, first: str, second: str, nouns: list[str]) -> None:
    ids = [work.id for work in works(world)]
    done = compare(world, first.format(*ids), second.format(*ids))
    assert (done.returncode, done.stdout) == (2, "")
    assert all(noun.format(*ids) in done.stderr for noun in nouns)
