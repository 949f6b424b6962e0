"""Micro-batches: the gradient of the whole batch, in several forward passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lp_sweep.storage.specs import Recipe, TaskDefinition
from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit, Padding, to_device
from lp_sweep.trials.model.prune import load_pruned
from lp_sweep.trials.train.procedures import Phase
from lp_sweep.trials.train.steps import EagerPass, Setting, stream, train_step
from tests.support.toyworld import save_model

CLASSES = TaskDefinition(text_columns=("text",))
NUMBERS = TaskDefinition(text_columns=("text",), kind="regression", metric="pearson")
ROWS = np.arange(13)  # no multiple of any micro-batch below


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), depth=2)


def split(numbers: bool) -> EncodedSplit:
    """13 rows of 2 to 9 tokens."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(2, 10, size=len(ROWS))
    labels = draw.normal(size=len(ROWS)).astype(np.float32) if numbers else ROWS % 2
    return EncodedSplit(
        tokens=draw.integers(4, 20, size=lengths.sum()).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        token_types=None,
        labels=labels,
    )


def network(folder: Path, numbers: bool) -> nn.Module:
    return load_pruned(
        folder,
        kept_layers=None,
        num_labels=1 if numbers else 2,
        problem_type="regression" if numbers else "single_label_classification",
        seed=0,
    )


def setting(definition: TaskDefinition, micro_batch: int, **recipe: Any) -> Setting:
    return Setting(
        definition=definition,
        recipe=Recipe(batch_size=len(ROWS), **recipe),
        seed=1,
        device=torch.device("cpu"),
        padding=Padding(0, 0, False),
        precision="fp32",
        batches=BatchSizes(micro_batch, 64),
        course=(Phase((1, 2), 1),),
    )


def one_step(model: nn.Module, rows: EncodedSplit, how: Setting) -> tuple[float, torch.Tensor]:
    """The loss, and the negative gradient: what plain descent at rate 1 moves the weights by."""
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    descent = torch.optim.SGD(model.parameters(), lr=1.0)
    loss = train_step(EagerPass(model, how), descent, rows, ROWS, 5)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return float(loss), after - before


@pytest.mark.parametrize("definition", [CLASSES, NUMBERS], ids=["classes", "numbers"])
@pytest.mark.parametrize("micro_batch", [1, 7, 12])
def test_the_gradient_is_that_of_the_whole_batch(
    folder: Path, definition: TaskDefinition, micro_batch: int
) -> None:
    numbers = definition is NUMBERS
    rows = split(numbers)
    results = []
    for size in (len(ROWS), micro_batch):
        model = network(folder, numbers).eval()  # no dropout: the masks of a part are others
        results.append(one_step(model, rows, setting(definition, size, max_grad_norm=1e9)))
    (whole_loss, whole), (loss, parts) = results
    assert whole.abs().max() > 1e-3
    assert loss == pytest.approx(whole_loss, abs=1e-6)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))


def test_the_norm_is_clipped_once_for_all_parts(folder: Path) -> None:
    for size in (len(ROWS), 4):
        model = network(folder, False).eval()
        _, moved = one_step(model, split(False), setting(CLASSES, size, max_grad_norm=0.01))
        assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_one_part_is_the_plain_step_bit_by_bit(folder: Path) -> None:
    rows, how = split(False), setting(CLASSES, len(ROWS))
    model, plain = network(folder, False).train(), network(folder, False).train()
    loss, _ = one_step(model, rows, how)
    torch.manual_seed(stream(how.seed, 5))
    logits = plain(**to_device(rows, ROWS, how.padding, how.device)).logits
    expected = nn.functional.cross_entropy(logits, torch.from_numpy(rows.labels))
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
    assert found == found.on(torch.device("cpu")) == expected
    assert found.on(torch.device("cuda")) == (expected[0], 4 * expected[1])
