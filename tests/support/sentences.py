"""A few sentences of several lengths, as batches, and small networks to run them through.

Not a test.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from tests.support.families import FAMILIES, VOCABULARY, save_pretrained
from tests.support.networks import load

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


def network(
    name: str, folder: Path, depth: int = 4, kept_layers: list[int] | None = None
) -> PreTrainedModel:
    """A classifier of this family with the weights that `save_pretrained` draws."""
    return load(save_pretrained(FAMILIES[name], depth, folder), kept_layers, num_labels=2)


def shaken(model: PreTrainedModel, by: float = 0.1) -> PreTrainedModel:
    """The network as a training might leave it: every weight a little different."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return model
