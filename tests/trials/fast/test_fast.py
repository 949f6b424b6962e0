"""`compute: fast` against the reference, of every family: logits, gradients, forty steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from lp_sweep.storage.specs import Recipe, TaskDefinition
from lp_sweep.trials.data.batches import BatchSizes, EncodedTask, Padding, group_ends
from lp_sweep.trials.fast.attention import dropped_out, quick_dropout
from lp_sweep.trials.fast.forward import compute_used, forward, may_be_cut
from lp_sweep.trials.fast.networks import forward_pass_of
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.train.finetune import Saver, Trained, finetune
from lp_sweep.trials.train.procedures import Phase
from lp_sweep.trials.train.steps import Setting, evaluate
from tests.support.everyday import few
from tests.support.families import NAMES
from tests.support.fastnets import (
    CPU,
    PAD,
    assert_same_gradients,
    assert_same_logits,
    assert_within_1e5,
    both,
    network,
    of_two_texts,
    set_overhead,
    spelling_the_padding,
    split_of,
    without_dropout,
)
from tests.support.plain_jobs import run_trial
from tests.support.toyworld import jobs, save_world


@pytest.fixture
def many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    set_overhead(monkeypatch, 1)


@pytest.fixture(params=[1, 10**6], ids=["many groups", "one group"])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    set_overhead(monkeypatch, request.param)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "lengths", few([[3, 9, 1, 5, 9], [4, 4, 4], [7]], 1), ids=["ragged", "even", "one"]
)
def test_logits_and_gradients(name: str, lengths: list[int], tmp_path: Path) -> None:
    model, split = network(name, tmp_path), split_of(lengths)
    rows = np.arange(len(lengths))[::-1].copy()
    fast, plain = both(model, split, rows)
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)
    grads = []
    for found in (fast, plain):
        model.zero_grad()
        cross_entropy(found, torch.from_numpy(split.labels[rows])).backward()
        grads.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    assert_same_gradients(*grads)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("name", ["bert", "electra", "xlnet", "mpnet"])
def test_two_texts(name: str, tmp_path: Path) -> None:
    """With token types, where the family has any."""
    split = split_of([3, 9, 1, 5, 9])
    assert_same_logits(network(name, tmp_path), split if name == "mpnet" else of_two_texts(split))


@pytest.mark.parametrize("name", few(NAMES, 2))
def test_with_dropout_it_learns_at_the_same_rate(name: str, tmp_path: Path) -> None:
    """Other masks of the same share: the mean over many is the same."""
    model, split = network(name, tmp_path), split_of([3, 9, 5])
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    model.train()
    torch.manual_seed(0)
    padding = Padding(PAD, 0, model.config.model_type == "xlnet")

    def draws(compute: Any) -> torch.Tensor:
        rows = np.arange(3)
        every = [forward(model, split, rows, padding, CPU, compute) for _ in range(100)]
        return torch.stack(every)

    with torch.no_grad(), quick_dropout(model):
        fast, plain = draws("fast"), draws("reference")
    error = (fast.var(0) / len(fast) + plain.var(0) / len(plain)).sqrt()
    assert ((fast.mean(0) - plain.mean(0)).abs() < 5 * error + 1e-6).all()
    ratio = fast.std(0) / plain.std(0)
    assert ratio.min() > 0.6
    assert ratio.max() < 1.6


@pytest.mark.usefixtures("many_groups")
@pytest.mark.parametrize("name", NAMES)
def test_a_text_that_spells_the_padding(name: str, tmp_path: Path) -> None:
    """Its token is a token; RoBERTas don't count it."""
    assert_same_logits(network(name, tmp_path), spelling_the_padding(split_of([3, 9, 5])))


RECIPE = Recipe(learning_rate=1e-2, batch_size=4, epochs=5, compute="fast")
COURSE = (Phase((1, 2, 3), RECIPE.epochs),)


def trained(model: PreTrainedModel, data: EncodedTask, recipe: Recipe) -> Trained:
    setting = Setting(
        definition=TaskDefinition(text_columns=("text",)),
        recipe=recipe,
        seed=1,
        device=CPU,
        padding=Padding(PAD, 0, model.config.model_type == "xlnet"),
        precision="fp32",
        batches=BatchSizes.halved(recipe.batch_size, 0),
        course=COURSE,
    )
    return finetune(model, data, setting, Saver())


@pytest.mark.usefixtures("many_groups")
@pytest.mark.parametrize("name", few(NAMES, 2))
def test_forty_steps_without_dropout(name: str, tmp_path: Path) -> None:
    """Words that no row has keep their weights; all else moves as in the reference."""
    draw = np.random.default_rng(3)
    data = EncodedTask(
        train=split_of([int(n) for n in draw.integers(2, 12, 32)]),
        dev={"validation": split_of([3, 8, 5], seed=4)},
        label_names=("a", "b"),
        num_labels=2,
        from_cache=False,
    )
    found = {}
    for compute in ("fast", "reference"):
        model = without_dropout(network(name, tmp_path / compute))
        before = model.get_input_embeddings().weight.detach().clone()
        result = trained(model, data, replace(RECIPE, compute=compute, learning_rate=1e-4))
        found[compute] = (result, model, before)
    fast, model, before = found["fast"]
    plain, other, _ = found["reference"]
    assert fast.progress.step == 40
    for what, expected in (
        (fast.progress.train_losses, plain.progress.train_losses),
        (fast.logits["validation"], plain.logits["validation"]),
    ):
        assert_within_1e5(np.array(what), np.array(expected))
    named = {PAD} | set(data.train.tokens) | set(data.dev["validation"].tokens)
    unnamed = sorted(set(range(len(before))) - named)
    after = model.get_input_embeddings().weight
    assert torch.equal(after[unnamed], before[unnamed])
    assert not torch.equal(after, before)
    assert model.state_dict().keys() == other.state_dict().keys()
    assert after.shape == before.shape


def test_a_fast_trial_is_another_trial_and_says_how_it_ran(tmp_path: Path) -> None:
    world = save_world(tmp_path)
    (fast,) = jobs(world, "k=2", "recipe.epochs=1")
    (plain,) = jobs(world, "k=2", "recipe.epochs=1", "recipe.compute=reference")
    assert fast["id"] != plain["id"]
    record = run_trial(fast)["record"]
    assert (record["compute"], record["compute_used"]) == ("fast", "unpadded")
    record = run_trial(plain)["record"]
    assert (record["compute"], record["compute_used"]) == ("reference", "padded")


@pytest.mark.parametrize("name", ["mpnet", "deberta-v2", "modernbert"])
def test_another_family_goes_in_groups_of_like_length(name: str, tmp_path: Path) -> None:
    model = network(name, tmp_path)
    assert forward_pass_of(model) is None
    assert compute_used(model, "fast", CPU) == "grouped"
    assert compute_used(model, "fast", torch.device("cuda")) == "padded"
    assert not may_be_cut(model, RECIPE)


@pytest.mark.parametrize("compute", ["fast", "reference"])
def test_an_answer_is_in_the_splits_order(compute: Any, tmp_path: Path) -> None:
    model, split = network("bert", tmp_path), split_of([3, 9, 1, 5, 9])
    together = evaluate(model, split, Padding(PAD, 0, False), precision="fp32", compute=compute)
    for row in range(len(split)):
        alone = evaluate(
            model, split.take([row]), Padding(PAD, 0, False), precision="fp32", compute=compute
        )
        np.testing.assert_allclose(together[row], alone[0], atol=1e-5)


@pytest.mark.usefixtures("many_groups")
@pytest.mark.parametrize("name", NAMES)
def test_without_feed_forwards(name: str, tmp_path: Path) -> None:
    model, split = network(name, tmp_path), split_of([3, 9, 1, 5])
    remove_feed_forwards(model, (1, 3))
    assert_same_logits(model, split)


@given(
    costs=st.lists(st.integers(1, 200), min_size=1, max_size=9).map(
        lambda found: sorted(found, reverse=True)
    ),
    overhead=st.integers(0, 500),
)
def test_groups_cost_the_least(costs: list[int], overhead: int) -> None:
    """Against every way to cut the rows."""

    def cost(ends: tuple[int, ...]) -> int:
        begins = (0, *ends[:-1])
        return sum(
            costs[begin] * (end - begin) + overhead for begin, end in zip(begins, ends, strict=True)
        )

    cuts = range(1, len(costs))
    every = [
        (*chosen, len(costs)) for size in range(len(costs)) for chosen in combinations(cuts, size)
    ]
    found = tuple(group_ends(np.array(costs), overhead))
    assert found in every
    assert cost(found) == min(map(cost, every))


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_dropout_takes_its_share_and_keeps_the_mean(share: float) -> None:
    torch.manual_seed(5)
    ones = torch.ones(1001, 999, requires_grad=True)
    found = dropped_out(ones, share)
    exact = round(share * 2**16) / 2**16
    assert float((found == 0).double().mean()) == pytest.approx(share, abs=0.002)
    assert found.unique().tolist() == pytest.approx([0, 1 / (1 - exact)])
    found.sum().backward()
    assert ones.grad is not None
    assert torch.equal(ones.grad, found)
    torch.manual_seed(5)
    assert torch.equal(dropped_out(ones, share), found)


def test_the_networks_dropout_is_its_own_again(tmp_path: Path) -> None:
    model = network("bert", tmp_path)
    kinds = [type(module) for module in model.modules()]
    with quick_dropout(model):
        assert torch.nn.Dropout not in {type(module) for module in model.modules()}
    assert [type(module) for module in model.modules()] == kinds
