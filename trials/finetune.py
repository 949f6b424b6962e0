"""The training loop: AdamW, linear decay, clipping, an evaluation after every epoch.

Data order, dropout and head initialisation do not depend on a network's depth: rows are permuted by
(seed, epoch) alone, and the random stream starts anew at each step from (seed, step), so that two
depths see the same masks as far down as they share layers. It imports no Ray and writes no file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lp_sweep.storage.errors import DeviceOutOfMemoryError, DivergedError
from lp_sweep.storage.identity import Recipe, TaskDefinition
from lp_sweep.trials.device import autocast
from lp_sweep.trials.encode import EncodedSplit, EncodedTask
from lp_sweep.trials.metrics import score

EVALUATION_BATCH = 64


class Padding(NamedTuple):
    """How a tokenizer fills a batch up to its longest row."""

    token_id: int
    type_id: int
    left: bool

    @classmethod
    def of(cls, tokenizer: Any) -> Padding:
        return cls(
            tokenizer.pad_token_id or 0,
            tokenizer.pad_token_type_id,
            tokenizer.padding_side == "left",
        )


class EpochMetric(NamedTuple):
    epoch: int  # from 1
    split: str
    metric: str
    value: float  # a fraction, not points


class Trained(NamedTuple):
    """What came of fine-tuning: every metric at every epoch, and the last epoch's logits."""

    epoch_metrics: list[EpochMetric]
    train_losses: list[float]  # mean over the steps of each epoch
    logits: dict[str, np.ndarray]  # split -> (rows, classes) float32, in the split's order
    steps: int
    seconds_train: float
    seconds_evaluate: float


def finetune(
    model: nn.Module,
    data: EncodedTask,
    definition: TaskDefinition,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device,
    padding: Padding,
    precision: str,
) -> Trained:
    """Train `model` in place, on `device`, and evaluate it after every epoch.

    Raises DivergedError when an epoch's mean loss is not finite, DeviceOutOfMemoryError when a
    batch does not fit.
    """
    with _memory_errors(recipe.batch_size):
        model.to(device)
    optimizer = _optimizer(model, recipe)
    steps_per_epoch = math.ceil(len(data.train) / recipe.batch_size)
    total = steps_per_epoch * recipe.epochs
    metrics: list[EpochMetric] = []
    losses: list[float] = []
    logits: dict[str, np.ndarray] = {}
    seconds_train = seconds_evaluate = 0.0
    for epoch in range(recipe.epochs):
        begun = time.perf_counter()
        with _memory_errors(recipe.batch_size):
            losses.append(
                _train_epoch(
                    model,
                    optimizer,
                    data.train,
                    definition,
                    recipe,
                    _Epoch(epoch, steps_per_epoch, total, seed),
                    padding,
                    precision,
                )
            )
        trained = time.perf_counter()
        with _memory_errors(EVALUATION_BATCH):
            logits = {
                name: evaluate(model, split, padding, precision=precision)
                for name, split in data.dev.items()
            }
        for name, split in data.dev.items():
            for metric, value in score(definition, split.labels, logits[name]).items():
                metrics.append(EpochMetric(epoch + 1, name, metric, value))
        seconds_train += trained - begun
        seconds_evaluate += time.perf_counter() - trained
    return Trained(metrics, losses, logits, total, seconds_train, seconds_evaluate)


class _Epoch(NamedTuple):
    number: int  # from 0
    steps: int
    total_steps: int
    seed: int


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: EncodedSplit,
    definition: TaskDefinition,
    recipe: Recipe,
    epoch: _Epoch,
    padding: Padding,
    precision: str,
) -> float:
    """One pass over the rows; the mean loss of its steps. The host waits for the device only at
    the end."""
    model.train()
    device = next(model.parameters()).device
    order = np.random.default_rng((epoch.seed, epoch.number)).permutation(len(split))
    losses = torch.zeros(epoch.steps, device=device)
    for index in range(epoch.steps):
        step = epoch.number * epoch.steps + index
        rows = order[index * recipe.batch_size : (index + 1) * recipe.batch_size]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * decay(recipe, step, epoch.total_steps)
        torch.manual_seed(_stream(epoch.seed, step))
        with autocast(precision, device):
            logits = model(**to_device(split, rows, padding, device)).logits
        loss = _loss(logits.float(), split.labels[rows], definition)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses[index] = loss.detach()
    mean = float(losses.mean())
    if not math.isfinite(mean):
        raise DivergedError(
            f"the training loss of epoch {epoch.number + 1} is {mean} at learning rate "
            f"{recipe.learning_rate:g}. Lower recipe.learning_rate, or use precision: fp32."
        )
    return mean


def decay(recipe: Recipe, step: int, total: int) -> float:
    """Factor on the learning rate at `step` (from 0): warm-up, then linear to 0 or constant."""
    warmup = math.ceil(recipe.warmup_ratio * total)
    if step < warmup:
        return step / warmup
    if recipe.schedule == "constant":
        return 1.0
    return (total - step) / max(1, total - warmup)


def evaluate(
    model: nn.Module, split: EncodedSplit, padding: Padding, *, precision: str
) -> np.ndarray:
    """Logits (rows, classes) float32 in the split's order; computed sorted by length."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(split.lengths, kind="stable")[::-1]
    parts = []
    with torch.inference_mode(), autocast(precision, device):
        for rows in _chunks(order, EVALUATION_BATCH):
            parts.append(model(**to_device(split, rows, padding, device)).logits.float())
    values = torch.cat(parts).cpu().numpy()
    result = np.empty_like(values)
    result[order] = values
    return result


def to_device(
    split: EncodedSplit, rows: np.ndarray, padding: Padding, device: torch.device
) -> dict[str, torch.Tensor]:
    """The rows padded to their own longest: each (B, T) int64 on `device`."""
    batch = split.batch(
        rows, pad_id=padding.token_id, pad_left=padding.left, pad_type_id=padding.type_id
    )
    return {
        name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in batch.items()
    }


def _chunks(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _stream(seed: int, step: int) -> int:
    """A 63-bit seed for one step's dropout, the same for every depth."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def _loss(logits: torch.Tensor, labels: np.ndarray, definition: TaskDefinition) -> torch.Tensor:
    target = torch.from_numpy(np.asarray(labels)).to(logits.device)
    if definition.kind == "regression":
        return nn.functional.mse_loss(logits.squeeze(-1), target.float())
    return nn.functional.cross_entropy(logits, target.long())


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW; weight decay is not for biases and norms."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for module in model.modules():
        norm = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            (plain if norm or name == "bias" else decayed).append(parameter)
    seen: set[int] = set()  # tied weights stand once
    groups = [
        {
            "params": [p for p in parameters if not (id(p) in seen or seen.add(id(p)))],  # type: ignore[func-returns-value]
            "weight_decay": weight_decay,
        }
        for parameters, weight_decay in ((decayed, recipe.weight_decay), (plain, 0.0))
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate,
        betas=(recipe.adam_beta1, recipe.adam_beta2),
        eps=recipe.adam_epsilon,
        fused=True,
    )


class _memory_errors:
    """Turns the device's out-of-memory into our typed error."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            raise DeviceOutOfMemoryError(
                f"a batch of {self.batch_size} does not fit: {str(error).splitlines()[0]} "
                "Lower recipe.batch_size or recipe.max_length."
            ) from error
