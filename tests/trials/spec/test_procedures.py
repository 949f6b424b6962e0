"""Procedures: the phases of a training, and the trial that another one starts from."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.procedures import (
    DIRECT,
    FINETUNE_THEN_DROP,
    ITERATIVE,
    LINEAR,
    ONE_SHOT,
    PROCEDURES,
    STAGED,
    UNTRAINED,
    Phase,
    Procedure,
    full_layers,
    phase_at,
    phases,
    settled,
    stage_one,
)
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition, TrialSpec

PROCEDURE = st.one_of(
    st.sampled_from([Procedure(DIRECT), Procedure(ONE_SHOT), Procedure(ONE_SHOT, bridge=LINEAR)]),
    st.booleans().map(lambda frozen: Procedure(FINETUNE_THEN_DROP, freeze_dropped=frozen)),
    st.integers(1, 9999).map(lambda epochs: Procedure(ITERATIVE, epochs_per_layer=epochs)),
)


@st.composite
def specs(draw: st.DrawFn, *procedures: str) -> tuple[TrialSpec, int]:
    """A trial of some procedure, and the depth of its model."""
    depth = draw(st.integers(1, 12))
    layers = st.sets(st.integers(1, depth)).map(tuple)
    kept = draw(layers.filter(len))
    spec = TrialSpec(
        model_fingerprint="sha256:0",
        kept_layers=kept,
        task=TaskDefinition(text_columns=("text",)),
        data_fingerprint="sha256:1",
        seed=draw(st.integers(0, 3)),
        recipe=Recipe(epochs=draw(st.integers(1, 4)), freeze_layers=draw(layers)),
        procedure=draw(st.sampled_from(procedures or PROCEDURES)),
        freeze_dropped=draw(st.booleans()),
        epochs_per_layer=draw(st.integers(1, 4)),
        removed_feed_forwards=draw(st.just(()) | layers),
    )
    return spec, depth


@given(procedure=PROCEDURE)
def test_a_label_gives_its_procedure_back(procedure: Procedure) -> None:
    assert Procedure.parse(procedure.label) == procedure


@given(asked=specs())
def test_layers_go_one_by_one_from_the_highest(asked: tuple[TrialSpec, int]) -> None:
    spec, depth = asked
    course = phases(spec, depth)
    epochs = 0 if spec.procedure in (UNTRAINED, ONE_SHOT) else spec.recipe.epochs
    assert course[-1] == Phase(spec.kept_layers, epochs)
    for one, following in itertools.pairwise(course):
        gone = set(one.kept_layers) - set(following.kept_layers)
        assert set(following.kept_layers) < set(one.kept_layers)
        assert gone == {max(set(one.kept_layers) - set(spec.kept_layers))}
        assert one.epochs == spec.epochs_per_layer
    if spec.procedure == ITERATIVE:
        assert course[0].kept_layers == full_layers(depth)
        dropped = depth - len(spec.kept_layers)
        epochs = spec.epochs_per_layer * dropped + spec.recipe.epochs
        assert sum(phase.epochs for phase in course) == epochs
    else:
        assert len(course) == 1
    owners = [number for number, phase in enumerate(course) for _ in range(phase.epochs)]
    assert [phase_at(course, epoch) for epoch in range(len(owners))] == owners
    assert phase_at(course, len(owners)) == len(course) - 1  # after the end


@given(asked=specs())
def test_stage_one_drops_and_removes_nothing(asked: tuple[TrialSpec, int]) -> None:
    spec, depth = asked
    first = stage_one(spec, depth)
    if spec.procedure not in STAGED:
        assert first is None
        return
    assert first is not None
    assert first.kept_layers == full_layers(depth)
    assert first.removed_feed_forwards == ()
    assert first.procedure == DIRECT
    assert stage_one(first, depth) is None
    assert settled(first, depth) == first
    frozen = set(spec.recipe.freeze_layers)
    if spec.freeze_dropped:
        frozen |= set(full_layers(depth)) - set(spec.kept_layers)
    assert first.recipe == replace(spec.recipe, freeze_layers=tuple(frozen))
    same = ("model_fingerprint", "task", "data_fingerprint", "seed")
    assert all(getattr(first, name) == getattr(spec, name) for name in same)


@given(asked=specs(FINETUNE_THEN_DROP), data=st.data())
def test_all_share_stage_one_unless_it_freezes(
    asked: tuple[TrialSpec, int], data: st.DataObject
) -> None:
    spec, depth = asked
    kept = data.draw(st.sets(st.integers(1, depth), min_size=1).map(tuple))
    other = replace(spec, kept_layers=kept, recipe=replace(spec.recipe, freeze_layers=()))
    spec = replace(spec, recipe=other.recipe)
    one, two = stage_one(spec, depth), stage_one(other, depth)
    assert one is not None
    assert two is not None
    shared = not spec.freeze_dropped or set(kept) == set(spec.kept_layers)
    assert (trial_id(one) == trial_id(two)) == shared


@given(asked=specs())
def test_nothing_dropped_is_direct(asked: tuple[TrialSpec, int]) -> None:
    spec, depth = asked
    one = settled(spec, depth)
    assert settled(one, depth) == one
    full = spec.kept_layers == full_layers(depth)
    if not full:
        assert one == spec
    elif spec.procedure in STAGED and spec.removed_feed_forwards:
        assert one == replace(spec, freeze_dropped=False)  # no layer goes, a feed-forward does
    else:
        assert one == replace(spec, procedure=DIRECT)
