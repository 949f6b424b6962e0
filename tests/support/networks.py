"""Loads and runs tiny networks of every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.model.families import find_layers
from lp_sweep.trials.model.prune import load_pruned
from lp_sweep.trials.model.reduced import feed_forward_of, original_layers, parts
from tests.support.families import VOCABULARY

NUM_LABELS = 3
Checkpoint = Callable[[str, int], Path]  # the folder of a family's checkpoint of this depth


def load(path: Path, kept: Sequence[int] | None = None, **changes: Any) -> PreTrainedModel:
    settings: dict[str, Any] = {
        "kept_layers": kept,
        "num_labels": NUM_LABELS,
        "problem_type": "single_label_classification",
        "seed": 1,
        "local_files_only": True,
    }
    return load_pruned(path, **(settings | changes))


def batch() -> dict[str, torch.Tensor]:
    """Three sentences of 9, 6 and 2 tokens, padded on the right to (3, 9)."""
    lengths = torch.tensor([[9], [6], [2]])
    mask = (torch.arange(9) < lengths).long()
    ids = torch.randint(4, VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(3))
    return {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}  # 1 is padding


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model.eval()(**batch()).logits
    return result


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def feed_forward_parameters(model: PreTrainedModel) -> dict[int, int]:
    """Parameters of each layer's feed-forward linears, by the layer's number in the very first
    network; 0 where it was removed."""
    linears = feed_forward_of(model.config).linears
    layers = zip(original_layers(model.config), find_layers(model).layers, strict=True)
    return {number: sum(map(count, parts(layer, linears))) for number, layer in layers}
