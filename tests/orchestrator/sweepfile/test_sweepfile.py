"""Every form of each key of a sweep file, and overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.plan.cells import CellAxes, asked_cells
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.trials.spec.feedforward import NONE
from lp_sweep.trials.spec.procedures import Procedure
from tests.support.sweepfiles import PLAIN, find, make_inputs, make_model, planned

TASKS = "tasks: [rte, mrpc]"
TOP = "{name: top, k: [0, 2]}"


def cells(file: Path, *overrides: str) -> list[CellAxes]:
    """Without the full model, where it is added to what the file lists."""
    sweep = find(file, overrides)
    found = asked_cells(sweep)
    if any("(K=0) is added" in note for note in sweep.notes):
        while (found[-1].k, found[-1].feed_forward.rule) == (0, NONE):
            found.pop()
    return found


def spec_of(folder: Path, lines: str) -> SweepSpec:
    return load_sweep(make_inputs(folder, f"{PLAIN}{lines}\n")).spec


# -- forms of each axis


@pytest.mark.parametrize(
    ("form", "seeds"),
    [
        ("42-44", [42, 43, 44]),
        ("[1, 3-5, {from: 9, count: 2}]", [1, 3, 4, 5, 9, 10]),
    ],
)
def test_seeds(tmp_path: Path, form: str, seeds: list[int]) -> None:
    file = make_inputs(tmp_path, PLAIN.replace("[42, 43]", form))
    assert load_sweep(file).spec.seeds == seeds


@pytest.mark.parametrize(
    ("form", "counts"),
    [("[0, 3-5]", {0, 3, 4, 5}), ("{from: 2, count: 2}", {2, 3}), ("1", {1})],
)
def test_a_range_of_k(tmp_path: Path, form: str, counts: set[int]) -> None:
    """For a strategy, and for a model in its place; in the file and on the command line."""
    file = make_inputs(tmp_path, PLAIN.replace("k: [0, 2]", f"k: {form}"))
    assert {cell.k for cell in cells(file)} == counts
    model = f"{{id: ./folder/of/a/model, k: {form}}}"
    file = make_inputs(tmp_path, PLAIN.replace("./folder/of/a/model", model))
    assert {cell.k for cell in cells(file)} == counts
    if "{" not in form:
        assert {cell.k for cell in cells(make_inputs(tmp_path), f"k={form}")} == counts


def test_short_forms(tmp_path: Path) -> None:
    text = """\
schema_version: 1
name: short
models: ./folder/of/a/model
tasks: RTE
strategies: {name: top, k: 3}
"""
    asked = cells(make_inputs(tmp_path, text))
    assert asked == [
        CellAxes("./folder/of/a/model", Procedure("direct"), "top", 3, None, "rte", 42)
    ]


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("{name: direct}", ["direct"]),
        ("[{name: finetune_then_drop, freeze_dropped: true}]", ["finetune_then_drop frozen"]),
        ("[iterative 1, iterative 2]", ["iterative 1", "iterative"]),
    ],
)
def test_procedures(tmp_path: Path, written: str, labels: list[str]) -> None:
    assert spec_of(tmp_path, f"procedures: {written}").procedures == labels


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("[none, Top  3, 'bottom 2']", ["none", "top 3", "bottom 2"]),
        ("[9, 10, 11]", ["9,10,11"]),
        ("[[11, 9], none]", ["9,11", "none"]),
        ("[{remove: [2, 1], second_norm: drop}]", ["1,2 no norm"]),
        ("[top 12, bottom 12, every 12th, '1,12']", ["top 12", "bottom 12", "every 12th", "1,12"]),
    ],
)
def test_feed_forwards(tmp_path: Path, written: str, labels: list[str]) -> None:
    found = cells(make_inputs(tmp_path, f"{PLAIN}feed_forward: {written}\n"), "k=0")
    assert [*dict.fromkeys(cell.feed_forward.label for cell in found)] == labels


@pytest.mark.parametrize(
    ("written", "label"),
    [
        ("logits T=4", "direct distill logits T=4"),
        ("{temperature: 2, alpha: 0.5}", "direct distill logits"),
        ("{loss: logits+hidden, hidden_weight: 5}", "direct distill logits+hidden=5"),
        ("{start: teacher, alpha: 1}", "finetune_then_drop distill logits alpha=1"),
        ("{from: ./taught}", "direct distill logits of ./taught"),
    ],
)
def test_distillations(tmp_path: Path, written: str, label: str) -> None:
    lines = f"distill: [none, {written}]\nbridge: [none, linear]"
    both = [label, label.replace(" distill", " bridge linear distill")]
    labels = [training.label for training in spec_of(tmp_path, lines).trainings]
    assert labels == ["direct", "direct bridge linear", *both]


@pytest.mark.parametrize(
    ("written", "points"),
    [
        ("drop 5+3", [("drop 3+5", 2)]),
        ("{name: drop, layers: [5, 3, 5]}", [("drop 3+5", 2)]),
        ("{name: random, k: [1, 3]}", [("random 0", 1), ("random 0", 3)]),
        ("{name: symmetric, k: all}", [("symmetric", k) for k in range(0, 12, 2)]),
    ],
)
def test_strategies(tmp_path: Path, written: str, points: list[tuple[str, int]]) -> None:
    file = make_inputs(tmp_path, PLAIN.replace(TOP, written))
    assert [(c.strategy, c.k) for c in cells(file, "task=rte", "seed=1")] == points


def test_measurements_and_layers_that_do_not_learn(tmp_path: Path) -> None:
    measure = spec_of(tmp_path, "measure: {probes: full, cka: [full, pruned]}").measure
    assert measure.asked_of("full") == ["probes", "cka"]
    assert measure.asked_of("pruned") == ["cka"]
    file = make_inputs(tmp_path, PLAIN + "recipe: {freeze: {layers: 3, embeddings: true}}\n")
    recipe = find(file).recipe
    assert (recipe.freeze_layers, recipe.freeze_embeddings) == ((3,), True)
    assert find(file, ["recipe.freeze.layers=[1,2]"]).recipe.freeze_layers == (1, 2)
    assert load_sweep(file, ["measure.probes=full"]).spec.measure.probes == ["full"]


def test_include_and_exclude(tmp_path: Path) -> None:
    text = PLAIN + (
        "include:\n"
        "  - {strategy: [bottom, top], k: 5, task: RTE, seed: 1}\n"
        "  - {strategy: [random 04, drop 5+3], k: 2, task: rte, seed: 1}\n"
        "  - {strategy: top, k: 0}\n"  # there already
        "exclude:\n"
        "  - {task: MRPC, seed: 43}\n"
        "  - {model: '*/model', k: 2, task: m*}\n"
        "  - {strategy: symmetric}\n"  # matches nothing
    )
    plan = planned(make_inputs(tmp_path, text))
    assert [(c.asked.strategy, c.asked.k, c.asked.task, c.asked.seed) for c in plan.cells] == [
        ("top", 0, "rte", 42),
        ("top", 0, "rte", 43),
        ("top", 0, "mrpc", 42),
        ("top", 2, "rte", 42),
        ("top", 2, "rte", 43),
        ("bottom", 5, "rte", 1),
        ("top", 5, "rte", 1),
        ("random 4", 2, "rte", 1),
        ("drop 3+5", 2, "rte", 1),
        ("bottom", 0, "rte", 1),
    ]
    excluded, added = plan.sweep.notes
    assert excluded == f"{tmp_path / 'sweep.yaml'}:16: this exclude matches no cell"
    assert "(K=0) is added" in added
    part = planned(tmp_path / "sweep.yaml", "strategy=top")
    assert "matches no cell" not in " ".join(part.sweep.notes)


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("review,stars\ngood,1\nbad,0\n")
    (tmp_path / "d.csv").write_text("review,stars\nfine,1\npoor,0\nold,0\n")
    ids = {}
    for positive in ("", ", positive: 1", ", positive: '1'"):
        task = f"{{name: my reviews, train: t.csv, dev: d.csv, text: review, label: stars, \
metric: f1{positive}}}"
        plan = planned(make_inputs(tmp_path, PLAIN.replace(TASKS, f"tasks: [{task}]")))
        found = plan.sweep.tasks["my reviews"]
        definition = found.definition
        assert (found.train_rows, found.dev_rows) == (2, 3)
        assert (definition.text_columns, definition.label_column) == (("review",), "stars")
        assert definition.positive == ("1" if positive else "")
        assert {cell.asked.task for cell in plan.cells} == {"my reviews"}
        ids[positive] = {*plan.trials}
    # the positive class is part of the task
    assert ids[", positive: 1"] == ids[", positive: '1'"] != ids[""]


# -- overrides


@pytest.mark.parametrize(
    ("overrides", "axis", "values"),
    [
        (["seed=1,2"], "seed", {1, 2}),
        (["strategy=drop 3+5,top", "k=1"], "strategy", {"drop 3+5", "top"}),
        (["k=1,3"], "k", {1, 3, None}),
        (["k=all"], "k", {*range(12), None}),
        (["threshold=0.5"], "threshold", {0.5, None}),
        (["model=./it's a 'model'; echo foo"], "model", {"./it's a 'model'; echo foo"}),
        (["model='./a,b'"], "model", {"./a,b"}),
        (["model={id: ./other, k: [1]}", "k=5"], "k", {5, None}),
        (["exclude=[{task: rte}]"], "task", {"mrpc"}),
        (["task=rte", "task=mrpc"], "task", {"mrpc"}),
        (["procedure=direct,iterative 3"], "procedure", {"direct", "iterative 3"}),
        (["distill=none,logits"], "procedure", {"direct", "direct distill logits"}),
        (["feed_forward=top 3,none"], "feed_forward", {"top 3", "none"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_override(tmp_path: Path, overrides: list[str], axis: str, values: set[Any]) -> None:
    file = make_inputs(tmp_path, PLAIN + "  - {name: contribution, threshold: [0.9]}\n")
    for name in ("other", "it's a 'model'; echo foo", "a,b"):
        make_model(tmp_path / name)
    found = {getattr(cell, axis) for cell in cells(file, *overrides)}
    assert {getattr(value, "label", value) for value in found} == values


@pytest.mark.parametrize("written", ["", "lr: 1e-5", "learning_rate: 1e-5"])
@pytest.mark.parametrize("key", ["lr", "learning_rate"])
def test_override_of_the_learning_rate(tmp_path: Path, written: str, key: str) -> None:
    file = make_inputs(tmp_path, f"{PLAIN}recipe: {{{written or 'batch_size: 8'}}}\n")
    recipe = find(file, [f"recipe.{key}=3e-5"]).recipe
    assert recipe.learning_rate == 3e-5
    assert recipe.batch_size == (32 if written else 8)  # what the file has besides it stays


def test_overrides_keep_the_files_own_description(tmp_path: Path) -> None:
    text = (
        PLAIN.replace(TASKS, "tasks: [rte, {name: x, train: a.csv, dev: b.csv, text: t}]")
        + "  - {name: bottom, k: [7]}\n  - {name: contribution, threshold: 0.9, measured_on: rte}\n"
    )
    spec = load_sweep(make_inputs(tmp_path, text), ["task=x,rte", "strategy=bottom,top"]).spec
    assert [(task.name, task.train) for task in spec.tasks] == [("x", "a.csv"), ("rte", None)]
    assert [(s.name, s.k) for s in spec.strategies] == [("bottom", [7]), ("top", [0, 2])]


@pytest.mark.parametrize(
    ("override", "note"),
    [
        ("task=cola", "task 'cola': not in the file (rte, mrpc), planned instead from GLUE"),
        (
            "task=mrpc,cola,wnli",
            "task 'cola', 'wnli': not in the file (rte, mrpc), added from GLUE",
        ),
        ("strategy=drop 3", "strategy 'drop 3': not in the file (top), planned instead"),
    ],
)
def test_a_name_that_the_file_does_not_have_is_noted(
    tmp_path: Path, override: str, note: str
) -> None:
    notes = load_sweep(make_inputs(tmp_path, PLAIN), [override]).notes
    assert notes == [note]


@pytest.mark.parametrize("entry", ["[a, b]", "{name: [a]}", "~"])
def test_what_an_override_replaces_is_not_looked_at(tmp_path: Path, entry: str) -> None:
    odd = PLAIN.replace(TASKS, f"tasks: [{entry}, mrpc]")
    (note,) = load_sweep(make_inputs(tmp_path, odd), ["task=rte"]).notes
    assert note.startswith("task 'rte': not in the file (mrpc), ")
    none = PLAIN.replace(TASKS, f"tasks: [{entry}]")
    assert load_sweep(make_inputs(tmp_path, none), ["task=rte"]).notes == []


def test_an_override_that_another_replaces_is_said(tmp_path: Path) -> None:
    file = load_sweep(make_inputs(tmp_path, PLAIN), ["seed=42", "task=rte", "seed=43"])
    (note,) = file.notes
    assert "'seed=42' has no effect" in note
    assert file.spec.seeds == [43]
