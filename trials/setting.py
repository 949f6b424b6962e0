"""How one try at a trial trains: the same for all its steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lp_sweep.storage.specs import Recipe, TaskDefinition
from lp_sweep.trials.batches import BatchSizes, Padding
from lp_sweep.trials.procedures import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The recipe, and what this device makes of it."""

    definition: TaskDefinition
    recipe: Recipe
    seed: int
    device: torch.device
    padding: Padding
    precision: str  # fp32 or bf16
    batches: BatchSizes
    course: tuple[Phase, ...]
    positive: int = 1  # the class that f1 scores

    @property
    def epochs(self) -> int:
        """Of all phases."""
        return sum(phase.epochs for phase in self.course)
