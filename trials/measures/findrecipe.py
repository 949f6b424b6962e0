"""Finds the learning rate and the epochs of `recipe: auto`: see trials/spec/autorecipe.py.

Each try fine-tunes the full model anew and is scored on train rows held out from it, never on the
dev set.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lp_sweep.storage.errors import DivergedError
from lp_sweep.trials.measures.greedy import parted, setting_of
from lp_sweep.trials.measures.subject import LayerValues, NamedValue, Subject, finite
from lp_sweep.trials.spec.autorecipe import RATES, enough_epochs, try_size
from lp_sweep.trials.spec.specs import ProfileSpec, Recipe
from lp_sweep.trials.train.finetune import Saver, finetune
from lp_sweep.trials.train.metrics import score


class _Try(NamedTuple):
    score: float  # of the held-out rows; nan: not a number
    loss: float  # the last epoch's mean of the train rows
    rate: float
    steps: int


def find_recipe(subject: Subject, spec: ProfileSpec) -> LayerValues:
    """The best score wins; of equal ones, as when no try beat guessing, the lowest loss. Raises
    DivergedError where each rate diverges."""
    assert spec.recipe is not None
    batch = spec.recipe.batch_size
    tries, diverged = list[_Try](), None
    for rate in RATES:
        recipe = replace(spec.recipe, learning_rate=rate)
        try:
            tries.append(_tried(subject, spec, recipe))
        except DivergedError as error:
            diverged = error
    if diverged and not tries:
        raise diverged
    best = max(tries, key=lambda one: (np.nan_to_num(one.score, nan=-2.0), -one.loss, -one.rate))
    epochs = enough_epochs(len(subject.encoded.train), batch)
    return LayerValues(
        values=[
            NamedValue("learning_rate", 0, None, best.rate),
            NamedValue("epochs", 0, None, float(epochs)),
            *(
                NamedValue(f"score at {one.rate:g}", 0, one.steps, finite(one.score))
                for one in tries
            ),
        ]
    )


def _tried(subject: Subject, spec: ProfileSpec, recipe: Recipe) -> _Try:
    data, model = subject.encoded, copy.deepcopy(subject.model)
    learned, held_out = parted(data.train)
    size = try_size(len(learned), recipe.batch_size)
    some = np.random.default_rng(0).permutation(len(learned))[: size.rows]
    learned = learned.take(np.sort(some))
    setting = setting_of(subject, spec, replace(recipe, epochs=size.epochs))
    parts = replace(data, train=learned, dev={"held_out": held_out})
    trained = finetune(model, parts, setting, Saver())
    logits = trained.logits["held_out"]
    found = score(spec.task, held_out.labels, logits, data.label_names)[spec.task.metric]
    progress = trained.progress
    return _Try(found, progress.train_losses[-1], recipe.learning_rate, progress.step)
