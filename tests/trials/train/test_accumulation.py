"""Micro-batches: the gradient of the whole batch, in several forward passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit, to_device
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition
from lp_sweep.trials.train.steps import EagerPass, Setting, stream, train_step
from tests.support.fastnets import CPU, network, setting, split_of, with_dropout

ROWS = np.arange(13)  # no multiple of any micro-batch below
SPLIT = split_of([2, 7, 9, 4, 2, 3, 8, 5, 6, 9, 2, 4, 3])
NUMBERS = TaskDefinition(text_columns=("text",), kind="regression", metric="pearson")


def one_step(
    model: nn.Module,
    micro_batch: int = len(ROWS),
    *,
    split: EncodedSplit = SPLIT,
    max_grad_norm: float = 1e9,
    **how: TaskDefinition,
) -> tuple[Setting, float, torch.Tensor]:
    """The loss, and the negative gradient: what plain descent at rate 1 moves the weights by."""
    recipe = Recipe(batch_size=len(ROWS), max_grad_norm=max_grad_norm)
    chosen = setting("reference", micro_batch, recipe=recipe, **how)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = train_step(EagerPass(model, chosen), descent, split, ROWS, 5)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return chosen, float(loss), after - before


@pytest.mark.parametrize("numbers", [False, True], ids=["classes", "numbers"])
def test_the_gradient_is_that_of_the_whole_batch(numbers: bool) -> None:
    split, how = SPLIT, {}
    if numbers:
        labels = np.random.default_rng(0).normal(size=len(ROWS)).astype(np.float32)
        split, how = replace(SPLIT, labels=labels), {"definition": NUMBERS}

    def step_of(micro_batch: int) -> tuple[float, torch.Tensor]:
        head = {"num_labels": 1, "problem_type": "regression"} if numbers else {}
        model = network("bert", 2, **head)
        return one_step(model, micro_batch, split=split, **how)[1:]

    whole_loss, whole = step_of(len(ROWS))
    assert whole.abs().max() > 1e-3
    for micro_batch in (1, 7, 12):
        loss, parts = step_of(micro_batch)
        assert loss == pytest.approx(whole_loss, rel=1e-6)
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))


@pytest.mark.parametrize("micro_batch", [len(ROWS), 4])
def test_the_norm_is_clipped_once_for_all_parts(micro_batch: int) -> None:
    *_, moved = one_step(network("bert", 2), micro_batch, max_grad_norm=0.01)
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_one_part_is_the_plain_step_bit_by_bit() -> None:
    model, plain = (with_dropout(network("bert", 2), 0.1).train() for _ in range(2))
    how, loss, _ = one_step(model, max_grad_norm=1.0)
    torch.manual_seed(stream(how.seed, 5))
    logits = plain(**to_device(SPLIT, ROWS, how.padding, CPU)).logits
    expected = nn.functional.cross_entropy(logits, torch.from_numpy(SPLIT.labels))
    expected.backward()
    nn.utils.clip_grad_norm_(plain.parameters(), how.recipe.max_grad_norm)
    torch.optim.SGD(plain.parameters(), lr=1.0).step()
    assert loss == expected.item()
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("batch_size", "times", "expected"),
    [
        pytest.param(32, 0, (32, 64), id="whole"),
        pytest.param(32, 3, (4, 8), id="thrice"),
        pytest.param(7, 1, (4, 32), id="rounded up"),
        pytest.param(1, 3, (1, 8), id="never below one"),
    ],
)
def test_halving(batch_size: int, times: int, expected: tuple[int, int]) -> None:
    found = BatchSizes.halved(batch_size, times)
    assert found == found.on(CPU) == expected
    assert found.on(torch.device("cuda")) == (expected[0], 4 * expected[1])
