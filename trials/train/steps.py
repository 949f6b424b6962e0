"""One optimiser step (setting, optimiser, loss, forward and backward pass), and an evaluation.

A step makes one pass per micro-batch of the recipe's batch. The gradient is that of the whole
batch's mean loss, whatever the micro-batch. The random stream is seeded at each step from
(seed, step) and continues through the micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import EVALUATION_BATCH, BatchSizes, EncodedSplit, Padding, chunks
from lp_sweep.trials.device import autocast, onto
from lp_sweep.trials.fast.forward import compute_used, forward
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import SILENT
from lp_sweep.trials.model.families import embedding_path, find_layers, original_layers
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.spec.specs import Compute, Recipe, TaskDefinition
from lp_sweep.trials.train.distill import Teaching, hidden_loss, student_loss


class EpochMetric(NamedTuple):
    epoch: int  # from 1
    split: str
    metric: str
    value: float  # a fraction, not points


@dataclass(slots=True, kw_only=True)
class TrainingProgress:
    """The state of a training, updated as it runs."""

    step: int = 0  # optimiser steps done, over all epochs
    train_losses: list[float] = field(default_factory=list)  # mean over each epoch's rows
    epoch_metrics: list[EpochMetric] = field(default_factory=list)
    step_losses: torch.Tensor = field(default_factory=lambda: torch.zeros(0))  # of this epoch
    seconds_train: float = 0.0
    seconds_evaluate: float = 0.0
    seconds_before: float = 0.0  # of earlier tries, with loading and writing
    resumed_from_step: int = 0

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return len(self.train_losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The recipe and the device's settings for it."""

    definition: TaskDefinition
    recipe: Recipe
    seed: int
    device: torch.device
    padding: Padding
    precision: str  # fp32 or bf16
    batches: BatchSizes
    phases: tuple[Phase, ...]
    label_names: tuple[str, ...] = ()
    teaching: Teaching | None = None
    loss: str = ""  # one of the kind's `losses`; empty: its default
    graphs: bool = True  # False: no CUDA graphs, since they failed in an earlier try

    @property
    def rows_together(self) -> int:
        """Rows of one example: 2 for a pair."""
        return kind_of(self.definition).rows_together(self.loss)

    @property
    def compares_batch(self) -> bool:
        """Whether the loss compares the rows of a batch, so all take one pass."""
        return kind_of(self.definition).compares_batch(self.loss)

    @property
    def epochs(self) -> int:
        """The sum over all phases."""
        return sum(phase.epochs for phase in self.phases)


def freeze(model: PreTrainedModel, recipe: Recipe) -> None:
    """Freeze the recipe's layers (by original index) and embeddings; everything else learns."""
    frozen = set(recipe.freeze_layers)
    model.requires_grad_(True)
    if recipe.freeze_embeddings:
        model.get_submodule(embedding_path(model)).requires_grad_(False)
    for original, layer in zip(
        original_layers(model.config), find_layers(model).layers, strict=True
    ):
        if original in frozen:
            layer.requires_grad_(False)


def make_optimizer(
    model: nn.Module, recipe: Recipe, *, capturable: bool = False
) -> torch.optim.AdamW:
    """AdamW over the parameters that learn, without weight decay for biases and norms.
    `capturable`: a CUDA graph can hold its step, which reads the learning rate from the device."""
    decayed: dict[nn.Parameter, None] = {}  # an ordered set: tied weights are listed once
    plain: dict[nn.Parameter, None] = {}
    for module in model.modules():
        norm = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                (plain if norm or name == "bias" else decayed)[parameter] = None
    undecayed = [parameter for parameter in plain if parameter not in decayed]
    groups: list[dict[str, Any]] = [
        {"params": parameters, "weight_decay": weight_decay}
        for parameters, weight_decay in (([*decayed], recipe.weight_decay), (undecayed, 0.0))
        if parameters
    ]
    rate: float | torch.Tensor = recipe.learning_rate
    if capturable and groups:
        rate = torch.tensor(rate, device=groups[0]["params"][0].device)
    return torch.optim.AdamW(
        groups,
        lr=rate,
        betas=(recipe.adam_beta1, recipe.adam_beta2),
        eps=recipe.adam_epsilon,
        fused=True,
        capturable=capturable,
    )


def set_rate(optimizer: torch.optim.Optimizer, recipe: Recipe, step: int, total: int) -> None:
    """Set the learning rate of `step` (from 0) of `total`."""
    rate = recipe.learning_rate * decay(recipe, step, total)
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def decay(recipe: Recipe, step: int, total: int) -> float:
    """Factor on the learning rate at `step` (from 0): warm-up, then linear to 0 or constant."""
    warmup = math.ceil(recipe.warmup_ratio * total)
    if step < warmup:
        return step / warmup
    if recipe.schedule == "constant":
        return 1.0
    return (total - step) / max(1, total - warmup)


class DeviceRows(NamedTuple):
    """Rows of a batch on the device. `ahead` passes them through a network: it returns (B, C), and
    adds the states after each layer to a list."""

    target: torch.Tensor  # (B, ...) labels
    taught: torch.Tensor | None  # (B, C), the teacher's logits
    ahead: Callable[[nn.Module, list[torch.Tensor] | None], torch.Tensor]


class EagerPass:
    """Passes of rows through a network, operation by operation, in any shape."""

    def __init__(self, model: PreTrainedModel, setting: Setting) -> None:
        self.model, self.setting = model, setting
        self.recordings: dict[int, float] = {}  # seconds of each CUDA graph's, by number of bins

    @property
    def compute(self) -> str:
        """How passes run, as in a trial's record."""
        return compute_used(self.model, self.setting.recipe.compute, self.setting.device)

    def on_device(self, split: EncodedSplit, rows: np.ndarray) -> DeviceRows:
        setting, teaching = self.setting, self.setting.teaching
        where = (setting.padding, setting.device, setting.recipe.compute)
        pooling = setting.definition.pooling
        return DeviceRows(
            onto(split.target(rows), setting.device),
            None if teaching is None else onto(teaching.logits[rows], setting.device),
            lambda model, states: forward(model, split, rows, *where, states, pooling=pooling),
        )

    def loss(self, rows: DeviceRows) -> torch.Tensor:
        """The mean loss of the rows, a scalar on the device, with its graph for a backward pass."""
        setting, teaching = self.setting, self.setting.teaching
        kind = kind_of(setting.definition)
        network = teaching.network if teaching else None
        pairs = teaching.pairs(self.model) if teaching and network is not None else []
        own: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        with autocast(setting.precision, setting.device):
            logits = rows.ahead(self.model, own if pairs else None)
            if network is not None and pairs:
                with torch.no_grad():
                    rows.ahead(network, others)
        if setting.loss:
            return kind.named_loss(setting.loss, logits.float(), rows.target, rows.taught)
        if teaching is None or rows.taught is None:
            return kind.mean_loss(logits.float(), rows.target)
        settings = teaching.settings
        loss = student_loss(logits, rows.target, setting.definition, settings, rows.taught)
        if pairs:
            loss = loss + hidden_loss(own, others, pairs) * settings.hidden_weight
        return loss

    def step_at_once(
        self, optimizer: torch.optim.Optimizer, split: EncodedSplit, rows: np.ndarray
    ) -> torch.Tensor | None:
        """The whole step with its update, if a subclass can; returns the mean loss, valid until
        the next step."""
        return None


def train_step(
    learn: EagerPass,
    optimizer: torch.optim.Optimizer,
    split: EncodedSplit,
    rows: np.ndarray,
    step: int,
) -> torch.Tensor:
    """Learns from a whole batch; returns its mean loss, a scalar on the device. One pass per
    micro-batch, or one in all if the loss compares the rows of a batch.

    A micro-batch's loss is the mean over its own answers (rows, or words). Times its share of the
    batch's answers the losses add up to the mean over the batch, and so do their gradients, in
    whatever parts the batch is taken. A part without an answer has a share of 0."""
    setting = learn.setting
    # torch.manual_seed formats a stack trace for each unused kind of device: 0.1 ms
    seeds = torch.default_generator if setting.device.type == "cpu" else torch
    seeds.manual_seed(stream(setting.seed, step))
    at_once = learn.step_at_once(optimizer, split, rows)
    if at_once is not None:
        return at_once
    size = len(rows) if setting.compares_batch else setting.batches.training
    total = torch.zeros((), device=setting.device)
    for part in chunks(rows, size):
        share = split.answers(part) / max(1, split.answers(rows))
        loss = learn.loss(learn.on_device(split, part)) * share  # times 1.0: the same bits
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.detach()
    update(learn.model, optimizer, setting.recipe)
    return total


def update(model: nn.Module, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
    """Clip the gradient, update the weights, and release the gradient."""
    nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def stream(seed: int, step: int) -> int:
    """A 63-bit seed for one step's dropout, the same for every depth."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def _of_words(split: EncodedSplit, order: np.ndarray, parts: Sequence[torch.Tensor]) -> np.ndarray:
    """(rows, W, C) in the split's order. parts: logits (B, V, C) of rows in `order`."""
    words = split.words
    assert words is not None
    result = np.full((*split.labels.shape, parts[0].shape[-1]), SILENT, np.float32)
    begin = 0
    for part in parts:
        rows = order[begin : begin + len(part)]
        row, word = np.nonzero(words[rows, : part.shape[1]] >= 0)
        result[rows[row], word] = part.cpu().numpy()[row, word]
        begin += len(part)
    return result


def evaluate(
    model: nn.Module,
    split: EncodedSplit,
    padding: Padding,
    *,
    precision: str,
    batch_size: int = EVALUATION_BATCH,
    compute: Compute = "reference",
    pooling: str = "",
) -> np.ndarray:
    """Logits (rows, classes), or with `pooling` embeddings (rows, H), float32 in the split's order.
    For words (rows, W, classes), `SILENT` for a word without a token."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(split.lengths, kind="stable")[::-1]
    parts = []
    with torch.inference_mode(), autocast(precision, device):
        for rows in chunks(order, batch_size):
            found = forward(model, split, rows, padding, device, compute, pooling=pooling)
            parts.append(found.float())
    if split.words is not None:
        return _of_words(split, order, parts)
    values = torch.cat(parts).cpu().numpy()
    result = np.empty_like(values)
    result[order] = values
    return result
