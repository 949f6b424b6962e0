"""`lp-sweep show` of a profile: its numbers as tables that a person reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.cli.showing import show_text
from lp_sweep.orchestrator.service.store import history
from lp_sweep.storage.store import Store

TRIAL, OTHER, PROFILE = "t1-00000000000000000001", "t1-00000000000000000002", "p1-01"


def value(name: str, layer: int, number: float | None, other: int | None = None) -> dict[str, Any]:
    return {"name": name, "layer": layer, "other": other, "value": number}


def shown(folder: Path, **row: Any) -> str:
    """What `show` prints below the fields that a trial has as well."""
    store = Store(folder / "store", create=True)
    plain = {"profile_id": PROFILE, "model": "bert", "task": "rte", "dev_examples": 277}
    store.put("profiles", PROFILE, [plain | row])
    text = show_text(history(store, PROFILE))
    assert "values  " not in text
    assert "layers  " not in text.partition("\n\n")[0].replace("kept_layers", "")
    return text.partition("\n\n")[2]


def test_what_a_strategy_chooses_by(tmp_path: Path) -> None:
    layers = [{"layer": 1, "value": 0.875}, {"layer": 2, "value": 0.51234}]
    assert shown(tmp_path, measure="block_influence", layers=layers).splitlines() == [
        "block-influence of bert, pre-trained, on 277 dev rows of rte",
        "",
        "layer  block-influence",
        "    1           0.8750",
        "    2           0.5123",
    ]


def test_the_measurement_of_a_trained_network(tmp_path: Path) -> None:
    values = [value("accuracy", 0, 0.5), value("f1", 0, None), value("accuracy", 3, 0.625)]
    text = shown(tmp_path, measure="probes", trial_id=TRIAL, values=[*values, value("f1", 3, 1.0)])
    assert text.splitlines() == [
        f"probes of the network of {TRIAL}, on 277 dev rows of rte",
        "",
        "layer  accuracy       f1",
        "    0    0.5000        –",
        "    3    0.6250   1.0000",
    ]


def test_a_matrix(tmp_path: Path) -> None:
    values = [value("layer", i, i / 8, j) for i in (0, 4) for j in (0, 1, 2)]
    text = shown(tmp_path, measure="cka", trial_id=TRIAL, against=OTHER, values=values)
    assert text.splitlines() == [
        f"cka of the network of {TRIAL} (rows) with that of {OTHER} (columns), on 277 dev rows of "
        "rte",
        "",
        "layer:",
        "layer       0       1       2",
        "    0   0.000   0.000   0.000",
        "    4   0.500   0.500   0.500",
    ]


@pytest.mark.parametrize("values", [None, [value("a\x1b", 1, 0.5)], [{}]])
def test_whatever_a_profile_holds(tmp_path: Path, values: Any) -> None:
    text = shown(tmp_path, measure="probes", layers=None, values=values)
    assert "\x1b" not in text
    assert "values" in history(Store(tmp_path / "store"), PROFILE).plain()["record"]
