"""Greedy selection: fine-tune the full network, then repeatedly drop the layer that hurts least.

Scores are of train rows held out from the fine-tuning, never of the dev set. Each step tries every
remaining layer, without further training.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit, EncodedTask, Padding
from lp_sweep.trials.device import precision_used
from lp_sweep.trials.model.prune import keep_original
from lp_sweep.trials.spec.procedures import Phase, full_layers
from lp_sweep.trials.spec.select import held_out_rows
from lp_sweep.trials.spec.specs import ProfileSpec
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.metrics import score
from lp_sweep.trials.train.steps import Setting, evaluate


class DroppedLayer(NamedTuple):
    """The dropped layer, and the score of the remaining ones on the held-out rows."""

    layer: int
    score: float


def greedy_order(
    model: PreTrainedModel,
    data: EncodedTask,
    padding: Padding,
    device: torch.device,
    spec: ProfileSpec,
    halvings: int,
) -> list[DroppedLayer]:
    """L - 1 steps. Trains the full network `model` in place, with the recipe and seed of `spec`.
    halvings: of the micro-batch."""
    assert spec.recipe is not None
    assert spec.seed is not None
    learned, held_out = _parted(data.train)
    layers = full_layers(model.config.lp_sweep_original_depth)
    setting = Setting(
        definition=spec.task,
        recipe=spec.recipe,
        seed=spec.seed,
        device=device,
        padding=padding,
        precision=precision_used(spec.recipe.precision, device),
        batches=BatchSizes.halved(spec.recipe.batch_size, halvings),
        phases=(Phase(layers, spec.recipe.epochs),),
        label_names=data.label_names,
    )
    part = EncodedTask(
        train=learned,
        dev={"held_out": held_out},
        label_names=data.label_names,
        num_labels=data.num_labels,
        from_cache=data.from_cache,
    )
    finetune(model, part, setting, Saver())
    return _dropped_one_by_one(model, layers, held_out, setting)


def _dropped_one_by_one(
    model: PreTrainedModel, layers: tuple[int, ...], rows: EncodedSplit, setting: Setting
) -> list[DroppedLayer]:
    steps, left = [], list(layers)
    while len(left) > 1:
        scores = {layer: _score_without(model, left, layer, rows, setting) for layer in left}
        # the highest of equal layers goes; nan is the worst score
        best = max(left, key=lambda layer: (np.nan_to_num(scores[layer], nan=-2.0), layer))
        steps.append(DroppedLayer(best, scores[best]))
        left.remove(best)
    return steps


def _score_without(
    model: PreTrainedModel, left: list[int], layer: int, rows: EncodedSplit, setting: Setting
) -> float:
    smaller = copy.deepcopy(model)
    keep_original(smaller, [other for other in left if other != layer])
    logits = evaluate(
        smaller,
        rows,
        setting.padding,
        precision=setting.precision,
        batch_size=setting.batches.evaluation,
        compute=setting.recipe.compute,
    )
    found = score(setting.definition, rows.labels, logits, setting.label_names)
    return found[setting.definition.metric]


def _parted(train: EncodedSplit) -> tuple[EncodedSplit, EncodedSplit]:
    """Rows to learn from and held-out rows, the same for every network."""
    order = np.random.default_rng(0).permutation(len(train))
    count = held_out_rows(len(train))
    return train.take(np.sort(order[count:])), train.take(np.sort(order[:count]))
