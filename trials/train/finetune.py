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
from lp_sweep.trials.fast.forward import GRAPHS, compute_used, may_be_cut, task_words
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.prune import keep_original
from lp_sweep.trials.spec.procedures import phase_at
from lp_sweep.trials.train.graphs import GraphPass
from lp_sweep.trials.train.metrics import score
from lp_sweep.trials.train.steps import (
    EagerPass,
    EpochMetric,
    Progress,
    Setting,
    evaluate,
    freeze,
    make_optimizer,
    set_rate,
    train_step,
)
from lp_sweep.trials.train.thresholds import fold, unfold


class Trained(NamedTuple):
    progress: Progress
    logits: dict[str, np.ndarray]  # split -> the last epoch's (rows, classes) float32, in its order
    compute: str  # how the last phase's steps ran, as in a trial's record
    recordings: dict[int, float]  # seconds to record each of its CUDA graphs, by number of bins


class Saver:
    """Saves and restores the state of a training. This one saves nothing;
    `trials.worker.checkpoint` has one that uses the store."""

    @property
    def epoch(self) -> int:
        """The epoch (from 0) of the found state; 0 without one."""
        return 0

    def find(self, halvings: int) -> int:
        """Look for the state of an earlier try; returns its number of halved micro-batches."""
        return halvings

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Restore the found state, if any, and return its progress."""
        return Progress()

    def due(self) -> bool:
        """Whether it is time to save."""
        return False

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
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
) -> Trained:
    """Train `model` in place, on the setting's device, and evaluate it after every epoch.

    It starts with the layers of the first phase and ends with those of the last. `tell`
    is called after each step. Raises DivergedError when an epoch's mean loss is not finite.
    """
    model.to(setting.device)
    with contextlib.ExitStack() as inside:
        if setting.recipe.compute != "reference":
            inside.enter_context(quick_dropout(model))
        if may_be_cut(model, setting.recipe):
            teacher = setting.teaching and setting.teaching.network
            words = task_words(model, data, setting.padding, teacher)
            data, padding = inside.enter_context(words)
            setting = replace(setting, padding=padding)
        run = _Run(model, data, setting, saver, tell)
        logits = run.evaluate() if not setting.epochs else {}
        while run.progress.epoch < setting.epochs:
            run.enter(phase_at(setting.phases, run.progress.epoch))
            run.train()
            logits = run.evaluate()
        return Trained(run.progress, logits, run.learn.compute, run.learn.recordings)


class _Run:
    """A network, its optimiser, and its progress."""

    def __init__(
        self,
        model: PreTrainedModel,
        data: EncodedTask,
        setting: Setting,
        saver: Saver,
        tell: Tell | None,
    ) -> None:
        self.model, self.data, self.setting, self.saver = model, data, setting, saver
        self.tell = tell
        together = setting.rows_together
        # (n,) tokens of each example; a pair counts both texts
        self.lengths = data.train.lengths.reshape(-1, together).sum(axis=1)
        self.steps_per_epoch = math.ceil(len(self.lengths) / setting.recipe.batch_size)
        self.phase = phase_at(setting.phases, saver.epoch)
        untouched = copy.deepcopy(model) if self.phase else None
        self._shrink()
        self.optimizer = self._optimizer()
        self.progress = saver.restore(model, self.optimizer)
        if untouched is not None and not self.progress.step:  # the state could not be restored
            model.__dict__ = untouched.__dict__  # in place: others refer to the network
            self.phase = 0
            self.optimizer = self._optimizer()
        self.learn = self._pass()

    def enter(self, phase: int) -> None:
        """Drop the layers that the next phase lacks; the others keep their AdamW averages."""
        if phase == self.phase:
            return
        self.phase, averages = phase, self.optimizer.state
        self._shrink()
        self.optimizer = self._optimizer()
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                self.optimizer.state[parameter] = averages[parameter]
        self.learn = self._pass()

    def _shrink(self) -> None:
        keep_original(self.model, self.setting.phases[self.phase].kept_layers)

    def _optimizer(self) -> torch.optim.Optimizer:
        freeze(self.model, self.setting.recipe)
        return make_optimizer(self.model, self.setting.recipe, capturable=self._held())

    def _held(self) -> bool:
        """Whether steps are CUDA graphs."""
        used = compute_used(self.model, self.setting.recipe.compute, self.setting.device)
        return used == GRAPHS

    def _pass(self) -> EagerPass:
        """A new one for each phase, since a graph holds the layers of its phase."""
        return (GraphPass if self._held() else EagerPass)(self.model, self.setting)

    def evaluate(self) -> dict[str, np.ndarray]:
        """The logits; records their scores for the epoch that has just ended."""
        begun = time.perf_counter()
        logits = {name: self._logits(split) for name, split in self.data.dev.items()}
        for name, split in self.data.dev.items():
            found = score(
                self.setting.definition,
                split.labels,
                logits[name],
                self.setting.label_names,
            )
            for metric, value in found.items():
                self.progress.epoch_metrics.append(
                    EpochMetric(self.progress.epoch, name, metric, value)
                )
        self.progress.seconds_evaluate += time.perf_counter() - begun
        return logits

    def _logits(self, split: EncodedSplit) -> np.ndarray:
        return evaluate(
            self.model,
            split,
            self.setting.padding,
            precision=self.setting.precision,
            batch_size=self.setting.batches.evaluation,
            compute=self.setting.recipe.compute,
            pooling=self.setting.definition.pooling,
        )

    def train(self) -> None:
        """Do the rest of the epoch's steps. The host waits for the device only at the end and at a
        checkpoint."""
        progress, setting, batch = self.progress, self.setting, self.setting.recipe.batch_size
        unfold(self.model)
        self.model.train()
        whole = kind_of(setting.definition).whole_queries
        order = epoch_order(
            self.lengths,
            seed=setting.seed,
            epoch=progress.epoch,
            batch_size=batch,
            group_by_length=setting.recipe.group_by_length,
            groups=self.data.train.labels[:, 1] if whole else None,
        )
        first = progress.epoch * self.steps_per_epoch
        losses = torch.zeros(self.steps_per_epoch, device=setting.device)
        losses[: progress.step - first] = progress.step_losses[: progress.step - first]
        progress.step_losses = losses
        begun = time.perf_counter()
        total = self.steps_per_epoch * setting.epochs
        while (index := progress.step - first) < self.steps_per_epoch:
            set_rate(self.optimizer, setting.recipe, progress.step, total)
            losses[index] = train_step(
                self.learn,
                self.optimizer,
                self.data.train,
                self._rows(order[index * batch : (index + 1) * batch]),
                progress.step,
            )
            progress.step += 1
            if self.tell is not None:
                last = losses[max(0, index + 1 - _LAST_STEPS) : index + 1]
                self.tell(progress.step, total, partial(_mean, last))
            if self.saver.due():
                begun = self._save(begun)
        if setting.definition.tune_thresholds:
            known = self.data.train.take(np.flatnonzero(self.data.train.labels[:, 0] >= 0))
            fold(self.model, known.labels, self._logits(known), setting.definition.metric)
        rows = np.full(self.steps_per_epoch, batch)
        rows[-1] = len(order) - batch * (self.steps_per_epoch - 1)  # a short last batch
        mean = float(np.average(losses.cpu().numpy(), weights=rows))
        progress.seconds_train += time.perf_counter() - begun
        if not math.isfinite(mean):
            raise DivergedError(
                f"the training loss of epoch {progress.epoch + 1} is {mean} at learning rate "
                f"{setting.recipe.learning_rate:g}. Lower recipe.learning_rate, or use "
                "precision: fp32."
            )
        progress.train_losses.append(mean)

    def _rows(self, examples: np.ndarray) -> np.ndarray:
        """The rows of these examples, in their order."""
        together = self.setting.rows_together
        if together == 1:
            return examples
        return (examples[:, None] * together + np.arange(together)).ravel()

    def _save(self, begun: float) -> float:
        """Save; returns the time from which training counts again."""
        if self.setting.device.type == "cuda":
            torch.cuda.synchronize(self.setting.device)
        self.progress.seconds_train += time.perf_counter() - begun
        self.saver.save(self.model, self.optimizer, self.progress)
        return time.perf_counter()


def _mean(losses: torch.Tensor) -> float:
    return float(losses.mean())
