"""Rows of a split as tensors on a device, and how many of them go through a network at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.specs import ProfileSpec, SpeedSpec, TrialSpec
from lp_sweep.trials.device import onto
from lp_sweep.trials.encoded import EncodedSplit

EVALUATION_BATCH = 64
MAX_HALVINGS = 3


class Padding(NamedTuple):
    """How a tokenizer fills a batch up to its longest row."""

    token_id: int
    type_id: int
    left: bool

    @classmethod
    def of(cls, tokenizer: Any) -> Padding:
        """Raises MissingInputError for a tokenizer without a padding token."""
        if tokenizer.pad_token_id is None:  # 0 would be a word of some models
            raise MissingInputError(
                f"tokenizer of {tokenizer.name_or_path!r}: it has no padding token, so rows of "
                "other lengths can't share a batch. Set pad_token in its tokenizer_config.json to "
                "the token that the model was pre-trained with."
            )
        return cls(
            tokenizer.pad_token_id,
            tokenizer.pad_token_type_id,
            tokenizer.padding_side == "left",
        )


class BatchSizes(NamedTuple):
    """Examples of one forward pass. The recipe's batch, of one optimiser step, stays what it is."""

    training: int
    evaluation: int

    @classmethod
    def halved(cls, batch_size: int, times: int) -> BatchSizes:
        return cls(math.ceil(batch_size / 2**times), EVALUATION_BATCH // 2**times)


def whole_batch(spec: TrialSpec | ProfileSpec | SpeedSpec) -> int:
    """The batch of a specification, of a speed the smallest; what has no recipe only evaluates."""
    if spec.kind == "speed":
        return min(spec.batches)
    return spec.recipe.batch_size if spec.recipe else EVALUATION_BATCH


def to_device(
    split: EncodedSplit, rows: np.ndarray, padding: Padding, device: torch.device
) -> dict[str, torch.Tensor]:
    """The rows padded to their own longest: each (B, T) int64 on `device`."""
    batch = split.batch(
        rows, pad_id=padding.token_id, pad_left=padding.left, pad_type_id=padding.type_id
    )
    return {name: onto(array, device) for name, array in batch.items()}


def chunks(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """`order` in pieces of `size`, the last one as long as it is."""
    for start in range(0, len(order), size):
        yield order[start : start + size]
