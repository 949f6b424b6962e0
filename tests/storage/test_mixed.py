"""Cells of one sweep that were trained in more than one way: where that is said, and where not."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.notes import mixed_notes
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views, resting
from lp_sweep.orchestrator.service.tables import make_table
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.specs import Recipe
from tests.support.fake_records import FakeSweep
from tests.support.program import sweep


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    """RTE of two recipes, MRPC of one."""
    fake = FakeSweep(tmp_path / "store")
    for seed, setup, epochs in ((1, "s1-a", 1), (2, "s1-b", 3)):
        for k in (0, 2):
            fake.cell(k=k, score=90.0, seed=seed, task="RTE", setup=setup, epochs=epochs)
            fake.cell(k=k, score=90.0, seed=seed, task="MRPC", setup="s1-c", epochs=3)
    return fake


def table_notes(store: Store, name: str, models: tuple[str, ...] = ()) -> tuple[str, ...]:
    with open_views(store, only=TABLES[name].views) as catalog:
        return make_table(catalog, name, models=models).notes


def differences(store: Store) -> dict[str, Any]:
    with open_views(store, only=["recipe_differences"], once=True) as catalog:
        rows = catalog.query("FROM recipe_differences").to_pylist()
    return {f"{row['task']} {row['setting']}": row["found"] for row in rows}


def test_a_table_of_scores_says_it_first(fake: FakeSweep) -> None:
    with open_views(fake.publish()) as catalog:
        notes = {name: make_table(catalog, name).notes for name in TABLES}
    for name in TABLES.keys() - {"speed", "setups", "candidates"}:
        first, *others = notes[name]
        assert first.startswith("Not comparable: cells of sweep demo were trained")
        assert "(RTE): `lp-sweep query" in first
        assert not any("Not comparable" in note for note in others)
    assert not any("Not comparable" in note for note in notes["speed"])


@pytest.mark.parametrize(("form", "on_stderr"), [("csv", 1), ("latex", 0)])
def test_a_table_without_notes_warns(fake: FakeSweep, form: str, on_stderr: int) -> None:
    words = ("table", "tasks", "--store", fake.publish().location, "--format", form)
    done = sweep(*words, cwd=Path(fake.store.location))
    assert done.stderr.count("warning: Not comparable: cells of sweep demo") == on_stderr
    assert done.stdout.count("Not comparable") == 1 - on_stderr


def test_of_another_model_nothing_is_said(fake: FakeSweep) -> None:
    fake.cell(k=0, score=90.0, model="roberta", setup="s1-d")
    assert "Not comparable" in table_notes(fake.publish(), "tasks", ("bert",))[0]
    assert not any("Not comparable" in n for n in table_notes(fake.store, "tasks", ("roberta",)))


def test_the_view_tells_in_what(fake: FakeSweep) -> None:
    fake.cell(k=3, score=90.0, seed=1, task="MRPC", epochs=3, data_fingerprint="sha256:b")
    fake.cell(k=4, score=90.0, seed=1, task="MRPC", epochs=3, data_fingerprint="sha256:c")
    fake.cell(k=3, score=90.0, seed=1, task="CoLA", limit_train=8)
    fake.cell(k=4, score=90.0, seed=1, task="CoLA", freeze_embeddings=False)
    assert differences(fake.publish()) == {
        "RTE epochs": ["1", "3"],
        "MRPC data_fingerprint": ["sha256:b", "sha256:c"],
        "CoLA limit_train": ["8", "none"],
    }


def test_a_precision_that_devices_chose_is_told(tmp_path: Path) -> None:
    """`auto` is part of the identity as it was asked for: bf16 on one device, fp32 on another."""
    fake = FakeSweep(tmp_path)
    for k, used in enumerate(("bf16", "fp32", "bf16")):
        fake.cell(k=k, score=90.0, setup="s1-a", precision="auto", precision_used=used)
    fake.cell(k=0, score=90.0, setup="s1-b", task="RTE", precision="auto", precision_used="bf16")
    store = fake.publish()
    assert differences(store) == {"SST-2 precision": ["bf16", "fp32"]}
    assert "(SST-2)" in table_notes(store, "tasks")[0]


def test_how_rows_are_scored_is_told_of_specs_that_can_be_read(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path)
    for k, metric in enumerate(("f1", "mcc")):
        fake.cell(k=k, score=90.0, spec=json.dumps({"task": {"metric": metric}}))
    fake.cell(k=2, score=90.0, spec="{")
    assert differences(fake.publish()) == {
        "SST-2 task": ['{"metric":"f1"}', '{"metric":"mcc"}'],
    }


def test_what_can_be_compared_says_nothing(tmp_path: Path) -> None:
    """Each sweep, procedure and model alone; what is not known, and what is not done."""
    for name in ("one", "two"):
        fake = FakeSweep(tmp_path, name)
        for model in ("bert", "roberta"):
            for procedure in ("direct", "iterative 2"):
                setup = f"{name} {model} {procedure}"
                axes = {"model": model, "procedure": procedure, "seed": len(name + setup)}
                fake.cell(k=0, score=90.0, setup=setup, compute=setup, **axes)
        fake.publish()
    fake = FakeSweep(tmp_path, "three")
    fake.cell(k=0, score=90.0, setup="s1-a")
    fake.cell(k=2, score=90.0, setup=None)
    fake.cell(k=4, setup="s1-b")
    with open_views(fake.publish(), only=["recipe_differences", "cells"]) as catalog:
        assert [*mixed_notes(catalog)] == []
        assert not catalog.query("FROM recipe_differences").num_rows


def test_the_view_looks_at_every_setting_of_a_recipe() -> None:
    text = resting(["recipe_differences"])["recipe_differences"]
    named = {field.name for field in fields(Recipe) if f"trials.{field.name}" in text}
    assert {field.name for field in fields(Recipe)} - named == {"freeze_layers"}, "of each network"
