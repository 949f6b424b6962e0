"""Greedy selection: fine-tune the full network, then repeatedly drop the layer that hurts least.

Scores are of train rows held out from the fine-tuning, never of the dev set. Each step tries every
remaining layer, without further training. An embedding needs no training and no label: the score of
a smaller network is how near its vectors of the held-out texts are to those of the full one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import BatchSizes, EncodedSplit
from lp_sweep.trials.device import precision_used
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.measures.subject import LayerValues, NamedValue, Subject, finite
from lp_sweep.trials.model.prune import keep_original
from lp_sweep.trials.spec.procedures import Phase, full_layers
from lp_sweep.trials.spec.select import held_out_rows
from lp_sweep.trials.spec.specs import ProfileSpec, Recipe
from lp_sweep.trials.train.finetune import Saver, answers, finetune
from lp_sweep.trials.train.metrics import score
from lp_sweep.trials.train.steps import Setting


def greedy(subject: Subject, spec: ProfileSpec) -> LayerValues:
    """Trains the full network in place, with the recipe and seed of `spec`. `layers` holds the step
    at which each layer went, from 1; the last one stays: 0."""
    assert spec.recipe is not None
    model, data = subject.model, subject.encoded
    learned, held_out = parted(data.train)
    setting = setting_of(subject, spec, spec.recipe)
    layers = setting.phases[0].kept_layers
    kind, whole = kind_of(spec.task), None
    if kind.embeds:
        whole = torch.from_numpy(answers(model, held_out, setting))
    else:
        finetune(model, replace(data, train=learned, dev={"held_out": held_out}), setting, Saver())

    def score_of(smaller: PreTrainedModel) -> float:
        found = answers(smaller, held_out, setting)
        if whole is not None:
            return -float(kind.imitation_loss(torch.from_numpy(found), whole, 1.0))
        scores = score(setting.definition, held_out.labels, found, setting.label_names)
        return scores[setting.definition.metric]

    left, steps = list(layers), list[tuple[int, float]]()  # the layer, the score of the others
    while len(left) > 1:
        scores = {layer: score_of(_without(model, left, layer)) for layer in left}
        # the highest of equal layers goes; nan is the worst score
        best = max(left, key=lambda layer: (np.nan_to_num(scores[layer], nan=-2.0), layer))
        steps.append((best, scores[best]))
        left.remove(best)
    gone = {layer: step for step, (layer, _) in enumerate(steps, start=1)}
    return LayerValues(
        layers=[(layer, float(gone.get(layer, 0))) for layer in layers],
        values=[NamedValue("score", each, gone[each], finite(value)) for each, value in steps],
    )


def _without(model: PreTrainedModel, left: Sequence[int], layer: int) -> PreTrainedModel:
    smaller = copy.deepcopy(model)
    keep_original(smaller, [other for other in left if other != layer])
    return smaller


def setting_of(subject: Subject, spec: ProfileSpec, recipe: Recipe) -> Setting:
    """Trains the full network with `recipe` and the seed of `spec`."""
    assert spec.seed is not None
    layers = full_layers(subject.model.config.lp_sweep_original_depth)
    return Setting(
        definition=spec.task,
        recipe=recipe,
        seed=spec.seed,
        device=subject.device,
        padding=subject.padding,
        precision=precision_used(recipe.precision, subject.device),
        batches=BatchSizes.halved(recipe.batch_size, subject.halvings),
        phases=(Phase(layers, recipe.epochs),),
        label_names=subject.encoded.label_names,
        graphs=subject.graphs,
    )


def parted(train: EncodedSplit) -> tuple[EncodedSplit, EncodedSplit]:
    """Rows to learn from and held-out rows, the same for every network."""
    order = np.random.default_rng(0).permutation(len(train))
    count = held_out_rows(len(train))
    return train.take(np.sort(order[count:])), train.take(np.sort(order[:count]))
