"""`lp-sweep cka`: two kept networks of a sweep compared, and what it says where that can't be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.cli.showing import layers_text
from lp_sweep.orchestrator.service import cka
from lp_sweep.orchestrator.service.request import Request, planned
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.run import execute
from tests.support.toyworld import RECIPE, save_world


class World:
    """A sweep of K = 0 and 2 whose networks were kept, and of K = 1, whose network was not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = save_world(
            folder, strategies=[{"name": "top", "k": [0, 2, 1]}], recipe={**RECIPE, "epochs": 1}
        )
        self.request = Request(str(file), [], str(folder / "store"), None, False)
        store = Store(folder / "store", create=True)
        self.ids = list(planned(self.request).plan.trials)
        for work, keep in zip(
            planned(self.request).plan.trials.values(), ("all", "all", "none"), strict=True
        ):
            execute(
                work.job().to_plain() | {"cache_dir": str(folder / "cache"), "keep": keep},
                store.location,
            )

    def compare(self, first: str, second: str) -> dict[str, Any]:
        return cka.compare(self.request, (first, second), self.folder / "cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def matrix(row: dict[str, Any], site: str) -> dict[tuple[int, int], float | None]:
    return {(v["layer"], v["other"]): v["value"] for v in row["values"] if v["name"] == site}


def test_layers_are_named_by_their_original_numbers(world: World) -> None:
    full, pruned, _ = world.ids
    layers = matrix(world.compare(pruned, full), "layer")
    assert set(layers) == {(row, column) for row in range(3) for column in range(5)}
    assert all(value is None for (row, column), value in layers.items() if not row or not column)
    assert all(0 < value <= 1 + 1e-9 for value in layers.values() if value is not None)


def test_a_network_is_like_itself(world: World) -> None:
    full = world.ids[0]
    for site in ("layer", "attention"):
        values = matrix(world.compare(full, full), site)
        assert [values[i, i] for i in range(1, 5)] == pytest.approx([1.0] * 4)


def test_it_is_stored_and_measured_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    full, pruned, _ = world.ids
    first = world.compare(full[:8], "pretrained")
    monkeypatch.setattr(cka, "_measured", lambda *_: pytest.fail("measured again"))
    assert world.compare(full, "pretrained") == first
    assert f"cka of the network of {full} (rows) with the pre-trained one (columns)" in "\n".join(
        layers_text(first)
    )
    del pruned


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("t1-zz", "pretrained", "there is no trial 't1-zz' in this sweep"),
        ("t1-", "pretrained", "3 trials begin with 't1-'"),
        ("{2}", "{0}", r"the network of t1-\w+ is not in .*keep: all"),
        ("{0}", "{2}", r"the network of t1-\w+ is not in .*keep: all"),
    ],
    ids=["unknown", "several", "not kept", "the other not kept"],
)
def test_what_can_not_be_compared(world: World, first: str, second: str, message: str) -> None:
    with pytest.raises(LpSweepError, match=message):
        world.compare(first.format(*world.ids), second.format(*world.ids))
