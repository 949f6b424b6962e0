"""Loads and runs tiny networks of every family."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.model.prune import load_pruned
from tests.support.families import DEBERTA_1, FAMILIES, VOCABULARY, save_pretrained

NUM_LABELS = 3
_FOLDER = TemporaryDirectory(prefix="checkpoints-")  # of this process, removed at its end


@cache
def checkpoint(name: str, depth: int) -> Path:
    """The folder of a family's checkpoint, written once. Not to be changed."""
    family = DEBERTA_1 if name == DEBERTA_1.name else FAMILIES[name]
    return save_pretrained(family, depth, Path(_FOLDER.name) / f"{name}-{depth}")


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


# -- sentences of several lengths, as batches, and networks to run them through

LENGTHS = (9, 3, 6, 2, 9)
Batch = dict[str, torch.Tensor]


def sentences(lengths: tuple[int, ...] = LENGTHS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(4, VOCABULARY, (length,), generator=generator) for length in lengths]


def padded(rows: list[torch.Tensor], left: bool) -> Batch:
    width = max(map(len, rows))
    ids, mask = torch.ones(2, len(rows), width, dtype=torch.long)
    mask.zero_()
    for i, row in enumerate(rows):
        place = slice(width - len(row), None) if left else slice(len(row))
        ids[i, place], mask[i, place] = row, 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(len(rows))}


def batches(rows: list[torch.Tensor], size: int, left: bool = False) -> list[Batch]:
    return [padded(rows[i : i + size], left) for i in range(0, len(rows), size)]


def network(name: str, depth: int = 4, **settings: Any) -> PreTrainedModel:
    """A classifier of this family with the weights that `save_pretrained` draws, loaded once and
    copied."""
    return copy.deepcopy(_loaded(name, depth, *sorted(({"num_labels": 2} | settings).items())))


@cache
def _loaded(name: str, depth: int, *settings: tuple[str, Any]) -> PreTrainedModel:
    return load(checkpoint(name, depth), **dict(settings))


def shaken(model: PreTrainedModel, by: float = 0.1) -> PreTrainedModel:
    """The network as a training might leave it: every weight a little different."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return model
