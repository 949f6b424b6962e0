"""The sweep file's axes: each form that may be written, and what each wrong one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.sweepfile.axes import (
    FeedForward,
    feed_forward_label,
    procedure_label,
)
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.model.feedforward_rules import ALLOWED
from lp_sweep.trials.train.procedures import Procedure
from tests.support.sweepfiles import PLAIN, make_inputs, planned

TOP = "  - {name: top, k: [0, 2]}\n"
FORMS = "direct, finetune_then_drop, finetune_then_drop frozen, one_shot, iterative 3, untrained"


def spec_of(folder: Path, line: str) -> SweepSpec:
    return load_sweep(make_inputs(folder, PLAIN + line + "\n")).spec


def told(folder: Path, text: str, *overrides: str) -> str:
    """The error message for a file, without the folder."""
    file = make_inputs(folder, text)
    with pytest.raises(SpecError) as caught:
        planned(file, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def strategies(folder: Path, *entries: str) -> str:
    return PLAIN.replace(TOP, "".join(f"  - {entry}\n" for entry in entries))


# -- procedures


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("iterative", ["iterative"]),
        ("{name: direct}", ["direct"]),
        ("[{name: finetune_then_drop, freeze_dropped: true}]", ["finetune_then_drop frozen"]),
        ("finetune_then_drop frozen", ["finetune_then_drop frozen"]),
        ("[iterative 1, iterative 3]", ["iterative 1", "iterative 3"]),
        ("{name: iterative, epochs_per_layer: 9999}", ["iterative 9999"]),
    ],
)
def test_procedures(tmp_path: Path, written: str, labels: list[str]) -> None:
    assert spec_of(tmp_path, f"procedures: {written}").procedures == labels


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("direkt", "unknown procedure 'direkt'. Choose one of: direct, finetune_then_drop, "
         "one_shot, iterative, untrained. Did you mean 'direct'?"),
        ("{name: diect}", "procedures.0.name must be 'direct', 'finetune_then_drop', "
         "'one_shot', 'iterative' or 'untrained', got 'diect'. Did you mean 'direct'?"),
        ("direct frozen", "direct has no frozen layers: that is for finetune_then_drop. Such are: "
         f"{FORMS}."),
        ("iterative 0", f"unknown procedure 'iterative 0'. Such are: {FORMS}."),
        ("direct 3", "direct drops all layers at once: a number is for iterative. Such are: "
         f"{FORMS}."),
        ("[{name: direct, freeze_dropped: true}]",
         "`freeze_dropped:` is for finetune_then_drop: remove it from direct"),
        ("[{name: direct, epochs_per_layer: 3}]",
         "`epochs_per_layer:` is for iterative: remove it from direct"),
        ("[{name: iterative, epoch_per_layer: 1}]",
         "unknown key 'epoch_per_layer' in procedures.0. Allowed: name, freeze_dropped, "
         "epochs_per_layer. Did you mean 'epochs_per_layer'?"),
        ("[{name: iterative, epochs_per_layer: 0}]",
         "procedures.0.epochs_per_layer must be greater than 0, got 0"),
        ("[{}]", "the key 'name' is missing in procedures.0"),
        ("3", "procedures must be a text, got 3"),
        ("[direct, {name: direct}]", "direct is listed twice. Keep one of them."),
        ("[iterative, iterative 2]", "iterative is listed twice. Keep one of them."),
    ],
)  # fmt: skip
def test_a_wrong_procedure(tmp_path: Path, written: str, message: str) -> None:
    assert told(tmp_path, f"{PLAIN}procedures: {written}\n") == f"sweep.yaml:9: {message}"


# -- feed-forwards


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        ("all", ["all"]),
        ("[none, Top  3, 'bottom 2']", ["none", "top 3", "bottom 2"]),
        ("[9, 10, 11]", ["9,10,11"]),
        ("[[11, 9], none]", ["9,11", "none"]),
        ("'9, 11'", ["9,11"]),
        ("top 3 no norm", ["top 3 no norm"]),
        ("{remove: every 2nd, second_norm: drop}", ["every 2nd no norm"]),
        ("[{remove: [2, 1], second_norm: drop}]", ["1,2 no norm"]),
        ("{remove: none, second_norm: drop}", ["none"]),
    ],
)
def test_feed_forwards(tmp_path: Path, written: str, labels: list[str]) -> None:
    assert spec_of(tmp_path, f"feed_forward: {written}").feed_forward == labels


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("tpo 3", f"feed-forwards: 'tpo 3' is not a rule. {ALLOWED}."),
        ("top 0", f"feed-forwards: 'top 0': the number is 1 or more. {ALLOWED}."),
        ("every 1st", f"feed-forwards: 'every 1st': the number is 2 or more. {ALLOWED}."),
        ("[[1, 1]]", "feed-forwards: [1, 1] names a layer twice; name each once."),
        ("[[0]]", "feed-forwards: 0 is not a layer; layers are whole numbers from 1."),
        ("[[a]]", "feed-forwards: 'a' is not a layer; layers are whole numbers from 1."),
        ("{remove: top 3, second_norm: dorp}",
         "feed_forward.0.second_norm must be 'keep' or 'drop', got 'dorp'. Did you mean 'drop'?"),
        ("{}", "the key 'remove' is missing in feed_forward.0"),
        ("[top 3, {remove: Top 3}]", "top 3 is listed twice. Keep one of them."),
    ],
)  # fmt: skip
def test_a_wrong_feed_forward(tmp_path: Path, written: str, message: str) -> None:
    assert told(tmp_path, f"{PLAIN}feed_forward: {written}\n") == f"sweep.yaml:9: {message}"


@pytest.mark.parametrize(
    ("written", "label", "needed"),
    [
        ("[none, {remove: top 13}]", "top 13", 13),
        ("[none, bottom 99 no norm]", "bottom 99 no norm", 99),
        ("[[9, 10, 13]]", "9,10,13", 13),
        ("every 13th", "every 13th", 13),
    ],
)
def test_feed_forwards_that_the_model_does_not_have(
    tmp_path: Path, written: str, label: str, needed: int
) -> None:
    assert told(tmp_path, f"{PLAIN}feed_forward: {written}\n") == (
        f"sweep.yaml:9: feed_forward {label!r} can't go from the 12 layers of "
        f"./folder/of/a/model (it needs {needed}). Possible numbers: up to 12. A model of another "
        "depth belongs in a sweep of its own: sweeps over one store share their trials."
    )


def test_all_feed_forwards_that_the_model_has(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, f"{PLAIN}feed_forward: [top 12, bottom 12, every 12th, '1,12']\n")
    assert len({cell.asked.feed_forward for cell in planned(file, "k=0").cells}) == 4


@given(st.sampled_from(["direct", "finetune_then_drop", "iterative"]), st.booleans(),
       st.integers(1, 9999))  # fmt: skip
def test_a_procedures_label_is_read_back(name: str, frozen: bool, epochs: int) -> None:
    procedure = Procedure(name, frozen, epochs)
    assert procedure_label(procedure.label) == procedure.label
    read = Procedure.parse(procedure.label)
    assert read.label == procedure.label
    assert read.freeze_dropped == (frozen and name == "finetune_then_drop")
    assert read.epochs_per_layer == (epochs if name == "iterative" else 2)


@given(st.one_of(
    st.sampled_from(["all", "none"]),
    st.builds("{} {}".format, st.sampled_from(["top", "bottom"]), st.integers(1, 99)),
    st.sets(st.integers(1, 99), min_size=1).map(lambda found: ",".join(map(str, sorted(found)))),
), st.sampled_from(["keep", "drop"]))  # fmt: skip
def test_a_feed_forwards_label_is_read_back(rule: str, norm: Any) -> None:
    removal = FeedForward(rule, norm)
    assert feed_forward_label(removal.label) == removal.label
    read = FeedForward.parse(removal.label)
    assert read.rule == rule
    assert read.second_norm == (norm if rule != "none" else "keep")


# -- strategies


@pytest.mark.parametrize(
    ("written", "cells"),
    [
        ("drop 3", [("drop 3", 1)]),
        ("drop 5+3", [("drop 3+5", 2)]),
        ("{name: drop, layers: [5, 3, 5]}", [("drop 3+5", 2)]),
        ("{name: drop, layers: 12}", [("drop 12", 1)]),
        ("{name: random, k: [1, 3]}", [("random 0", 1), ("random 0", 3)]),
        ("{name: random, k: 2, draws: 3-4}", [("random 3", 2), ("random 4", 2)]),
        ("{name: random, k: 2, draws: {from: 1, count: 2}}", [("random 1", 2), ("random 2", 2)]),
        ("{name: random 05, k: 2}", [("random 5", 2)]),
        ("{name: block-influence, k: [1]}", [("block-influence", 1)]),
        ("{name: angular, k: 2, measured_on: mrpc}", [("angular", 2)]),
        ("{name: greedy, k: [0, 11]}", [("greedy", 0), ("greedy", 11)]),
    ],
)
def test_strategies(tmp_path: Path, written: str, cells: list[tuple[str, int]]) -> None:
    plan = planned(make_inputs(tmp_path, strategies(tmp_path, written)), "seed=1")
    found = [cell.asked for cell in plan.cells if cell.asked.task == "rte"]
    assert [(asked.strategy, asked.k) for asked in found] == cells


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("drop", "strategy 'drop' needs `layers:`, a list of numbers from 1"),
        ("{name: drop, layers: []}", "strategy 'drop' needs `layers:`, a list of numbers from 1"),
        ("{name: drop, layers: [0]}", "strategy 'drop' needs `layers:`, a list of numbers from 1"),
        ("{name: drop, layers: {a: 1}}", "strategy 'drop' needs `layers:`, a list of numbers from "
         "1"),
        ("{name: drop, layers: 3, k: 1}", "strategy 'drop 3' names its layers: remove `k:`"),
        ("drop 13", "drop 13 can't drop K=1 of the 12 layers of"),
        ("random", "strategy 'random' needs `k:`, a list of numbers"),
        ("{name: random, k: 2, draws: a}", "strategies.0.draws must be a whole number, got 'a'"),
        ("{name: random, k: 2, draws: []}", "strategies.0.draws must not be empty, got []"),
        ("{name: random, k: 2, draws: 0-99999}", "the seeds from 0 to 99999 are not 1 to 10000"),
        ("{name: random, k: 12}", "random 0 can't drop K=12 of the 12 layers of"),
        ("{name: top, k: 2, draws: 1}", "strategy 'top' draws nothing: remove `draws:`"),
        ("{name: top, layers: [3]}", "unknown key 'layers' in strategies.0. Allowed: name, k, "
         "threshold, measured_on, draws, until, within, max_seeds."),
        ("{name: top, k: all, within: 1}", "`within:` needs `until: min_layers`: add that, or"),
        ("{name: top, k: all, max_seeds: 2}", "`max_seeds:` needs `until: min_layers`: add that"),
        ("{name: top, k: all, until: best}", "strategies.0.until must be 'min_layers', got 'best'"),
        ("{name: contribution, threshold: 0.9, until: min_layers}",
         "strategy 'contribution' has no K to choose among: remove `until:`"),
        ("{name: drop, layers: [3], until: min_layers}", "strategy 'drop 3' has no K to choose"),
        ("{name: top, k: all, until: min_layers, within: -1}",
         "`within:` takes losses of 0 points or more, got -1"),
        ("{name: blockinfluence, k: 1}", "unknown strategy 'blockinfluence'. Choose one of: top, "
         "bottom, even-alternate, odd-alternate, symmetric, contribution, drop, "
         "random, block-influence, angular, greedy. Did you mean 'block-influence'?"),
        ("{name: greedy, threshold: 0.9}", "strategy 'greedy' needs `k:`, a list of numbers"),
        ("{name: top, k: 1, measured_on: rte}", "strategy 'top' measures nothing: remove "
         "`measured_on:`"),
    ],
)  # fmt: skip
def test_a_wrong_strategy(tmp_path: Path, written: str, message: str) -> None:
    assert f"sweep.yaml:8: {message}" in told(tmp_path, strategies(tmp_path, written))


@pytest.mark.parametrize("name", ["random", "drop"])
def test_an_included_family_is_named_in_full(tmp_path: Path, name: str) -> None:
    text = PLAIN + f"include: [{{strategy: {name}, k: 1}}]\n"
    assert told(tmp_path, text) == (
        f"sweep.yaml:9: strategy '{name}': name one, such as `random 3` or `drop 3+5`"
    )
    text = PLAIN + "include: [{strategy: [random 04, drop 5+3], k: 2}]\n"
    plan = planned(make_inputs(tmp_path, text))
    assert {"random 4", "drop 3+5"} < {cell.asked.strategy for cell in plan.cells}


# -- measurements, and layers that do not learn


@pytest.mark.parametrize(
    ("line", "section", "values"),
    [
        ("measure: {probes: full}", "measure", {"probes": ["full"], "similarity": None}),
        (
            "measure: {probes: [pretrained, full, pruned], cka: [full, pruned], probe_rows: 5}",
            "measure",
            {"cka": ["full", "pruned"], "probe_rows": 5},
        ),
        ("recipe: {freeze: {layers: 3}}", "recipe", {"freeze": {"embeddings": False,
                                                                 "layers": [3]}}),
        ("recipe: {freeze: {embeddings: true}}", "recipe", {"freeze": {"embeddings": True,
                                                                       "layers": []}}),
    ],
)  # fmt: skip
def test_sections(tmp_path: Path, line: str, section: str, values: dict[str, Any]) -> None:
    found = spec_of(tmp_path, line).model_dump()[section]
    assert {key: found[key] for key in values} == values


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("measure: 3", "measure must be a mapping of probes, similarity, cka, probe_rows, speed, "
         "speed_length, speed_batches, speed_of, got 3"),
        ("measure: {probe: full}", "unknown key 'probe' in measure. Allowed: probes, similarity, "
         "cka, probe_rows, speed, speed_length, speed_batches, speed_of. Did you mean 'probes'?"),
        ("measure: {probes: ful}", "measure.probes must be 'pretrained', 'full' or 'pruned', got "
         "'ful'. Did you mean 'full'?"),
        ("measure: {cka: pretrained}", "measure.cka must be 'full' or 'pruned', got 'pretrained'"),
        ("recipe: {freeze: true}", "recipe.freeze must be a mapping of embeddings, layers, got "
         "True"),
        ("recipe: {freeze: {layer: 1}}", "unknown key 'layer' in recipe.freeze. Allowed: "
         "embeddings, layers. Did you mean 'layers'?"),
    ],
)  # fmt: skip
def test_a_wrong_section(tmp_path: Path, line: str, message: str) -> None:
    assert f"sweep.yaml:9: {message}" in told(tmp_path, PLAIN + line + "\n")


# -- whatever is written


@pytest.mark.parametrize(
    "line",
    [
        "procedures: {0}",
        "procedures: [direct {0}]",
        "feed_forward: {0}",
        "feed_forward: [top {1}]",
        "feed_forward: [[{1}]]",
    ],
)
def test_a_huge_value_is_quoted_in_part(tmp_path: Path, line: str) -> None:
    message = told(tmp_path, PLAIN + line.format("x" * 50_000, "9" * 3000, "9" * 900) + "\n")
    assert message.startswith("sweep.yaml:9: ")
    assert len(message) < 700


# -- overrides


@pytest.mark.parametrize(
    ("overrides", "axis", "values"),
    [
        (["procedure=direct,iterative 3"], "procedure", {"direct", "iterative 3"}),
        (["procedures=[{name: finetune_then_drop, freeze_dropped: true}]"], "procedure",
         {"finetune_then_drop frozen"}),
        (["feed_forward='top 3'"], "feed_forward", {"top 3"}),
        (["feed_forward=top 3,none"], "feed_forward", {"top 3", "none"}),
        (["feed_forward={remove: top 3, second_norm: drop}"], "feed_forward", {"top 3 no norm"}),
        (["k=1", "strategy=random"], "strategy", {"random 0"}),
        (["strategy=drop 3+5,top", "k=1"], "strategy", {"drop 3+5", "top"}),
    ],
)  # fmt: skip
def test_overrides(tmp_path: Path, overrides: list[str], axis: str, values: set[str]) -> None:
    plan = planned(make_inputs(tmp_path), *overrides)
    assert {getattr(cell.asked, axis) for cell in plan.cells} == values


def test_overrides_of_sections(tmp_path: Path) -> None:
    file = make_inputs(tmp_path)
    assert load_sweep(file, ["measure.probes=full"]).spec.measure.probes == ["full"]
    assert load_sweep(file, ["recipe.freeze.layers=[1,2]"]).spec.recipe.freeze.layers == [1, 2]
    plan = planned(file, "recipe.freeze.layers=[1,2]")
    assert plan.sweep.recipe.freeze_layers == (1, 2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("procedure=itertive", "unknown procedure 'itertive'. Choose one of: direct, "
         "finetune_then_drop, one_shot, iterative, untrained. Did you mean 'iterative'?"),
        ("feed_forward=topp 3", f"feed-forwards: 'topp 3' is not a rule. {ALLOWED}."),
        ("strategy=greedy", "strategy 'greedy' needs `k:`, a list of numbers"),
        ("measure.prob=full", "unknown key 'prob' in measure. Allowed: probes, similarity, cka, "
         "probe_rows, speed, speed_length, speed_batches, speed_of. Did you mean 'probes'?"),
        ("recipe.freeze.layers=x", "recipe.freeze.layers must be a whole number, got 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_override(tmp_path: Path, override: str, message: str) -> None:
    assert told(tmp_path, PLAIN, override).startswith(f"override '{override}': {message}")


# -- the schema that editors check with


@pytest.mark.parametrize(
    ("section", "value", "right"),
    [
        ("procedures", ["direct", {"name": "iterative", "epochs_per_layer": 3}], True),
        ("procedures", [{"name": "iterative", "epoch": 3}], False),
        ("feed_forward", ["top 3", [9, 10], {"remove": "all", "second_norm": "drop"}], True),
        ("feed_forward", [{"remove": "all", "second_norm": "no"}], False),
        ("measure", {"probes": ["pretrained", "full"], "probe_rows": 10}, True),
        ("measure", {"probes": ["fool"]}, False),
        ("recipe", {"freeze": {"layers": [1, 2], "embeddings": True}}, True),
        ("recipe", {"freeze": {"layer": [1]}}, False),
        ("strategies", [{"name": "random", "k": [1], "draws": [0, 1]}], True),
        ("strategies", [{"name": "drop 3+5"}], True),
        ("strategies", [{"name": "drop", "layers": [3, 5]}], True),
        ("strategies", [{"name": "drop", "layrs": [3, 5]}], False),
    ],
)
def test_the_json_schema(section: str, value: Any, right: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(SweepSpec.model_json_schema()))
    content = yaml.safe_load(PLAIN) | {section: value}
    content["models"] = [{"id": name} for name in content["models"]]
    content["tasks"] = [{"name": name} for name in content["tasks"]]
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(content))
    assert (errors == []) is right, errors


def test_a_frozen_layer_that_no_model_has(tmp_path: Path) -> None:
    text = PLAIN.replace("recipe: {", "recipe: {freeze: {layers: [1, 99]}, ")
    text = text if "freeze" in text else PLAIN + "recipe: {freeze: {layers: [1, 99]}}\n"
    message = told(tmp_path, text)
    assert "freeze: no model has a layer 99; the deepest has 12" in message
    assert message.startswith("sweep.yaml:")
