"""`recipe: auto`: how a learning rate and a number of epochs are found. Imports no torch.

The full model is tried with three learning rates, each for at most 300 steps, on a part of *train*,
and scored on another part. The best rate is that of all trials of this model on this task. The
epochs follow from the number of rows: all is counted in steps, never in seconds, so the same file
and data have the same recipe on any machine.
"""

from __future__ import annotations

import math
from typing import NamedTuple

AUTO = "auto"
FIND_RECIPE = "recipe"  # the measurement's name
RATES = (2e-5, 5e-5, 1e-4)  # usual for encoders: Devlin et al. 2019, appendix A.3; and twice that
_TRY_STEPS = 300
ENOUGH_STEPS = 1000  # Mosbach et al. 2021: small data needs more epochs than three
USUAL_EPOCHS, _MOST_EPOCHS = 3, 20


class FoundRecipe(NamedTuple):
    """The keys of a recipe that can be `auto`."""

    learning_rate: float
    epochs: int


class TrySize(NamedTuple):
    rows: int
    epochs: int


def enough_epochs(rows: int, batch_size: int) -> int:
    """Enough for 1,000 steps, within 3 to 20."""
    return epochs_within(ENOUGH_STEPS, rows, batch_size, least=USUAL_EPOCHS)


def epochs_within(steps: int, rows: int, batch_size: int, *, least: int) -> int:
    """The fewest epochs with at least so many steps, within `least` to 20."""
    return min(_MOST_EPOCHS, max(least, math.ceil(steps / _steps(rows, batch_size))))


def try_size(rows: int, batch_size: int) -> TrySize:
    """How much of so many rows to learn from one try learns from, and how often: at most 300
    steps, in whole epochs, and no more epochs than a trial."""
    rows = min(rows, _TRY_STEPS * batch_size)
    most = _TRY_STEPS // _steps(rows, batch_size)
    return TrySize(rows, min(most, enough_epochs(rows, batch_size)))


def _steps(rows: int, batch_size: int) -> int:
    return max(1, math.ceil(rows / batch_size))
