"""`compute: graphs`: a pass of a fixed shape is the reference's pass. What a CUDA graph does with
it is in test_gpu.py; here its operations run one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedModel

from lp_sweep.trials.batches import EncodedSplit, EncodedTask
from lp_sweep.trials.familytable import FAMILIES as FAMILY_TABLE
from lp_sweep.trials.finetune import NoSaver, finetune
from lp_sweep.trials.forward import compute_used
from lp_sweep.trials.graphs import GraphPass, _gradients_aside
from lp_sweep.trials.steps import EagerPass, Pass, train_step
from lp_sweep.trials.unpadded.families import PASSES
from lp_sweep.trials.unpadded.tokens import even_length
from tests.support.everyday import few
from tests.support.families import FAMILIES
from tests.support.fastnets import (
    assert_same_gradients,
    assert_within_1e5,
    network,
    of_two_texts,
    setting,
    spelling_the_padding,
    split_of,
    without_dropout,
)

HELD = [n for n, f in FAMILY_TABLE.items() if f.unpadded and PASSES[f.unpadded].on_device]


def gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def one_pass(learn: Pass, split: EncodedSplit, rows: np.ndarray) -> tuple[float, Any]:
    learn.model.zero_grad()
    loss = float(learn(split, rows, 0.5))
    return loss, gradients(learn.model)


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("of", [lambda split: split, of_two_texts], ids=["a text", "two texts"])
@pytest.mark.parametrize("lengths", few([[3, 9, 1, 5], [4, 4, 4], [19], [20, 1]], 2))
def test_a_pass_is_that_of_the_reference(
    name: str, of: Any, lengths: list[int], tmp_path: Path
) -> None:
    model = without_dropout(network(name, tmp_path)).train()
    split, rows = of(split_of(lengths)), np.arange(len(lengths))[::-1].copy()
    loss, found = one_pass(GraphPass(model, setting("graphs")), split, rows)
    expected_loss, expected = one_pass(EagerPass(model, setting("reference")), split, rows)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert found.keys() == expected.keys()
    assert_same_gradients(found, expected)


@pytest.mark.parametrize("name", HELD)
def test_a_text_that_spells_the_padding(name: str, tmp_path: Path) -> None:
    model = without_dropout(network(name, tmp_path)).train()
    split, rows = spelling_the_padding(split_of([3, 9, 5])), np.arange(3)
    loss, found = one_pass(GraphPass(model, setting("graphs")), split, rows)
    expected_loss, expected = one_pass(EagerPass(model, setting("reference")), split, rows)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    assert_same_gradients(found, expected)


@pytest.mark.parametrize("micro_batch", few([3, 4], 1), ids=["in parts", "whole"])
def test_forty_steps(micro_batch: int, tmp_path: Path) -> None:
    """The input of an earlier pass leaves nothing behind: batches of other lengths, and one
    that is not full, come by turns."""
    draw = np.random.default_rng(3)
    split = split_of([int(n) for n in draw.integers(1, 20, 32)])
    losses = {}
    for kind, compute in ((GraphPass, "graphs"), (EagerPass, "reference")):
        model = without_dropout(network("bert", tmp_path / compute)).train()
        learn = kind(model, setting(compute, micro_batch))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        rows = [draw.permutation(32)[: 2 if step % 7 == 6 else 4] for step in range(40)]
        losses[compute] = [
            float(train_step(learn, optimizer, split, some, step)) for step, some in enumerate(rows)
        ]
        draw = np.random.default_rng(3)
        draw.integers(1, 20, 32)
    assert_within_1e5(np.array(losses["graphs"]), np.array(losses["reference"]))


def test_gradients_stay_where_they_are(tmp_path: Path) -> None:
    """A graph goes on writing to the memory that it was recorded with."""
    model = network("bert", tmp_path).train()
    learn, split = GraphPass(model, setting("graphs")), split_of([3, 9, 5, 17])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train_step(learn, optimizer, split, np.arange(4), 0)
    places = {n: p.grad.data_ptr() for n, p in model.named_parameters() if p.grad is not None}
    assert places
    assert not any(grad.any() for grad in gradients(model).values())
    train_step(learn, optimizer, split, np.arange(2), 1)
    after = {n: p.grad.data_ptr() for n, p in model.named_parameters() if p.grad is not None}
    assert after == places


def test_what_a_gpu_holds(tmp_path: Path) -> None:
    used = {
        name: compute_used(network(name, tmp_path), "graphs", torch.device("cuda"))
        for name in ("bert", "distilbert", "xlnet", "modernbert")
    }
    assert used == {
        "bert": "graphs",
        "distilbert": "graphs",
        "xlnet": "unpadded",
        "modernbert": "padded",
    }
    assert set(HELD) <= set(FAMILIES)


def test_without_a_gpu_a_training_is_that_of_fast(tmp_path: Path) -> None:
    data = EncodedTask(
        train=split_of([2 + row % 8 for row in range(13)], seed=5),
        dev={"validation": split_of([3, 8, 5], seed=4)},
        label_names=("a", "b"),
        num_labels=2,
        from_cache=False,
    )
    fast, graphs = (
        finetune(network("bert", tmp_path / compute), data, setting(compute), NoSaver())
        for compute in ("fast", "graphs")
    )
    assert graphs.progress.train_losses == fast.progress.train_losses
    np.testing.assert_array_equal(graphs.logits["validation"], fast.logits["validation"])


@given(longest=st.integers(1, 512))
def test_even_lengths(longest: int) -> None:
    length = even_length(longest)
    assert length >= longest
    assert even_length(length) == length
    assert length - longest < max(16, length / 4)


def test_rows_are_not_filled_beyond_what_the_recipe_allows(tmp_path: Path) -> None:
    """A table of positions may end there."""
    how = setting("graphs")
    how = replace(how, recipe=replace(how.recipe, max_length=20))
    learn = GraphPass(network("bert", tmp_path), how)
    learn(split_of([20, 3, 4, 5]), np.arange(4), 1.0)
    learn(split_of([10, 3, 4, 5]), np.arange(4), 1.0)
    assert sorted(learn._held) == [16, 20]


def test_what_a_recording_computes_is_not_learned(tmp_path: Path) -> None:
    """Its passes before the first launch leave gradients, and whose they are, as they were."""
    model = without_dropout(network("bert", tmp_path)).train()
    learn, split, rows = GraphPass(model, setting("graphs")), split_of([3, 9, 5]), np.arange(3)
    _, expected = one_pass(learn, split, rows)
    places = {p: p.grad for p in model.parameters()}
    with _gradients_aside(model):
        assert not gradients(model)
        learn(split, rows, 1.0)
    assert all(p.grad is grad for p, grad in places.items())
    assert_same_gradients(gradients(model), expected)
    model.zero_grad()
    with _gradients_aside(model):
        learn(split, rows, 1.0)
    assert gradients(model).keys() == expected.keys()
    assert not any(grad.any() for grad in gradients(model).values())
