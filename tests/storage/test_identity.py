"""Identifiers: pinned, and made from exactly what determines a result."""

import json
from dataclasses import MISSING, asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.storage.identity import (
    IDENTITY_VERSION,
    canonical_json,
    content_hash,
    profile_id,
    trial_id,
    trial_ids,
)
from lp_sweep.storage.specs import (
    Distillation,
    ProfileSpec,
    Recipe,
    SpeedSpec,
    TaskDefinition,
    TrialSpec,
    profile_spec_from_plain,
    speed_spec_from_plain,
    trial_spec_from_canonical,
    trial_spec_from_plain,
)
from lp_sweep.trials.data.tasks import TASKS

TASK = TaskDefinition(text_columns=("sentence",))
TRIAL = TrialSpec(
    model_fingerprint="hub:bert-base-cased@main",
    kept_layers=tuple(range(1, 13)),
    task=TASK,
    data_fingerprint="sha256:00",
    seed=42,
)
PRUNED = replace(
    TRIAL,
    kept_layers=(1, 2, 3),
    seed=7,
    recipe=Recipe(learning_rate=3e-5, epochs=1, limit_train=3000),
    task=TASKS["stsb"].definition,
)
MNLI = replace(
    TRIAL,
    task=TASKS["mnli"].definition,
    data_fingerprint="hub:nyu-mll/glue@x:mnli:train=train",
)
DISTILLED = replace(
    TRIAL, kept_layers=(1, 2, 3), distill=Distillation(temperature=4, hidden_weight=0.5)
)
PROFILE = ProfileSpec(
    model_fingerprint="hub:bert-base-cased@main", task=TASK, data_fingerprint="sha256:00"
)
SPEED = SpeedSpec(
    model_fingerprint="hub:bert-base-cased@main",
    kept_layers=(1, 2, 3),
    device_type="cpu",
)
# a value that is not the default, for every field there is
OTHER: dict[type, dict[str, Any]] = {
    TrialSpec: {
        "model_fingerprint": "hub:roberta-base@main",
        "kept_layers": (1, 2),
        "task": TASKS["rte"].definition,
        "data_fingerprint": "sha256:01",
        "seed": 43,
        "recipe": Recipe(epochs=4),
        "procedure": "iterative",
        "freeze_dropped": True,
        "epochs_per_layer": 3,
        "removed_feed_forwards": (3,),
        "second_norm": "drop",
        "distill": Distillation(),
        "bridge": "linear",
        "loss": "cosent",
    },
    Distillation: {
        "teacher": "sha256:02",
        "fine_tuned": True,
        "temperature": 5.0,
        "alpha": 1.0,
        "hidden_weight": 1.0,
        "unlabelled": "sha256:03",
    },
    Recipe: {
        "learning_rate": 3e-5,
        "batch_size": 16,
        "epochs": 4,
        "max_length": 64,
        "weight_decay": 0.01,
        "adam_beta1": 0.8,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-6,
        "max_grad_norm": 0.5,
        "warmup_ratio": 0.1,
        "schedule": "constant",
        "precision": "bf16",
        "limit_train": 100,
        "limit_dev": 100,
        "freeze_embeddings": True,
        "freeze_layers": (2,),
    },
    TaskDefinition: {
        "text_columns": ("sentence1",),
        "label_column": "y",
        "kind": "regression",
        "metric": "f1",
        "extra_metrics": ("mcc",),
        "labels": ("a", "b"),
        "similarity": "dot",
        "query_prompt": "query: ",
        "document_prompt": "passage: ",
        "label_columns": ("a", "b"),
        "group": "q",
        "loss": "listwise",
        "tune_thresholds": True,
    },
    ProfileSpec: {
        "model_fingerprint": "hub:roberta-base@main",
        "task": TASKS["rte"].definition,
        "data_fingerprint": "sha256:01",
        "max_length": 64,
        "limit_dev": 100,
        "measure": "similarity",
        "trial": "t1-00",
        "against": "t1-01",
        "limit_train": 100,
        "rows": 1000,
        "recipe": Recipe(epochs=4),
        "seed": 1,
        "unlabelled": "sha256:03",
    },
    SpeedSpec: {
        "model_fingerprint": "hub:roberta-base@main",
        "kept_layers": (1, 2),
        "device_type": "cuda",
        "removed_feed_forwards": (3,),
        "second_norm": "drop",
        "precision": "bf16",
        "length": 64,
        "batches": (32, 256),
    },
}
# what else must be so for a field to matter at all
NEEDS: dict[str, dict[str, Any]] = {
    "freeze_dropped": {"procedure": "finetune_then_drop"},
    "epochs_per_layer": {"procedure": "iterative"},
    "second_norm": {"removed_feed_forwards": (1,)},
}


def changes(kind: type) -> list[Any]:
    return [
        pytest.param(item.name, OTHER[kind].get(item.name), id=f"{kind.__name__}.{item.name}")
        for item in fields(kind)
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(TRIAL, "t1-72276f5f4fdb84be709f", id="all-defaults"),
        pytest.param(PRUNED, "t1-a22a3c3391611101245f", id="pruned-regression-own-recipe"),
        pytest.param(MNLI, "t1-601db23a482b71ec7dd7", id="labels-and-two-dev-splits"),
        pytest.param(DISTILLED, "t1-2b727867ebea75473cb4", id="distilled"),
    ],
)
def test_trial_id_is_pinned(spec: TrialSpec, expected: str) -> None:
    # records are found by these: a change that breaks this one needs a new IDENTITY_VERSION
    assert trial_id(spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(PROFILE, "p1-6c7ab1a624a0a3ea12a7", id="all-defaults"),
        pytest.param(
            replace(PROFILE, task=TASKS["rte"].definition, max_length=64, limit_dev=100),
            "p1-495f93ced428e6af4705",
            id="rte-limited",
        ),
    ],
)
def test_profile_id_is_pinned(spec: ProfileSpec, expected: str) -> None:
    assert profile_id(spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(SPEED, "p1-3ac9e1acff35a74fe711", id="all-defaults"),
        pytest.param(
            replace(
                SPEED,
                device_type="cuda",
                batches=(32, 256),
                precision="bf16",
                removed_feed_forwards=(3,),
                second_norm="drop",
            ),
            "p1-2682a677c89ed94d9d81",
            id="reduced-on-a-gpu",
        ),
    ],
)
def test_the_id_of_a_speed_is_pinned(spec: SpeedSpec, expected: str) -> None:
    assert profile_id(spec) == expected


def test_defaults_are_pinned() -> None:
    """A default is left out of the hash, so another default is another meaning of old records."""
    defaults = {
        kind.__name__: {
            item.name: item.default for item in fields(kind) if item.default is not MISSING
        }
        for kind in OTHER
    }
    assert defaults == {
        "TrialSpec": {
            "procedure": "direct",
            "freeze_dropped": False,
            "epochs_per_layer": 2,
            "removed_feed_forwards": (),
            "second_norm": "keep",
            "distill": None,
            "bridge": "",
            "loss": "",
        },
        "Distillation": {
            "teacher": "",
            "fine_tuned": False,
            "temperature": 2.0,
            "alpha": 0.5,
            "hidden_weight": 0.0,
            "unlabelled": "",
        },
        "Recipe": {
            "learning_rate": 2e-5,
            "batch_size": 32,
            "epochs": 3,
            "max_length": 128,
            "weight_decay": 0.0,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_epsilon": 1e-8,
            "max_grad_norm": 1.0,
            "warmup_ratio": 0.0,
            "schedule": "linear",
            "precision": "fp32",
            "compute": "reference",
            "group_by_length": False,
            "limit_train": None,
            "limit_dev": None,
            "freeze_embeddings": False,
            "freeze_layers": (),
        },
        "TaskDefinition": {
            "label_column": "label",
            "kind": "classification",
            "metric": "accuracy",
            "extra_metrics": (),
            "labels": (),
            "positive": "",
            "pooling": "",
            "similarity": "",
            "query_prompt": "",
            "document_prompt": "",
            "label_columns": (),
            "group": "",
            "loss": "",
            "tune_thresholds": False,
        },
        "ProfileSpec": {
            "max_length": 128,
            "limit_dev": None,
            "measure": "contribution",
            "trial": "",
            "against": "",
            "limit_train": None,
            "rows": None,
            "recipe": None,
            "seed": None,
            "unlabelled": "",
        },
        "SpeedSpec": {
            "removed_feed_forwards": (),
            "second_norm": "keep",
            "precision": "fp32",
            "length": 128,
            "batches": (32,),
        },
    }
    assert TRIAL.recipe == Recipe()


@pytest.mark.parametrize(
    "same",
    [
        pytest.param(replace(TRIAL, kept_layers=tuple(range(12, 0, -1))), id="layers-unordered"),
        pytest.param(replace(TRIAL, kept_layers=(*range(1, 13), 12)), id="layer-twice"),
        pytest.param(replace(TRIAL, procedure="direct", recipe=Recipe(epochs=3)), id="spelt-out"),
        pytest.param(
            replace(TRIAL, recipe=Recipe(max_grad_norm=1, weight_decay=0)), id="int-for-float"
        ),
        pytest.param(
            replace(TRIAL, task=replace(TASK, extra_metrics=(), labels=())), id="empty-tuples"
        ),
    ],
)
def test_spelling_does_not_matter(same: TrialSpec) -> None:
    assert trial_id(same) == trial_id(TRIAL)


def test_int_and_float_are_one_value_off_the_default_too() -> None:
    one, other = Recipe(max_grad_norm=2), Recipe(max_grad_norm=2.0)
    assert trial_id(replace(TRIAL, recipe=one)) == trial_id(replace(TRIAL, recipe=other))


@pytest.mark.parametrize(("name", "value"), changes(TrialSpec))
def test_every_field_of_a_trial_matters(name: str, value: Any) -> None:
    base = replace(TRIAL, **NEEDS.get(name, {}))
    assert trial_id(replace(base, **{name: value})) != trial_id(base)


@pytest.mark.parametrize(
    "idle",
    [
        pytest.param({"freeze_dropped": True}, id="freeze_dropped"),
        pytest.param({"epochs_per_layer": 5}, id="epochs_per_layer"),
        pytest.param({"second_norm": "drop"}, id="second_norm"),
        pytest.param({"removed_feed_forwards": (13,)}, id="feed-forward of no kept layer"),
        pytest.param({"recipe": Recipe(freeze_layers=(13,))}, id="no kept layer frozen"),
    ],
)
def test_what_is_of_no_use_makes_no_second_identifier(idle: dict[str, Any]) -> None:
    assert trial_id(replace(TRIAL, **idle)) == trial_id(TRIAL)


def test_what_is_frozen_anyway_makes_no_second_identifier() -> None:
    staged = replace(PRUNED, procedure="finetune_then_drop", freeze_dropped=True)
    same = replace(staged, recipe=replace(staged.recipe, freeze_layers=(7,)))
    assert trial_id(same) == trial_id(staged)
    learns = replace(staged, freeze_dropped=False)
    other = replace(learns, recipe=replace(learns.recipe, freeze_layers=(7,)))
    assert trial_id(other) != trial_id(learns)


@pytest.mark.parametrize(("name", "value"), changes(Distillation))
def test_every_field_of_a_distillation_matters(name: str, value: Any) -> None:
    assert DISTILLED.distill is not None
    other = replace(DISTILLED, distill=replace(DISTILLED.distill, **{name: value}))
    assert trial_id(other) != trial_id(DISTILLED)


@pytest.mark.parametrize(
    ("trial", "idle"),
    [
        pytest.param({"task": TASKS["stsb"].definition}, {"temperature": 3.0}, id="of a number"),
        pytest.param({"kept_layers": (2,)}, {"hidden_weight": 2.0}, id="of one layer"),
    ],
)
def test_a_setting_that_teaches_nothing_makes_no_second_identifier(
    trial: dict[str, Any], idle: dict[str, Any]
) -> None:
    one, other = (
        replace(DISTILLED, distill=Distillation(alpha=0.7, **settings), **trial)
        for settings in (idle, {})
    )
    assert trial_id(one) == trial_id(other)


@pytest.mark.parametrize(("name", "value"), changes(Recipe))
def test_every_field_of_the_recipe_matters(name: str, value: Any) -> None:
    # off the default already, so that the change itself must tell and not the recipe's presence
    base = Recipe(batch_size=8) if name == "epochs" else Recipe(epochs=9)
    changed = replace(base, **{name: value})
    assert trial_id(replace(TRIAL, recipe=changed)) != trial_id(replace(TRIAL, recipe=base))


@pytest.mark.parametrize(("name", "value"), changes(TaskDefinition))
def test_every_field_of_the_task_matters(name: str, value: Any) -> None:
    task = replace(TASK, **{name: value})
    assert trial_id(replace(TRIAL, task=task)) != trial_id(TRIAL)
    assert profile_id(replace(PROFILE, task=task)) != profile_id(PROFILE)


@pytest.mark.parametrize(("name", "value"), changes(ProfileSpec))
def test_every_field_of_a_profile_matters(name: str, value: Any) -> None:
    assert profile_id(replace(PROFILE, **{name: value})) != profile_id(PROFILE)


@pytest.mark.parametrize(("name", "value"), changes(SpeedSpec))
def test_every_field_of_a_speed_matters(name: str, value: Any) -> None:
    base = replace(SPEED, **NEEDS.get(name, {}))
    assert profile_id(replace(base, **{name: value})) != profile_id(base)


def test_spelling_does_not_matter_of_a_speed() -> None:
    same = replace(SPEED, kept_layers=(3, 2, 1, 1), second_norm="drop", batches=(32, 32))
    assert profile_id(same) == profile_id(SPEED)


def test_text_order_and_field_borders_matter() -> None:
    def id_of(*columns: str) -> str:
        return trial_id(replace(TRIAL, task=replace(TASK, text_columns=columns)))

    assert len({id_of("a", "b"), id_of("b", "a"), id_of("ab"), id_of("a,b")}) == 4


@pytest.mark.parametrize("spec", [TRIAL, PRUNED, MNLI], ids=["default", "pruned", "mnli"])
def test_trial_round_trip(spec: TrialSpec) -> None:
    again = trial_spec_from_plain(json.loads(json.dumps(asdict(spec))))
    assert again == spec
    assert trial_id(again) == trial_id(spec)


SPECS = st.builds(
    TrialSpec,
    model_fingerprint=st.text(),
    kept_layers=st.sets(st.integers(1, 48), min_size=1).map(lambda kept: tuple(sorted(kept))),
    task=st.builds(
        TaskDefinition,
        text_columns=st.tuples(st.text()),
        label_column=st.text(),
        kind=st.sampled_from(["classification", "regression"]),
        metric=st.text(),
        extra_metrics=st.lists(st.text()).map(tuple),
        labels=st.lists(st.text()).map(tuple),
    ),
    data_fingerprint=st.text(),
    seed=st.integers(),
    recipe=st.builds(
        Recipe,
        learning_rate=st.floats(allow_nan=False, allow_infinity=False),
        weight_decay=st.floats(0, 1) | st.integers(0, 1),
        batch_size=st.integers(1),
        limit_train=st.none() | st.integers(1),
        freeze_embeddings=st.booleans(),
        freeze_layers=st.sets(st.integers(1, 48)).map(tuple),
    ),
    procedure=st.sampled_from(["direct", "finetune_then_drop", "iterative"]),
    freeze_dropped=st.booleans(),
    epochs_per_layer=st.integers(1, 4),
    removed_feed_forwards=st.sets(st.integers(1, 48)).map(tuple),
    second_norm=st.sampled_from(["keep", "drop"]),
)


@given(spec=SPECS)
def test_the_stored_text_of_a_spec_gives_it_back(spec: TrialSpec) -> None:
    text = canonical_json(spec)
    again = trial_spec_from_canonical(text)
    assert again == spec
    assert trial_id(again) == trial_id(spec)
    assert canonical_json(again) == text
    # the identifier is a hash of nothing but this text and the version
    payload = {"identity": IDENTITY_VERSION, "kind": "TrialSpec", "spec": json.loads(text)}
    assert trial_id(spec) == f"t1-{content_hash(payload)[:20]}"


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"kept_layers": [1], "task": 3}'])
def test_another_text_is_no_spec(text: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        trial_spec_from_canonical(text)


@pytest.mark.parametrize(
    "profile",
    [PROFILE, replace(PROFILE, recipe=Recipe(freeze_layers=(1,)), seed=0)],
    ids=["plain", "greedy"],
)
def test_profile_round_trip(profile: ProfileSpec) -> None:
    again = profile_spec_from_plain(json.loads(json.dumps(asdict(profile))))
    assert again == profile
    assert profile_id(again) == profile_id(profile)


@pytest.mark.parametrize("seed", [0, 7, 42, -1, 2**62])
@pytest.mark.parametrize(
    "spec",
    [
        TRIAL,
        PRUNED,
        MNLI,
        replace(TRIAL, seed=-3, removed_feed_forwards=(1,), second_norm="drop"),
        replace(TRIAL, data_fingerprint='"seed":42,', model_fingerprint='\\"seed":'),
        replace(TRIAL, task=replace(TASK, labels=('"seed":42', "seed"))),
    ],
    ids=["plain", "recipe", "mnli", "later fields", "hostile names", "hostile labels"],
)
def test_identifiers_of_seeds_are_those_of_the_trials(spec: TrialSpec, seed: int) -> None:
    assert trial_ids(spec)(seed) == trial_id(replace(spec, seed=seed))


@given(SPECS, st.integers(0, 2**31))
def test_another_seed_changes_nothing_else(spec: TrialSpec, seed: int) -> None:
    assert spec.with_seed(seed) == replace(spec, seed=seed)


def test_speed_round_trip() -> None:
    spec = replace(SPEED, removed_feed_forwards=(2,), batches=(32, 256))
    again = speed_spec_from_plain(json.loads(json.dumps(asdict(spec))))
    assert again == spec
    assert profile_id(again) == profile_id(spec)
