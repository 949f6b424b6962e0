"""Micro-batches: the gradient of the whole batch, in several forward passes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit, to_device
from lp_sweep.trials.train.steps import EagerPass, Setting, stream, train_step
from tests.support.fastnets import network, setting, split_of

CLASSES = TaskDefinition(text_columns=("text",))
NUMBERS = replace(CLASSES, kind="regression", metric="pearson")
ROWS = np.arange(13)  # no multiple of any micro-batch below
SPLIT = split_of([2, 9, 4, 7, 3, 8, 5, 6, 2, 9, 3, 7, 4])


def how(micro_batch: int, definition: TaskDefinition = CLASSES, clip: float = 1e9) -> Setting:
    found = setting("reference", micro_batch, definition=definition)
    return replace(found, recipe=replace(found.recipe, max_grad_norm=clip))


def one_step(
    model: PreTrainedModel, rows: EncodedSplit, where: Setting
) -> tuple[float, torch.Tensor]:
    """The loss, and the negative gradient: what plain descent at rate 1 moves the weights by."""
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = train_step(EagerPass(model, where), descent, rows, ROWS, 5)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return float(loss), after - before


@pytest.mark.parametrize("definition", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_the_gradient_is_that_of_the_whole_batch(
    definition: TaskDefinition, tmp_path: Path
) -> None:
    rows, results = SPLIT, []
    if definition is NUMBERS:
        draw = np.random.default_rng(0)
        rows = replace(SPLIT, labels=draw.normal(size=len(ROWS)).astype(np.float32))
    for size in (len(ROWS), 1, 7, 12):
        outputs = 1 if definition is NUMBERS else 2
        # no dropout: the masks of a part are others
        model = network("bert", tmp_path, depth=2, num_labels=outputs).eval()
        results.append(one_step(model, rows, how(size, definition)))
    (whole_loss, whole), *in_parts = results
    assert whole.abs().max() > 1e-3
    for loss, moved in in_parts:
        assert loss == pytest.approx(whole_loss, rel=1e-6)
        torch.testing.assert_close(moved, whole, rtol=0, atol=1e-4 * float(whole.abs().max()))


def test_the_norm_is_clipped_once_for_all_parts(tmp_path: Path) -> None:
    model = network("bert", tmp_path, depth=2).eval()
    _, moved = one_step(model, SPLIT, how(4, clip=0.01))
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_one_part_is_the_plain_step_bit_by_bit(tmp_path: Path) -> None:
    model, plain = (network("bert", tmp_path, depth=2).train() for _ in range(2))
    for module in (*model.modules(), *plain.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.1
    where = how(len(ROWS), clip=1.0)
    loss, _ = one_step(model, SPLIT, where)
    torch.manual_seed(stream(where.seed, 5))
    logits = plain(**to_device(SPLIT, ROWS, where.padding, where.device)).logits
    expected = nn.functional.cross_entropy(logits, torch.from_numpy(SPLIT.labels))
    expected.backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
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
    assert found == found.on(torch.device("cpu")) == expected
    assert found.on(torch.device("cuda")) == (expected[0], 4 * expected[1])
