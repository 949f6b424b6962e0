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

from lp_sweep.trials.data.batches import BatchSizes, Padding, group_ends
from lp_sweep.trials.fast.attention import dropped_out, quick_dropout
from lp_sweep.trials.fast.forward import compute_used, forward, may_be_cut, task_words
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.spec.specs import Recipe
from lp_sweep.trials.train.finetune import Saver, finetune
from tests.support.everyday import few
from tests.support.families import FAMILIES, NAMES, VOCABULARY, daily, save_pretrained
from tests.support.fastnets import (
    CPU,
    PAD,
    assert_same_gradients,
    assert_same_logits,
    assert_within_1e5,
    both,
    encoded,
    network,
    of_two_texts,
    padding_of,
    set_overhead,
    setting,
    spelling_the_padding,
    split_of,
    with_dropout,
)
from tests.support.networks import load

WITH_TYPES = ("bert", "electra", "xlnet")  # whose answer depends on them


@pytest.mark.parametrize("overhead", [1, 10**6], ids=["many groups", "one group"])
@pytest.mark.parametrize(
    "name", daily("bert", "roberta", "electra", "distilbert", "xlnet", "deberta-v2", "modernbert")
)
def test_logits_and_gradients(name: str, overhead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_overhead(monkeypatch, overhead)
    model, ragged = network(name), split_of([3, 9, 1, 5, 9])
    typed = [of_two_texts(ragged)] if name in WITH_TYPES else []
    for split in (ragged, split_of([4, 4, 4]), split_of([7]), *typed):
        rows = np.arange(len(split))[::-1].copy()
        logits, grads = both(model, split, rows), []
        torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
        for found in logits:
            model.zero_grad()
            cross_entropy(found, torch.from_numpy(split.labels[rows])).backward()
            grads.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
        assert_same_gradients(*grads)
    # a text that spells the padding: its token is a token, which RoBERTas don't count
    assert_same_logits(model, spelling_the_padding(split_of([3, 9, 5])))
    remove_feed_forwards(model, (1, 3))
    assert_same_logits(model, ragged)


@pytest.mark.parametrize("name", few(NAMES, 1))
def test_with_dropout_it_learns_at_the_same_rate(name: str) -> None:
    """Other masks of the same share: the mean over many is the same."""
    model = with_dropout(network(name), 0.1).train()
    split = split_of([3, 9, 5])
    torch.manual_seed(0)
    padding = padding_of(name)

    def draws(compute: Any) -> torch.Tensor:
        rows = np.arange(3)
        every = [forward(model, split, rows, padding, CPU, compute) for _ in range(100)]
        return torch.stack(every)

    with torch.no_grad(), quick_dropout(model):
        fast, plain = draws("fast"), draws("reference")
    error = (fast.var(0) / len(fast) + plain.var(0) / len(plain)).sqrt()
    assert ((fast.mean(0) - plain.mean(0)).abs() < 5 * error + 1e-6).all()
    ratio = fast.std(0) / plain.std(0)
    assert 0.6 < ratio.min() <= ratio.max() < 1.6


RECIPE = Recipe(learning_rate=1e-4, batch_size=4, epochs=5, compute="fast")


@pytest.mark.parametrize("name", few(NAMES, 1))
def test_forty_steps_without_dropout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that no row has keep their weights; all else moves as in the reference."""
    set_overhead(monkeypatch, 1)
    draw = np.random.default_rng(3)
    data = encoded(split_of([int(n) for n in draw.integers(2, 12, 32)]))
    found = {}
    for compute in ("fast", "reference"):
        model = network(name)
        before = model.get_input_embeddings().weight.detach().clone()
        how = setting(
            compute,
            recipe=replace(RECIPE, compute=compute),
            padding=padding_of(name),
            batches=BatchSizes.halved(RECIPE.batch_size, 0),
            phases=(Phase((1, 2, 3), RECIPE.epochs),),
        )
        found[compute] = (finetune(model, data, how, Saver()), model, before)
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


def test_the_word_table_is_cut_only_where_its_other_rows_stay() -> None:
    model = network("bert")
    assert may_be_cut(model, RECIPE)
    assert not may_be_cut(model, replace(RECIPE, weight_decay=0.1))
    assert not may_be_cut(model, replace(RECIPE, freeze_embeddings=True))


def test_of_a_padding_with_a_high_number_only_its_own_row_is_kept(tmp_path: Path) -> None:
    family = FAMILIES["modernbert"]
    family = replace(family, settings={**family.settings, "pad_token_id": VOCABULARY - 1})
    model, data = load(save_pretrained(family, 3, tmp_path)), encoded(split_of([3, 9, 5]))
    before = model.get_input_embeddings().weight
    with task_words(model, data, Padding(VOCABULARY - 1, 0, False)) as (cut, padding):
        words = model.get_input_embeddings()
        tokens = {*data.train.tokens, *data.dev["validation"].tokens}
        assert len(words.weight) == len(tokens) + 1
        assert padding.token_id == words.padding_idx == model.config.pad_token_id == len(tokens)
        assert_same_logits(model.eval(), cut.train)
    assert model.get_input_embeddings().weight is before
    assert model.config.pad_token_id == VOCABULARY - 1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("deberta-v2", {"pos_att_type": ["c2p"], "share_att_key": False}),
        ("deberta-v2", {"pos_att_type": ["p2c"], "position_biased_input": True}),
        ("deberta-v2", {"pos_att_type": [], "position_buckets": -1}),
        ("deberta-v2", {"relative_attention": False}),
        ("modernbert", {"classifier_pooling": "mean"}),
        ("modernbert", {"layer_types": ["sliding_attention"] * 3}),
    ],
)
def test_what_a_config_may_say(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    family = replace(FAMILIES[name], settings={**FAMILIES[name].settings, **settings})
    model = load(save_pretrained(family, 3, tmp_path)).eval()
    assert (compute_used(model, "fast", CPU) == "grouped") == ("relative_attention" in settings)
    assert_same_logits(model, split_of([3, 9, 1, 5, 9]))


def test_another_family_goes_in_groups_of_like_length() -> None:
    model = network("deberta-v2-conv")
    assert compute_used(model, "fast", CPU) == "grouped"
    assert compute_used(model, "fast", torch.device("cuda")) == "padded"
    assert not may_be_cut(model, RECIPE)


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


def test_dropout_takes_its_share_and_keeps_the_mean() -> None:
    torch.manual_seed(5)
    ones = torch.ones(1001, 999, requires_grad=True)
    found = dropped_out(ones, 0.1)
    exact = round(0.1 * 2**16) / 2**16
    assert float((found == 0).double().mean()) == pytest.approx(0.1, abs=0.002)
    assert found.unique().tolist() == pytest.approx([0, 1 / (1 - exact)])
    found.sum().backward()
    assert ones.grad is not None
    assert torch.equal(ones.grad, found)
    torch.manual_seed(5)
    assert torch.equal(dropped_out(ones, 0.1), found)


def test_the_networks_dropout_is_its_own_again() -> None:
    model = network("bert")
    kinds = [type(module) for module in model.modules()]
    with quick_dropout(model):
        assert torch.nn.Dropout not in {type(module) for module in model.modules()}
    assert [type(module) for module in model.modules()] == kinds
