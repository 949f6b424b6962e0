"""Identifiers: pinned, and made from exactly what determines a result."""

import json
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.data.tasks import TASKS
from lp_sweep.trials.spec.identity import (
    IDENTITY_VERSION,
    canonical_json,
    content_hash,
    deployment_id,
    held_out_id,
    ids_by_seed,
    profile_id,
    trial_id,
)
from lp_sweep.trials.spec.specs import (
    DeploymentSpec,
    Distillation,
    HeldOutSpec,
    ProfileSpec,
    Recipe,
    SpeedSpec,
    TaskDefinition,
    TrialSpec,
    spec_from_plain,
    trial_spec_from_canonical,
)

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
DEPLOYMENT = DeploymentSpec(
    trial="t1-72276f5f4fdb84be709f", device_type="cpu", device_name="AMD EPYC", threads=1
)
HELD_OUT = HeldOutSpec(trial="t1-72276f5f4fdb84be709f", test_fingerprint="sha256:00")
KINDS = (TrialSpec, Distillation, Recipe, TaskDefinition, ProfileSpec, SpeedSpec)


def id_of(spec: Any) -> str:
    if isinstance(spec, HeldOutSpec):
        return held_out_id(spec)
    if isinstance(spec, DeploymentSpec):
        return deployment_id(spec)
    return trial_id(spec) if isinstance(spec, TrialSpec) else profile_id(spec)


PINNED: dict[str, tuple[Any, str]] = {
    "all-defaults": (TRIAL, "t1-72276f5f4fdb84be709f"),
    "pruned-regression-own-recipe": (PRUNED, "t1-a22a3c3391611101245f"),
    "labels-and-two-dev-splits": (MNLI, "t1-601db23a482b71ec7dd7"),
    "distilled": (DISTILLED, "t1-2b727867ebea75473cb4"),
    "a profile": (PROFILE, "p1-6c7ab1a624a0a3ea12a7"),
    "a profile, limited": (
        replace(PROFILE, task=TASKS["rte"].definition, max_length=64, limit_dev=100),
        "p1-495f93ced428e6af4705",
    ),
    "corrected": (replace(TRIAL, corrections=("a", "b")), "t1-035ed649f7532e1a92d0"),
    "a speed": (SPEED, "p1-3ac9e1acff35a74fe711"),
    "a speed on a gpu": (
        replace(
            SPEED,
            device_type="cuda",
            batches=(32, 256),
            precision="bf16",
            removed_feed_forwards=(3,),
            second_norm="drop",
        ),
        "p1-2682a677c89ed94d9d81",
    ),
    "a deployment": (DEPLOYMENT, "d1-365270cb6052d8ca2d99"),
    "a deployment in int8": (
        replace(DEPLOYMENT, format="onnx-int8", vocabulary="task", extra_texts="sha256:00"),
        "d1-e195577da466f1485657",
    ),
    "a test score": (HELD_OUT, "h1-75c63a517a1dde591455"),
}


@pytest.mark.parametrize(("spec", "expected"), PINNED.values(), ids=PINNED.keys())
def test_identifiers_are_pinned(spec: Any, expected: str) -> None:
    """Records are found by these: a change that breaks one needs a new IDENTITY_VERSION."""
    assert id_of(spec) == expected


def test_defaults_are_pinned() -> None:
    """A default is left out of the hash, so another default is another meaning of old records. A
    field that is new, at a default that means what was done before, changes only this hash."""
    defaults = {
        kind.__name__: {
            item.name: item.default for item in fields(kind) if item.default is not MISSING
        }
        for kind in KINDS
    }
    assert content_hash(defaults)[:20] == "022b800aded98ef192ba", defaults
    assert TRIAL.recipe == Recipe()


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
    if isinstance(value, Distillation):
        return [trial_id(replace(DISTILLED, distill=value))]
    if isinstance(value, Recipe):
        return [trial_id(replace(TRIAL, recipe=value))]
    if isinstance(value, TaskDefinition):
        return [trial_id(replace(TRIAL, task=value)), profile_id(replace(PROFILE, task=value))]
    return [id_of(value)]


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


def taught(task: TaskDefinition = TASK, kept: tuple[int, ...] = (1, 2, 3), **changes: Any) -> Any:
    distill = Distillation(alpha=0.7, **changes)
    return replace(DISTILLED, task=task, kept_layers=kept, distill=distill)


def with_recipe(spec: TrialSpec, **changes: Any) -> TrialSpec:
    return replace(spec, recipe=replace(spec.recipe, **changes))


FROZEN = replace(PRUNED, procedure="finetune_then_drop", freeze_dropped=True)
NUMBER = TASKS["stsb"].definition
SAME: dict[str, tuple[Any, Any]] = {
    "order of layers": (TRIAL, replace(TRIAL, kept_layers=(12, *range(12, 0, -1)))),
    "defaults spelt out": (TRIAL, replace(TRIAL, procedure="direct", recipe=Recipe(epochs=3))),
    "1 and 1.0, the default": (TRIAL, with_recipe(TRIAL, max_grad_norm=1)),
    "2 and 2.0": (with_recipe(TRIAL, max_grad_norm=2), with_recipe(TRIAL, max_grad_norm=2.0)),
    "nothing is dropped to freeze": (TRIAL, replace(TRIAL, freeze_dropped=True)),
    "no iteration to be long": (TRIAL, replace(TRIAL, epochs_per_layer=5)),
    "no feed-forward is removed": (TRIAL, replace(TRIAL, second_norm="drop")),
    "a feed-forward of no layer": (TRIAL, replace(TRIAL, removed_feed_forwards=(13,))),
    "a frozen layer that is not kept": (TRIAL, with_recipe(TRIAL, freeze_layers=(13,))),
    "frozen anyway": (FROZEN, with_recipe(FROZEN, freeze_layers=(7,))),
    "a number has no temperature": (taught(NUMBER), taught(NUMBER, temperature=3.0)),
    "one layer has no hidden states": (taught(kept=(2,)), taught(kept=(2,), hidden_weight=2.0)),
    "order of a speed": (
        SPEED,
        replace(SPEED, kept_layers=(3, 2, 1, 1), second_norm="drop", batches=(32, 32)),
    ),
}


def test_a_whole_number_has_one_text() -> None:
    """In each process: equal values share what was written of the first one."""
    assert canonical_json([1.0, {}, 1, 0.5]) == "[1,{},1,0.5]"


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_the_same_work_has_one_identifier(one: Any, other: Any) -> None:
    assert id_of(one) == id_of(other)


def test_a_frozen_layer_matters_to_a_network_that_learns() -> None:
    learns = replace(FROZEN, freeze_dropped=False)
    assert trial_id(with_recipe(learns, freeze_layers=(7,))) != trial_id(learns)


FROM_PLAIN: dict[str, TrialSpec | ProfileSpec | SpeedSpec] = {
    "trial": PRUNED,
    "distilled": DISTILLED,
    "greedy": replace(PROFILE, recipe=Recipe(freeze_layers=(1,)), seed=0),
    "profile": PROFILE,
    "speed": replace(SPEED, removed_feed_forwards=(2,), batches=(32, 256)),
}


@pytest.mark.parametrize("spec", FROM_PLAIN.values(), ids=FROM_PLAIN.keys())
def test_a_spec_comes_back_from_json(spec: Any) -> None:
    assert spec_from_plain(type(spec), json.loads(json.dumps(asdict(spec)))) == spec


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


@pytest.mark.parametrize("data", ["sha256:00", 'hub:a@"seed":42,'])
def test_identifiers_of_other_seeds_are_those_of_their_trials(data: str) -> None:
    spec = replace(TRIAL, data_fingerprint=data, distill=Distillation(), procedure="iterative")
    for seed in (0, 42, 10**6):
        assert ids_by_seed(spec)(seed) == trial_id(replace(spec, seed=seed))
