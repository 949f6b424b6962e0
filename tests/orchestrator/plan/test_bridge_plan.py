"""Bridges in a sweep file and in a plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lp_sweep.orchestrator.plan.naming import describe
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.train.procedures import Procedure, stage_one, teacher_of
from tests.support.stagedplans import cell_trial, plan_of, spec, the_full
from tests.support.sweepfiles import PLAIN, make_inputs, make_model, planned

BRIDGES = "bridge: [none, linear]"


def test_it_is_a_trial_of_its_own_beside_the_plain_one(tmp_path: Path) -> None:
    plain, both = plan_of(tmp_path / "a", ""), plan_of(tmp_path / "b", BRIDGES)
    assert plain.trials.keys() < both.trials.keys()
    more = [work for id_, work in both.trials.items() if id_ not in plain.trials]
    assert more
    assert all(spec(work).bridge == "linear" and spec(work).kept_layers[0] == 1 for work in more)
    assert all("bridge linear" in describe(work) for work in more)
    full = cell_trial(both, procedure="direct bridge linear", k=0, strategy="top")
    assert full == the_full(both) == cell_trial(both, procedure="direct", k=0, strategy="top")


def test_what_drops_layer_1_is_left_out(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, BRIDGES, "strategy=top,bottom", "k=0,2,4")
    asked = {(c.asked.procedure, c.asked.strategy, c.asked.k) for c in plan.cells}
    assert ("direct", "bottom", 2) in asked
    assert ("direct bridge linear", "top", 2) in asked
    assert not any("bridge" in p and s == "bottom" and k for p, s, k in asked)
    [note] = [note for note in plan.sweep.notes if "bridge" in note]
    assert "bottom drops layer 1" in note
    assert "K=2, 4 (left out)" in note


def test_stages_and_teachers_have_none(tmp_path: Path) -> None:
    lines = "procedures: finetune_then_drop\nbridge: linear\ndistill: logits"
    plan = plan_of(tmp_path, lines)
    name = "finetune_then_drop bridge linear distill logits"
    work = plan.trials[cell_trial(plan, procedure=name, strategy="top", k=2)]
    assert spec(work).bridge == "linear"
    first = stage_one(spec(work), 12)
    assert first is not None
    assert (first.bridge, teacher_of(spec(work), 12).bridge) == ("", "")


@pytest.mark.parametrize(
    "label",
    [
        "direct bridge linear",
        "finetune_then_drop frozen bridge linear",
        "direct bridge linear distill logits T=4 of ./a bridge folder",
    ],
)
def test_a_label_gives_its_procedure_back(label: str) -> None:
    found = Procedure.parse(label)
    assert (found.bridge, found.label) == ("linear", label)


@pytest.mark.parametrize(
    ("lines", "nouns"),
    [
        ("bridge: lineer", r"bridge.*none.*linear.*lineer"),
        ("bridge: linear\nprocedures: iterative", r"iterative.*one layer.*bridge"),
        ("bridge: linear\nfeed_forward: top 3", r"bridge.*feed_forward.*top 3"),
        ("bridge: [linear, linear]", r"linear is listed twice"),
    ],
)
def test_what_it_can_not_be_combined_with(lines: str, nouns: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"(?s){nouns}"):
        plan_of(tmp_path, lines)


def test_a_family_without_an_entry_is_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "esm"}))
    file = make_inputs(tmp_path, f"{PLAIN}{BRIDGES}\n")
    with pytest.raises(SpecError, match=r"bridge.*esm.*bert.*modernbert"):
        planned(file, "task=rte", f"model={folder}")
