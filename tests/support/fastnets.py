"""Small networks and texts to compare `compute: fast` and `graphs` with the reference on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit, EncodedTask, Padding
from lp_sweep.trials.fast import forward as forward_module
from lp_sweep.trials.fast import tokens as tokens_module
from lp_sweep.trials.fast.forward import forward
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition
from lp_sweep.trials.train.graphs import GraphPass
from lp_sweep.trials.train.steps import EagerPass, Setting, make_optimizer, train_step
from tests.support import networks

CPU = torch.device("cpu")
PAD = 1

RANK = TaskDefinition(text_columns=("q", "p"), kind="ranking", metric="ndcg@10")
PAIR = TaskDefinition(text_columns=("a", "b"), kind="embedding", pooling="mean")
# by kind or loss: a definition, the labels of four rows, and the network's outputs
KINDS: dict[str, tuple[TaskDefinition, np.ndarray, int]] = {
    "regression": (
        TaskDefinition(text_columns=("t",), kind="regression"),
        np.array([0.5, 0.5, 2.0, 2.0], np.float32),
        1,
    ),
    "multi_label": (
        TaskDefinition(text_columns=("t",), kind="multi_label"),
        np.array([[1, 0], [0, 0], [1, 1], [0, 1]], np.int8),
        2,
    ),
    # queries 0 and 1, not one after the other
    "bce": (RANK, np.array([[0, 0], [2, 1], [1, 0], [0, 1]], np.float32), 1),
}
KINDS["listwise"] = (replace(RANK, loss="listwise"), *KINDS["bce"][1:])


def split_of(lengths: list[int], seed: int = 0) -> EncodedSplit:
    draw = np.random.default_rng(seed)
    count = sum(lengths)
    return EncodedSplit(
        tokens=draw.integers(4, 30, count).astype(np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        token_types=None,
        labels=draw.integers(0, 2, len(lengths)),
    )


def encoded(train: EncodedSplit) -> EncodedTask:
    """With three dev rows."""
    return EncodedTask(
        train=train,
        dev={"validation": split_of([3, 8, 5], seed=4)},
        label_names=("a", "b"),
        num_labels=2,
        from_cache=False,
    )


def of_two_texts(split: EncodedSplit) -> EncodedSplit:
    types = (np.arange(len(split.tokens)) // 3 % 2).astype(np.uint8)
    return replace(split, token_types=types)


def spelling_the_padding(split: EncodedSplit) -> EncodedSplit:
    """With its token in every text of `split_of([3, 9, 5])`."""
    tokens = split.tokens.copy()
    tokens[[1, 6, 11, 13]] = PAD
    return replace(split, tokens=tokens)


def network(name: str, depth: int = 3, **settings: Any) -> PreTrainedModel:
    """One without dropout, in evaluation."""
    return networks.network(name, depth, **settings, seed=0)


def both(model: PreTrainedModel, split: EncodedSplit, rows: np.ndarray) -> tuple[Any, Any]:
    """Logits (B, C), fast and plain. The plain ones differ from row to row: where an answer does
    not hang on its text, no difference in how the text is read can show."""
    padding = padding_of(model.config.model_type)
    fast = forward(model, split, rows, padding, CPU, "fast")
    plain = forward(model, split, rows, padding, CPU, "reference")
    if len(rows) > 1:
        assert plain.std(0).max() > 0.1, "this network gives every row the same answer"
    return fast, plain


def assert_same_logits(model: PreTrainedModel, split: EncodedSplit) -> None:
    fast, plain = both(model, split, np.arange(len(split)))
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-5)


def assert_same_gradients(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    """Each within 1e-4 of its largest number. That of a bias of keys is truly 0 (it adds the same
    to all scores that a token gives): where a gradient is small beside the largest of all, this
    one counts."""
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for parameter, grad in expected.items():
        same = found.get(parameter, torch.zeros_like(grad))
        size = max(float(grad.abs().max()), 1e-2 * largest)
        torch.testing.assert_close(same, grad, atol=1e-4 * size, rtol=0, msg=parameter)


def set_overhead(monkeypatch: pytest.MonkeyPatch, overhead: int) -> None:
    """Sets the cost of one more group: toy rows are so short that several would never pay off."""
    for module in (tokens_module, forward_module):
        monkeypatch.setattr(module, "_GROUP", overhead)


def assert_within_1e5(found: np.ndarray, expected: np.ndarray) -> None:
    """The error is relative for numbers above 1, absolute below."""
    error = np.abs(found - expected) / np.maximum(np.abs(expected), 1)
    assert error.max() < 1e-5, f"{found}\nis not\n{expected}"


def with_dropout(model: PreTrainedModel, share: float) -> PreTrainedModel:
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = share
    return model


def padding_of(model_type: str = "") -> Padding:
    """XLNet's is on the left."""
    return Padding(PAD, 0, model_type == "xlnet")


def setting(compute: Any, micro_batch: int = 4, **how: Any) -> Setting:
    usual: dict[str, Any] = {
        "definition": TaskDefinition(text_columns=("text",)),
        "recipe": Recipe(
            learning_rate=1e-4, batch_size=4, max_length=20, epochs=1, compute=compute
        ),
        "seed": 1,
        "device": CPU,
        "padding": padding_of(),
        "precision": "fp32",
        "batches": BatchSizes(micro_batch, 64),
        "phases": (Phase((1, 2, 3), 1),),
    }
    return Setting(**usual | how)


def one_pass(learn: EagerPass, split: EncodedSplit, rows: np.ndarray) -> tuple[float, Any]:
    """The loss, and its gradient by each parameter."""
    learn.model.zero_grad()
    loss = learn.loss(learn.on_device(split, rows))
    loss.backward()  # type: ignore[no-untyped-call]
    found = learn.model.named_parameters()
    return float(loss.detach()), {n: p.grad.clone() for n, p in found if p.grad is not None}


# their true gradient is 0, and AdamW makes full steps of the rounding
KEY_BIASES = ("key.bias", "k_lin.bias")


def assert_graphs_learn_alike(name: str, device: torch.device = CPU, recorder: Any = None) -> None:
    """Twenty steps of `graphs` and of the reference, with rows of many lengths, and batches that
    are not full. Later ones drift apart by rounding: RoBERTa's losses by 3e-3 at step 36."""
    draw = np.random.default_rng(3)
    split = split_of([int(n) for n in draw.integers(1, 20, 32)])
    batches = [draw.permutation(32)[: 3 if step % 7 == 6 else 4] for step in range(20)]
    losses, weights = [], []
    for compute in ("graphs", "reference"):
        model = network(name).train().to(device)
        how = setting(compute, device=device)
        learn = GraphPass(model, how, recorder) if compute == "graphs" else EagerPass(model, how)
        capturable = learn.compute == "graphs" and device.type == "cuda"
        optimizer = make_optimizer(model, how.recipe, capturable=capturable)
        steps = enumerate(batches)
        found = [float(train_step(learn, optimizer, split, rows, step)) for step, rows in steps]
        losses.append(torch.tensor(found))
        own = [p.detach() for n, p in model.named_parameters() if not n.endswith(KEY_BIASES)]
        weights.append(torch.cat([values.flatten() for values in own]))
        assert compute != "graphs" or {2, 3} <= learn.recordings.keys(), "no graph was recorded"
    torch.testing.assert_close(losses[0], losses[1], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(weights[0], weights[1], atol=1e-3, rtol=0)


def assert_learns_alike(model: PreTrainedModel, split: EncodedSplit, **how: Any) -> Any:
    """The gradients of four rows, with every compute."""
    rows = np.array([2, 0, 3, 1])
    loss, expected = one_pass(EagerPass(model, setting("reference", **how)), split, rows)
    for kind, compute in ((EagerPass, "fast"), (GraphPass, "graphs")):
        other, found = one_pass(kind(model, setting(compute, **how)), split, rows)
        assert other == pytest.approx(loss, abs=1e-5)
        assert_same_gradients(found, expected)
    return expected
