"""Identifiers: pinned, and made from exactly what determines a result."""

import json
from collections.abc import Callable
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
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
KINDS = (TrialSpec, Distillation, Recipe, TaskDefinition, ProfileSpec, SpeedSpec)


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
        pytest.param(SPEED, "p1-3ac9e1acff35a74fe711", id="a speed"),
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
            id="a speed on a gpu",
        ),
    ],
)
def test_profile_id_is_pinned(spec: ProfileSpec | SpeedSpec, expected: str) -> None:
    assert profile_id(spec) == expected


def test_defaults_are_pinned() -> None:
    """A default is left out of the hash, so another default is another meaning of old records."""
    defaults = {
        kind.__name__: {
            item.name: item.default for item in fields(kind) if item.default is not MISSING
        }
        for kind in KINDS
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
        pytest.param(replace(TRIAL, kept_layers=(12, *range(12, 0, -1))), id="layers"),
        pytest.param(replace(TRIAL, procedure="direct", recipe=Recipe(epochs=3)), id="spelt-out"),
        pytest.param(replace(TRIAL, recipe=Recipe(max_grad_norm=1)), id="int-for-float"),
    ],
)
def test_spelling_does_not_matter(same: TrialSpec) -> None:
    assert trial_id(same) == trial_id(TRIAL)


def test_int_and_float_are_one_value_off_the_default_too() -> None:
    one, other = Recipe(max_grad_norm=2), Recipe(max_grad_norm=2.0)
    assert trial_id(replace(TRIAL, recipe=one)) == trial_id(replace(TRIAL, recipe=other))


def another(value: Any) -> Any:
    """A value that is not this one, of the same type where there is one."""
    if is_dataclass(value):
        name = fields(value)[0].name
        return replace(value, **{name: another(getattr(value, name))})
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return value[:-1] or (2,)
    if isinstance(value, str):
        return f"{value}x"
    return 100 if value is None else value + 1


# what else must be so for a field to matter at all
NEEDS: dict[str, dict[str, Any]] = {
    "freeze_dropped": {"procedure": "finetune_then_drop"},
    "epochs_per_layer": {"procedure": "iterative"},
    "second_norm": {"removed_feed_forwards": (1,)},
}
BASES: dict[type, Any] = {
    TrialSpec: TRIAL,
    Distillation: DISTILLED.distill,
    Recipe: Recipe(epochs=9),  # the change itself must tell, not the presence of a recipe
    TaskDefinition: TASK,
    ProfileSpec: PROFILE,
    SpeedSpec: SPEED,
}


def identifiers(value: Any) -> list[str]:
    """Identifiers of the trial or profile that has the value."""
    if isinstance(value, TrialSpec):
        return [trial_id(value)]
    if isinstance(value, Distillation):
        return [trial_id(replace(DISTILLED, distill=value))]
    if isinstance(value, Recipe):
        return [trial_id(replace(TRIAL, recipe=value))]
    if isinstance(value, TaskDefinition):
        return [trial_id(replace(TRIAL, task=value)), profile_id(replace(PROFILE, task=value))]
    return [profile_id(value)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_matters(kind: type) -> None:
    for item in fields(kind):
        base = replace(BASES[kind], **NEEDS.get(item.name, {}))
        old = getattr(base, item.name)
        new = Distillation() if item.name == "distill" else another(old)
        changed = zip(
            identifiers(base), identifiers(replace(base, **{item.name: new})), strict=True
        )
        assert all(one != other for one, other in changed), item.name


@pytest.mark.parametrize(
    "idle",
    [
        {"freeze_dropped": True},
        {"epochs_per_layer": 5},
        {"second_norm": "drop"},
        {"removed_feed_forwards": (13,)},
        {"recipe": Recipe(freeze_layers=(13,))},
    ],
    ids=str,
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


def test_spelling_does_not_matter_of_a_speed() -> None:
    same = replace(SPEED, kept_layers=(3, 2, 1, 1), second_norm="drop", batches=(32, 32))
    assert profile_id(same) == profile_id(SPEED)


def test_text_order_and_field_borders_matter() -> None:
    def id_of(*columns: str) -> str:
        return trial_id(replace(TRIAL, task=replace(TASK, text_columns=columns)))

    assert len({id_of("a", "b"), id_of("b", "a"), id_of("ab"), id_of("a,b")}) == 4


@pytest.mark.parametrize(
    ("spec", "from_plain"),
    [
        (PRUNED, trial_spec_from_plain),
        (DISTILLED, trial_spec_from_plain),
        (replace(PROFILE, recipe=Recipe(freeze_layers=(1,)), seed=0), profile_spec_from_plain),
        (PROFILE, profile_spec_from_plain),
        (
            replace(SPEED, removed_feed_forwards=(2,), batches=(32, 256)),
            speed_spec_from_plain,
        ),
    ],
    ids=["trial", "distilled", "greedy", "profile", "speed"],
)
def test_a_spec_comes_back_from_json(spec: Any, from_plain: Callable[[Any], Any]) -> None:
    assert from_plain(json.loads(json.dumps(asdict(spec)))) == spec


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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kept_layers": [1], "task": 3}'])
def test_another_text_is_no_spec(text: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        trial_spec_from_canonical(text)


@pytest.mark.parametrize(
    "spec",
    [
        PRUNED,
        replace(TRIAL, seed=-3, removed_feed_forwards=(1,), second_norm="drop"),
        replace(TRIAL, data_fingerprint='"seed":42,', model_fingerprint='\\"seed":'),
        replace(TRIAL, task=replace(TASK, labels=('"seed":42', "seed"))),
    ],
    ids=["recipe", "later fields", "hostile names", "hostile labels"],
)
def test_identifiers_of_seeds_are_those_of_the_trials(spec: TrialSpec) -> None:
    for seed in (0, 42, -1, 2**62):
        assert trial_ids(spec)(seed) == trial_id(replace(spec, seed=seed))


@given(SPECS, st.integers(0, 2**31))
def test_another_seed_changes_nothing_else(spec: TrialSpec, seed: int) -> None:
    assert spec.with_seed(seed) == replace(spec, seed=seed)
