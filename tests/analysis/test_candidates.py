"""Networks as they are shipped: the interval of their change, and which of them is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lp_sweep.analysis.rows import ServingBudget
from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.export.choice import SHIPPED_VIEWS, to_ship
from lp_sweep.orchestrator.options import ExportOptions
from lp_sweep.storage.errors import SpecError
from tests.support.fake_records import STARTED, FakeSweep, identifier

ROWS = 400
FORMS = {  # layers dropped and format -> dev rows that are wrong, ms, MB
    (0, "torch"): (range(40), 15.0, 90.0),
    (0, "onnx-int8"): (range(42), 2.0, 23.0),
    (6, "torch"): (range(44), 8.0, 60.0),
    (6, "onnx-int8"): (range(20, 70), 1.0, 15.0),
    (8, "onnx-int8"): (range(100), 0.8, 13.0),
}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    fake = FakeSweep(tmp_path_factory.mktemp("store"))
    trials = {k: fake.cell(k=k, score=90.0) for k in (0, 6, 8)}
    for (k, form), (wrong, ms, mb) in FORMS.items():
        deploy(fake, trials[k], form, wrong, ms=ms, mb=mb)
    row = deployment(trials[6], "onnx") | {"error": "no space is left on the disk"}
    fake.store.put("deployments", row["deployment_id"], [row])
    return fake.publish()


def deployment(cell: dict[str, Any], form: str, device: str = "Big CPU") -> dict[str, Any]:
    names = ("trial_id", "model", "depth", "kept_layers", "task", "seed")
    return {
        **{name: cell[name] for name in names},
        "deployment_id": identifier("d", cell["trial_id"], form, device),
        "removed_feed_forwards": [],
        **{"format": form, "vocabulary": "full", "metric": "accuracy", "dev_examples": ROWS},
        **{"device_type": "cpu", "device_name": device, "threads": 1, "ended_at": STARTED},
        "session": "one",
    }


def deploy(
    fake: FakeSweep,
    cell: dict[str, Any],
    form: str,
    wrong: range,
    *,
    ms: float,
    mb: float,
    device: str = "Big CPU",
) -> None:
    own = deployment(cell, form, device)
    full = {**cell, "trial_id": fake.cells[0]["trial_id"]}
    right = np.isin(np.arange(ROWS), wrong, invert=True)
    answers = [
        {"trial_id": own["deployment_id"], "split": "validation", "example": i, "label": 1.0}
        | {"prediction": float(value), "scores": [0.0, float(value)], "tally": None}
        for i, value in enumerate(right)
    ]
    own |= {"score": right.mean(), "ms": ms, "ms_p95": 2 * ms, "bytes": int(mb * 1e6)}
    own |= {"baseline": deployment(full, "torch", device)["deployment_id"], "baseline_ms": 15.0}
    fake.store.put("predictions", own["deployment_id"], answers)
    fake.store.put("deployments", own["deployment_id"], [own])


def made(store: Any, *deltas: float, **budget: Any) -> Table:
    with open_views(store, deltas=deltas, only=TABLES["candidates"].views) as catalog:
        return TABLES["candidates"](catalog, budget=ServingBudget(**budget))


def chosen(table: Table) -> dict[float, tuple[int, str]]:
    return {
        loss: (12 - row["n_kept"], row["format"])
        for row in table.long.to_pylist()
        for loss in row["chosen_within"]
    }


def test_the_fastest_within_the_loss_is_shipped_or_the_smallest(shipped: Any) -> None:
    assert chosen(made(shipped, 0.2, 1, 5)) == {
        0.2: (0, "torch"),
        1: (0, "onnx-int8"),
        5: (6, "onnx-int8"),
    }
    assert chosen(made(shipped, 1, max_mb=70, max_ms=9)) == {1: (0, "onnx-int8")}
    assert chosen(made(shipped, 20, smallest=True)) == {20: (8, "onnx-int8")}


def test_networks_of_another_seed_are_named(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path)
    deploy(fake, fake.cell(k=0, seed=42, score=90.0), "torch", range(40), ms=15.0, mb=90.0)
    deploy(fake, fake.cell(k=4, seed=42, score=90.0), "torch", range(42), ms=9.0, mb=70.0)
    deploy(fake, fake.cell(k=6, seed=43, score=90.0), "torch", range(44), ms=8.0, mb=60.0)
    table = made(fake.publish(), 1)
    assert [note for note in table.notes if "not of the full model's seed: layers 1-6." in note]


def test_points_that_8_bits_add_are_chance(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path)
    trials = {k: fake.cell(k=k, score=90.0) for k in (0, 6)}
    deploy(fake, trials[0], "torch", range(40), ms=15.0, mb=90.0)
    deploy(fake, trials[6], "torch", range(50), ms=8.0, mb=60.0)  # loses 2.5 points
    deploy(fake, trials[6], "onnx-int8", range(42), ms=1.0, mb=15.0)  # 0.5
    assert chosen(made(fake.publish(), 1, 3)) == {1: (0, "torch"), 3: (6, "onnx-int8")}


def test_the_change_is_paired_by_row(shipped: Any) -> None:
    """Ten more wrong rows are found beside 20 that another network gets right and 30 that it gets
    wrong: an interval of unpaired scores would be wider."""
    rows = {(r["n_kept"], r["format"]): r for r in made(shipped, 1).long.to_pylist()}
    row, whole = rows[6, "onnx-int8"], rows[12, "torch"]
    assert row["change"] == pytest.approx(-2.5)
    assert (whole["change"], whole["low"], whole["high"]) == (0, 0, 0)
    gains = np.array([1] * 20 + [-1] * 30 + [0] * (ROWS - 50))
    half = 1.97 * 100 * gains.std(ddof=1) / ROWS**0.5
    assert row["low"] == pytest.approx(-2.5 - half, abs=0.1)
    assert row["high"] == pytest.approx(-2.5 + half, abs=0.1)
    assert row["times_as_fast"] == 15


def test_what_nothing_beats_is_on_the_front(shipped: Any) -> None:
    front = {(r["n_kept"], r["format"]): r["front"] for r in made(shipped, 1).long.to_pylist()}
    assert front == {
        (12, "torch"): True,
        (12, "onnx-int8"): True,
        (6, "torch"): False,  # the full model as int8 is better, faster and smaller
        (6, "onnx-int8"): True,
        (4, "onnx-int8"): True,
        (6, "onnx"): False,
    }


def test_a_budget_that_nothing_meets_names_what_comes_nearest(shipped: Any) -> None:
    table = made(shipped, 1, max_ms=1.5)
    assert chosen(table) == {}
    (nothing,) = [note for note in table.notes if note.startswith("Nothing")]
    assert "layers 1-6 as onnx-int8: 87.50" in nothing
    assert "layers 1-12 as onnx-int8: 89.50" in nothing


def test_the_answer_is_one_sentence_and_a_failure_is_named(shipped: Any) -> None:
    table = made(shipped, 1, 1.5, 5)
    assert table.lead[0] == (
        "SST-2, within 1, 1.5 points: ship layers 1-12 as onnx-int8: 89.50 "
        "(full model 90.00: −0.50, 95% −1.20 to +0.20), 2 ms (7.5 times as fast), 23.0 MB (26%)"
    )
    trial = table.long.to_pylist()[0]["trial_id"]
    command = f"lp-sweep export {trial} --as onnx-int8 --out smaller --store "
    assert table.lead[1].strip() == command + shipped.location
    assert table.lead[2].startswith("SST-2, within 5 points: ship layers 1-6 as onnx-int8: 87.50")
    assert "no space is left on the disk" in " ".join(table.notes)
    assert all(row["chosen_within"] == [] for row in table.long.to_pylist() if row["error"])


def test_a_part_is_shown_with_what_to_ship_of_all(shipped: Any) -> None:
    """As `measure` does, which may measure the full model alone again."""
    whole = made(shipped, 5).long.to_pylist()[0]["deployment_id"]
    with open_views(shipped, deltas=(5,), only=TABLES["candidates"].views) as catalog:
        table = TABLES["candidates"](catalog, deployments=[whole])
    assert chosen(table) == {5: (6, "onnx-int8")}
    assert [row["n_kept"] for row in table.long.to_pylist()] == [12, 6]


def test_two_devices_are_never_compared(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path)
    cell = fake.cell(k=0, score=90.0)
    deploy(fake, cell, "torch", range(40), ms=15, mb=90)
    deploy(fake, cell, "torch", range(40), ms=1, mb=90, device="GPU")
    deploy(fake, cell, "onnx", range(40), ms=0.5, mb=90, device="GPU")
    table = made(fake.publish(), 1)
    found = {
        (row["device_name"], row["format"])
        for row in table.long.to_pylist()
        if row["chosen_within"]
    }
    assert found == {("Big CPU", "torch"), ("GPU", "onnx")}
    assert [line.partition(",")[0] for line in table.lead[::2]] == [
        "SST-2 on Big CPU",
        "SST-2 on GPU",
    ]


def test_an_export_takes_what_was_measured_here_or_at_the_only_place(
    shipped: Any, tmp_path: Path
) -> None:
    fake = FakeSweep(tmp_path)
    cell = fake.cell(k=0, score=90.0)
    for device in ("Big CPU", "GPU"):
        deploy(fake, cell, "torch", range(40), ms=15, mb=90, device=device)
    two = fake.publish()

    def taken(store: Any, device: str, **options: Any) -> tuple[str, str]:
        asked = ExportOptions(out=tmp_path / "out", task="SST-2", within=5, **options)
        with open_views(store, deltas=[5], only=SHIPPED_VIEWS) as catalog:
            choice, row = to_ship(catalog, asked, ["CPU beside it", device])
        assert choice.trial_id == row["trial_id"]
        return row["device_name"], row["format"]

    assert taken(shipped, "a laptop", max_ms=5.0) == ("Big CPU", "onnx-int8")
    assert taken(two, "GPU", fastest=True) == ("GPU", "torch")
    beside = FakeSweep(tmp_path / "beside")
    cell = beside.cell(k=0, score=90.0)
    for place in ("GPU", "CPU beside it", "a laptop"):
        deploy(beside, cell, "torch", range(40), ms=15, mb=90, device=place)
    assert taken(beside.publish(), "GPU", fastest=True) == ("CPU beside it", "torch")
    for store, device, options, nouns in (
        (two, "a laptop", {"fastest": True}, "Big CPU.*GPU"),
        (shipped, "Big CPU", {"max_ms": 0.1}, "5 points.*Nearest: layers 1-6 as onnx-int8"),
        (FakeSweep(tmp_path / "none").publish(), "x", {"fastest": True}, "SST-2"),
    ):
        with pytest.raises(SpecError, match=nouns):
            taken(store, device, **options)
