"""Every measurement by its name, on a tiny trained network that lost layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from lp_sweep.orchestrator.plan.known import measurements
from lp_sweep.storage.schema import PROFILES
from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit
from lp_sweep.trials.measures import greedy as greedily
from lp_sweep.trials.measures.influence import mean_cosines
from lp_sweep.trials.measures.registry import MEASURES
from lp_sweep.trials.measures.subject import LayerValues, Subject
from lp_sweep.trials.model.states import layer_states
from lp_sweep.trials.spec.identity import canonical_json
from lp_sweep.trials.spec.select import STRATEGIES
from lp_sweep.trials.spec.specs import Recipe
from lp_sweep.trials.train.steps import Setting
from lp_sweep.trials.worker.inputs import Inputs
from tests.support.kindworlds import embedding_world
from tests.support.plain_jobs import load_inputs, run_profile, run_trial
from tests.support.staging import DEPTH, Job, made, profile_spec, spec_of
from tests.support.toyworld import jobs

KEPT = [2, 4]


@pytest.fixture(scope="module")
def job(world: Path) -> Job:
    return made(world, kept_layers=tuple(KEPT), recipe={"epochs": 3})


def pretrained(job: Job) -> Inputs:
    return load_inputs(job, spec_of(job), range(1, DEPTH + 1), 1)


def subject_of(inputs: Inputs, other: Inputs) -> Subject:
    return Subject(
        model=inputs.model,
        encoded=inputs.encoded,
        padding=inputs.padding,
        device=torch.device("cpu"),
        halvings=2,
        other=lambda: other.model,
    )


@pytest.fixture(scope="module")
def subject(job: Job) -> Subject:
    """Layers 2 and 4, trained; beside the pre-trained network."""
    return subject_of(run_trial(job)["network"], pretrained(job))


@pytest.fixture(scope="module")
def measure(subject: Subject, job: Job) -> Callable[..., LayerValues]:
    """Measure the trained network."""
    return lambda name, **settings: MEASURES[name].run(subject, profile_spec(job, **settings))


def test_none_changes_the_network(subject: Subject, measure: Callable[..., LayerValues]) -> None:
    before = {name: value.clone() for name, value in subject.model.state_dict().items()}
    for name in MEASURES.keys() - {"greedy", "recipe"}:  # which train their own
        measure(name)
    for name, value in subject.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not subject.model.training


# -- layers are named as in the very first network


def test_contribution_is_of_the_dev_rows(
    subject: Subject, measure: Callable[..., LayerValues]
) -> None:
    states = layer_states(subject.model, subject.dev_batches(), only_sentence=True)
    expected = mean_cosines(states)
    assert [value for _, value in measure("contribution").layers] == expected


def test_the_ends_of_every_run_of_layers(measure: Callable[..., LayerValues]) -> None:
    found = {(v.layer, v.other): v.value for v in measure("angular").values}
    assert found.keys() == {(2, 2), (2, 4), (4, 4)}


def test_the_run_that_turns_least_is_what_angular_drops(job: Job) -> None:
    """From the matrix to the layers: `layer` and `other` are both in the run."""
    inputs = pretrained(job)
    found = MEASURES["angular"].run(subject_of(inputs, inputs), profile_spec(job))
    turned = {(v.layer, v.other): v.value or 0 for v in found.values}
    assert turned.keys() == {
        (start, end) for start in range(1, DEPTH + 1) for end in range(start, DEPTH + 1)
    }
    row: dict[str, Any] = {"profile_id": "p1-a", "measure": "angular", "layers": []}
    row["values"] = [value._asdict() for value in found.values]
    known = measurements(pa.Table.from_pylist([row], schema=PROFILES))["p1-a"]
    for k in (1, 2, 3):
        start = min(range(1, DEPTH + 2 - k), key=lambda start: turned[start, start + k - 1])
        assert STRATEGIES["angular"].chosen(known, k) == tuple(range(start, start + k))


# -- probes


def test_probes_read_the_task_off_the_last_layer(
    subject: Subject, measure: Callable[..., LayerValues]
) -> None:
    assert {v.layer for v in measure("probes").values} == {0, *KEPT}
    scores = {v.layer: v.value for v in measure("probes").values if v.name == "accuracy"}
    _, counts = np.unique(subject.dev.labels, return_counts=True)
    chance = counts.max() / counts.sum()
    assert scores[0] <= chance + 0.05  # the sentence token knows nothing yet
    assert scores[4] > chance + 0.2


# -- two networks


def test_similarity_is_by_original_layer(measure: Callable[..., LayerValues], job: Job) -> None:
    found = measure("similarity").values
    assert {(v.name, v.layer, v.other) for v in found} == {
        (name, layer, layer) for name in ("sentence", "tokens") for layer in (0, *KEPT)
    }
    assert all(v.value is not None and v.value < 0.9999 for v in found if v.layer)
    inputs = pretrained(job)
    own = MEASURES["similarity"].run(subject_of(inputs, inputs), profile_spec(job)).values
    assert {v.layer for v in own} == set(range(DEPTH + 1))
    assert [v.value for v in own] == pytest.approx([1.0] * len(own), abs=1e-6)


def test_cka_names_the_layers_of_both(
    subject: Subject, measure: Callable[..., LayerValues], job: Job
) -> None:
    there = range(DEPTH + 1)
    assert {(v.name, v.layer, v.other) for v in measure("cka").values} == {
        *(("layer", layer, other) for layer in (0, *KEPT) for other in there),
        *(("attention", layer, other) for layer in KEPT for other in there[1:]),
    }
    itself = replace(subject, other=lambda: subject.model)
    found = MEASURES["cka"].run(itself, profile_spec(job)).values
    for site in ("layer", "attention"):
        matrix = {(v.layer, v.other): v.value for v in found if v.name == site}
        for (layer, other), value in matrix.items():
            # the sentence token is the same for all examples at first: nothing to compare
            assert (value is None) == (0 in (layer, other))
            if value is not None:
                assert value == pytest.approx(matrix[other or 0, layer], abs=1e-6)
                assert (value == pytest.approx(1.0, abs=1e-6)) == (layer == other)


# -- greedy


GREEDY: dict[str, Any] = {
    "recipe": Recipe(learning_rate=2e-3, batch_size=16, epochs=1, max_length=32, limit_train=64),
    "seed": 1,
}


def test_greedy_drops_every_layer_but_one(world: Path) -> None:
    [profile] = jobs(
        world, "strategies=[{name: greedy, k: [1, 2]}]", "recipe.epochs=1", "recipe.limit_train=64"
    )
    record = run_profile(profile)
    went = {int(item["value"]): item["layer"] for item in record["layers"]}
    assert [item["layer"] for item in record["layers"]] == [1, 2, 3, 4]
    assert went.keys() == {0, 1, 2, 3}
    assert {item["other"]: item["layer"] for item in record["values"]} | {0: went[0]} == went
    assert all(0 <= item["value"] <= 1 for item in record["values"])
    known = measurements(pa.Table.from_pylist([record], schema=PROFILES))[profile["id"]]
    assert STRATEGIES["greedy"].chosen(known, 1) == (went[1],)
    assert STRATEGIES["greedy"].chosen(known, 2) == tuple(sorted((went[1], went[2])))


def test_greedy_of_an_embedding_needs_no_label(tmp_path: Path) -> None:
    """The first layer to go is the one without which the vectors change least."""
    world = embedding_world(tmp_path, strategies=[{"name": "greedy", "k": [1, 2]}])
    [profile] = [each for each in jobs(world) if each["spec"].get("measure") == "greedy"]
    record = run_profile(profile)
    assert {item["value"] for item in record["layers"]} == {0, 1, 2, 3}
    by_step = {item["other"]: item["value"] for item in record["values"]}
    assert 0 > by_step[1] > by_step[3] > -2


def test_greedy_judges_on_train_rows_that_it_did_not_learn_from(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: dict[str, set[bytes]] = {}

    def finetune(model: Any, data: Any, *args: Any) -> None:
        rows["learned"] = _texts(data.train)
        rows["held out"] = _texts(data.dev["held_out"])

    judged: list[set[bytes]] = []
    real = greedily.answers

    def answers(model: Any, split: Any, setting: Setting) -> Any:
        judged.append(_texts(split))
        return real(model, split, setting)

    monkeypatch.setattr(greedily, "finetune", finetune)
    monkeypatch.setattr(greedily, "answers", answers)
    inputs = pretrained(job)
    MEASURES["greedy"].run(subject_of(inputs, inputs), profile_spec(job, **GREEDY))
    assert rows["learned"] | rows["held out"] == _texts(inputs.encoded.train)
    assert not rows["learned"] & rows["held out"]
    assert all(split == rows["held out"] for split in judged)
    assert len(judged) == 4 + 3 + 2


def test_greedy_trains_in_batches_that_fit(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a profile ran out of memory, the micro-batches of its fine-tuning are also halved."""
    tried: list[BatchSizes] = []

    def finetune(model: Any, data: Any, setting: Setting, saver: Any) -> None:
        tried.append(setting.batches)

    monkeypatch.setattr(greedily, "finetune", finetune)
    plain = json.loads(canonical_json(profile_spec(job, measure="greedy", **GREEDY)))
    run_profile({**job, "kind": "profile", "spec": plain}, halvings=2)
    assert tried == [BatchSizes.halved(plain["recipe"]["batch_size"], 2)]


def _texts(split: EncodedSplit) -> set[bytes]:
    return {
        split.tokens[start:end].tobytes()
        for start, end in zip(split.offsets, split.offsets[1:], strict=False)
    }
