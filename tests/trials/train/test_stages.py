"""Networks trained in stages, on a tiny real model: layers frozen, layers dropped on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lp_sweep.storage import networks
from lp_sweep.storage.store import Store
from lp_sweep.trials.device import reproducible
from lp_sweep.trials.model.families import find_layers
from lp_sweep.trials.model.prune import keep_layers, parameter_counts
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.train import finetune as finetuning
from lp_sweep.trials.train.finetune import Saver, finetune
from tests.support.fastnets import setting
from tests.support.plain_jobs import assert_fails, done, load_inputs, run_trial
from tests.support.staging import (
    STEPS,
    assert_same,
    cut_off,
    made,
    spec_of,
    staged,
    weights,
)

QUICK = {"limit_train": 32}
FEED_FORWARD = 32 * 64 + 64 + 64 * 32 + 32  # parameters of one of the toy BERT's


@pytest.mark.parametrize(
    ("recipe", "places"),
    [
        # by its original index: layer 4 is the second that is left
        ({"freeze_layers": (4,)}, ("bert.encoder.layer.1.",)),
        (
            {"freeze_embeddings": True, "freeze_layers": (1, 2, 3, 4), "weight_decay": 0.1},
            ("bert.embeddings", "bert.encoder"),
        ),
    ],
    ids=["a layer", "all but the head"],
)
def test_what_is_frozen_stays_bit_by_bit_and_all_else_learns(
    world: Path, recipe: dict[str, Any], places: tuple[str, ...]
) -> None:
    job = made(world, kept_layers=(2, 4), recipe=QUICK | recipe)
    spec = spec_of(job)
    before = weights(load_inputs(job, spec, spec.kept_layers, spec.seed).model)
    after = weights(run_trial(job)["network"].model)
    assert before.keys() == after.keys()
    still = {name for name, value in before.items() if torch.equal(value, after[name])}
    assert still == {name for name in before if name.startswith(places)}


# -- finetune_then_drop


def test_it_is_fine_tuning_dropping_and_fine_tuning(world: Path, store: Store) -> None:
    first, second = staged(world, recipe=QUICK)
    full, small = done(store, first), done(store, second)
    assert (full["started_from"], small["started_from"]) == (None, first["id"])
    assert (full["kept_layers"], small["kept_layers"]) == ([1, 2, 3, 4], [1, 2])
    assert (full["procedure"], small["procedure"]) == ("direct", "finetune_then_drop")

    spec = spec_of(first)
    with reproducible(1):
        inputs = load_inputs(first, spec, spec.kept_layers, spec.seed)

        def trained(*kept: int) -> np.ndarray:
            how = setting(
                spec.recipe.compute,
                spec.recipe.batch_size,
                definition=spec.task,
                recipe=spec.recipe,
                seed=spec.seed,
                padding=inputs.padding,
                phases=(Phase(kept, spec.recipe.epochs),),
            )
            return finetune(inputs.model, inputs.encoded, how, Saver()).logits["validation"]

        once = trained(1, 2, 3, 4)
        keep_layers(inputs.model, [1, 2])
        twice = trained(1, 2)
    for job, logits in ((first, once), (second, twice)):
        stored = [row["scores"] for row in store.read("predictions", job["id"])]
        assert np.array_equal(np.array(stored, dtype=np.float32), logits)


@pytest.mark.parametrize("bridge", ["", "linear"])
def test_one_shot_is_fine_tuning_and_dropping(
    world: Path, store: Store, tmp_path: Path, bridge: str
) -> None:
    """The kept layers are those of the fine-tuned network, except where a map was merged."""
    first, second = staged(world, recipe=QUICK, procedure="one_shot", bridge=bridge)
    done(store, first)
    assert networks.fetch_network(store, first["id"], tmp_path)
    full = load_inputs(first, spec_of(first), None, 0, tmp_path).model
    found = run_trial(second, start=tmp_path)
    left, record, own = weights(found["network"].model), found["record"], weights(full)
    assert (record["steps"], record["best_epoch"], record["kept_layers"]) == (0, 0, [1, 2])
    moved = {name for name, value in left.items() if not torch.equal(value, own[name])}
    assert bool(moved) == bool(bridge)
    assert all(name.startswith("bert.encoder.layer.1.output.") for name in moved)


def test_without_its_network_it_fails_and_says_so(world: Path, store: Store) -> None:
    first, second = staged(world)
    said = f"the network of trial {first['id']}.*{store.location}.*Run the sweep again"
    assert_fails(store, second, "missing_input", said)
    assert not store.names("trials")
    [attempt] = store.read_all("attempts").rows.to_pylist()
    assert attempt["trial_id"] == second["id"]


def test_while_the_store_is_away_that_is_what_is_said(
    world: Path, store: Store, tmp_path: Path
) -> None:
    Path(store.location).rename(tmp_path / "away")
    job = {**staged(world)[1], "cache_dir": str(tmp_path / "cache")}
    message = assert_fails(store, job, "missing_input", "can't fetch")
    assert "Run the sweep again" not in message


def test_it_never_starts_from_the_pre_trained_network(world: Path) -> None:
    """Its identifier would be that of another training."""
    with pytest.raises(ValueError, match="finetune_then_drop, started from None"):
        run_trial(staged(world)[1])


# -- iterative


def iterative(world: Path, steps: int = STEPS, **changes: Any) -> dict[str, Any]:
    """An epoch each with 4 and 3 layers, then two with 2."""
    recipe = {"limit_train": 4 * steps, "batch_size": 4, "epochs": 2, "warmup_ratio": 0.1}
    return made(world, recipe=recipe, procedure="iterative", epochs_per_layer=1, **changes)


@pytest.fixture(scope="module")
def undisturbed(world: Path) -> dict[str, Any]:
    return run_trial(iterative(world))


def test_layers_go_on_the_way(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the highest down, in one run of the schedule and of AdamW."""
    layers, rates, drops = [], [], 0
    evaluate, train_step, enter = finetuning.evaluate, finetuning.train_step, finetuning._Run.enter

    def spy_evaluate(model: Any, *args: Any, **settings: Any) -> Any:
        layers.append((len(find_layers(model).layers), list(model.config.lp_sweep_kept_layers)))
        return evaluate(model, *args, **settings)

    def spy_step(model: Any, optimizer: Any, *args: Any) -> Any:
        rates.append(optimizer.param_groups[0]["lr"])
        return train_step(model, optimizer, *args)

    def spy_enter(self: Any, phase: int) -> None:
        nonlocal drops
        drops += phase != self.phase
        before = {p: s["exp_avg"].clone() for p, s in self.optimizer.state.items()}
        enter(self, phase)
        for parameter in self.model.parameters():
            if before:
                state = self.optimizer.state[parameter]
                assert torch.equal(state["exp_avg"], before[parameter])
                assert state["step"] == len(rates)

    monkeypatch.setattr(finetuning, "evaluate", spy_evaluate)
    monkeypatch.setattr(finetuning, "train_step", spy_step)
    monkeypatch.setattr(finetuning._Run, "enter", spy_enter)
    record = run_trial(iterative(world, kept_layers=(2, 4)))["record"]
    assert layers == [(4, [1, 2, 3, 4]), (3, [1, 2, 4]), (2, [2, 4]), (2, [2, 4])]
    assert drops == 2
    assert record["steps"] == len(rates) == 4 * STEPS
    top = rates.index(max(rates))
    assert top == 4  # a tenth of all steps, not of a phase's
    falls = np.diff(rates[top:])
    assert np.allclose(falls, falls[0])
    assert rates[-1] == pytest.approx(-falls[0])


def test_its_record_is_of_the_last_network(
    undisturbed: dict[str, Any], world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = undisturbed["record"]
    direct = run_trial(made(world, recipe=QUICK))["record"]
    assert record["params_total"] == direct["params_total"]
    assert record["train_examples_per_second"] is record["dev_examples_per_second"] is None
    assert direct["train_examples_per_second"] > 0
    assert [item["epoch"] for item in record["epoch_metrics"]] == [1, 2, 3, 4]
    scores = iter([0.9, 0.8, 0.7, 0.6])
    monkeypatch.setattr(finetuning, "score", lambda *_, **__: {"accuracy": next(scores)})
    record = run_trial(iterative(world, steps=1))["record"]
    assert (record["best"], record["best_epoch"], record["last"]) == (0.7, 3, 0.6)


def test_a_cut_off_one_goes_on_with_the_layers_it_had(
    world: Path, store: Store, undisturbed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {**iterative(world), "checkpoint_every": 3600.0}
    cut_off(job, store, monkeypatch, STEPS + 1)  # right after a drop
    done(store, job)
    assert assert_same(store, job, undisturbed)["resumed_from_step"] == STEPS + 1


# -- without feed-forwards


def test_feed_forwards_go_before_the_training(world: Path) -> None:
    job = made(world, recipe=QUICK, removed_feed_forwards=(2,))
    record = run_trial(job)["record"]
    whole = parameter_counts(load_inputs(job, spec_of(made(world)), (1, 2), 1).model)
    assert record["removed_feed_forwards"] == [2]
    assert record["params_total"] == whole.total - FEED_FORWARD
    assert record["params_encoder"] == whole.encoder - FEED_FORWARD
