"""The training loop: AdamW, linear decay, clipping, an evaluation after every epoch; layers may be
dropped between epochs.

Data order, dropout and head initialisation do not depend on a network's depth: rows are permuted by
(seed, epoch), and the random stream is seeded at each step from (seed, step), so two depths draw
the same masks in the layers they share. For the same reason a training resumed from a checkpoint
equals an uninterrupted one. Imports no Ray; writes no file but a checkpoint.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import DivergedError
from lp_sweep.trials.data.batches import EncodedSplit, EncodedTask, epoch_order
from lp_sweep.trials.fast.attention import quick_dropout
from lp_sweep.trials.fast.forward import may_be_cut, task_words, uses_graphs
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.prune import keep_original
from lp_sweep.trials.spec.procedures import phase_at
from lp_sweep.trials.train.graphs import GraphPass
from lp_sweep.trials.train.metrics import score
from lp_sweep.trials.train.steps import (
    EagerPass,
    EpochMetric,
    Setting,
    TrainingProgress,
    evaluate,
    freeze,
    make_optimizer,
    set_rate,
    train_step,
)
from lp_sweep.trials.train.thresholds import fold, unfold


class Training(NamedTuple):
    """The result of a training."""

    progress: TrainingProgress
    logits: dict[str, np.ndarray]  # split -> the last epoch's (rows, classes) float32, in its order
    compute: str  # how the last phase's steps ran, as in a trial's record
    recordings: dict[int, float]  # seconds to record each of its CUDA graphs, by number of bins


class Saver:
    """Saves and restores the state of a training. This one saves nothing;
    `trials.worker.checkpoint` has one that uses the store."""

    @property
    def halvings(self) -> int:
        """How often the micro-batch of the found state was halved; 0 without one."""
        return 0

    @property
    def epoch(self) -> int:
        """The epoch (from 0) of the found state; 0 without one."""
        return 0

    def begin(self, halvings: int) -> None:
        """Begins a try. A found state of other micro-batches is not used."""

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainingProgress:
        """Restores the found state, if any, and returns its progress."""
        return TrainingProgress()

    def due(self) -> bool:
        """Whether it is time to save."""
        return False

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingProgress
    ) -> None: ...

    def close(self) -> None: ...


# called with the steps done, all steps, and a function for the mean loss of the last steps
Tell = Callable[[int, int, Callable[[], float]], None]
_LAST_STEPS = 20


def finetune(
    model: PreTrainedModel,
    data: EncodedTask,
    setting: Setting,
    saver: Saver,
    tell: Tell | None = None,
) -> Training:
    """Trains `model` in place, on the setting's device, and evaluates it after every epoch.

    It starts with the layers of the first phase and ends with those of the last. `tell`
    is called after each step. Raises DivergedError when an epoch's mean loss is not finite.
    """
    model.to(setting.device)
    batch = setting.recipe.batch_size
    with contextlib.ExitStack() as inside:
        if setting.recipe.compute != "reference":
            inside.enter_context(quick_dropout(model))
        if may_be_cut(model, setting.recipe):
            teacher = setting.teaching and setting.teaching.network
            words = task_words(model, data, setting.padding, teacher)
            data, padding = inside.enter_context(words)
            setting = replace(setting, padding=padding)
        run = _Run(model, setting, saver)
        progress = run.progress
        logits = {} if setting.epochs else _evaluate(model, data, setting, progress)
        while progress.epoch < setting.epochs:
            run.enter(phase_at(setting.phases, progress.epoch))
            unfold(model)
            model.train()
            order = _epoch_rows(data.train, setting, progress.epoch)
            steps = math.ceil(len(order) / batch)
            first, total = progress.epoch * steps, steps * setting.epochs
            # The losses stay on the device: the host waits for it only at the end of an epoch and
            # at a checkpoint. After a resumption the epoch goes on in the middle.
            losses = torch.zeros(steps, device=setting.device)
            losses[: progress.step - first] = progress.step_losses[: progress.step - first]
            progress.step_losses = losses
            begun = time.perf_counter()
            while (index := progress.step - first) < steps:
                set_rate(run.optimizer, setting.recipe, progress.step, total)
                rows = order[index * batch : (index + 1) * batch].ravel()
                losses[index] = train_step(
                    run.learn, run.optimizer, data.train, rows, progress.step
                )
                progress.step += 1
                if tell is not None:
                    last = losses[max(0, index + 1 - _LAST_STEPS) : index + 1]
                    tell(progress.step, total, partial(_mean, last))
                if saver.due():
                    progress.seconds_train += _since(begun, setting.device)
                    saver.save(model, run.optimizer, progress)
                    begun = time.perf_counter()
            if setting.definition.tune_thresholds:
                known = data.train.take(np.flatnonzero(data.train.labels[:, 0] >= 0))
                logits_known = answers(model, known, setting)
                fold(model, known.labels, logits_known, setting.definition.metric)
            _end_epoch(progress, setting, len(order))
            progress.seconds_train += time.perf_counter() - begun
            logits = _evaluate(model, data, setting, progress)
        return Training(progress, logits, run.learn.compute, run.learn.recordings)


class _Run:
    """A network, and what depends on its layers: the optimiser and the way that steps run."""

    def __init__(self, model: PreTrainedModel, setting: Setting, saver: Saver) -> None:
        self.model, self.setting = model, setting
        phase = phase_at(setting.phases, saver.epoch)
        untouched = copy.deepcopy(model) if phase else None
        self._begin(phase)
        self.progress = saver.restore(model, self.optimizer)
        if untouched is not None and not self.progress.step:  # the state could not be restored
            model.__dict__ = untouched.__dict__  # in place: others refer to the network
            self._begin(0)

    def enter(self, phase: int) -> None:
        """Drops the layers that the next phase lacks; the others keep their AdamW averages."""
        if phase == self.phase:
            return
        averages = self.optimizer.state
        self._begin(phase)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                self.optimizer.state[parameter] = averages[parameter]

    def _begin(self, phase: int) -> None:
        model, setting = self.model, self.setting
        graphs = uses_graphs(model, setting.recipe, setting.device)
        self.phase = phase
        keep_original(model, setting.phases[phase].kept_layers)
        freeze(model, setting.recipe)
        self.optimizer = make_optimizer(model, setting.recipe, capturable=graphs)
        # a new one for each phase, since a graph holds the layers of its phase
        self.learn: EagerPass = (GraphPass if graphs else EagerPass)(model, setting)


def _epoch_rows(train: EncodedSplit, setting: Setting, epoch: int) -> np.ndarray:
    """(n, together) the rows of each example, in the order of the epoch."""
    together = setting.rows_together
    examples = epoch_order(
        train.lengths.reshape(-1, together).sum(axis=1),  # a pair counts both texts
        seed=setting.seed,
        epoch=epoch,
        batch_size=setting.recipe.batch_size,
        group_by_length=setting.recipe.group_by_length,
        groups=train.labels[:, 1] if kind_of(setting.definition).whole_queries else None,
    )
    return examples[:, None] * together + np.arange(together)


def _end_epoch(progress: TrainingProgress, setting: Setting, examples: int) -> None:
    """Notes the epoch's mean loss over its examples: the last batch may be short."""
    batch, losses = setting.recipe.batch_size, progress.step_losses.cpu().numpy()
    counts = np.full(len(losses), batch)
    counts[-1] = examples - batch * (len(losses) - 1)
    mean = float(np.average(losses, weights=counts))
    if not math.isfinite(mean):
        raise DivergedError(
            f"the training loss of epoch {progress.epoch + 1} is {mean} at learning rate "
            f"{setting.recipe.learning_rate:g}. Lower recipe.learning_rate"
            f"{', or use precision: fp32' * (setting.precision != 'fp32')}."
        )
    progress.train_losses.append(mean)


def _evaluate(
    model: PreTrainedModel, data: EncodedTask, setting: Setting, progress: TrainingProgress
) -> dict[str, np.ndarray]:
    """The logits; notes their scores for the epoch that has just ended."""
    begun = time.perf_counter()
    logits = {name: answers(model, split, setting) for name, split in data.dev.items()}
    progress.epoch_metrics += [
        EpochMetric(progress.epoch, name, metric, value)
        for name, split in data.dev.items()
        for metric, value in score(
            setting.definition, split.labels, logits[name], setting.label_names
        ).items()
    ]
    progress.seconds_evaluate += time.perf_counter() - begun
    return logits


def answers(model: PreTrainedModel, split: EncodedSplit, setting: Setting) -> np.ndarray:
    """As `evaluate`, in the way that the setting trains."""
    return evaluate(
        model,
        split,
        setting.padding,
        precision=setting.precision,
        batch_size=setting.batches.evaluation,
        compute=setting.recipe.compute,
        pooling=setting.definition.pooling,
    )


def _since(begun: float, device: torch.device) -> float:
    """Seconds, after all work on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def _mean(losses: torch.Tensor) -> float:
    return float(losses.mean())
