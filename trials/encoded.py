"""A task as tokens: flat arrays and where each example begins, and the padded batches of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lp_sweep.trials.columns import Labels


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedSplit:
    """n examples of T tokens in all; example i is tokens[offsets[i] : offsets[i + 1]]."""

    tokens: npt.NDArray[np.int32]  # (T,)
    offsets: npt.NDArray[np.int64]  # (n + 1,)
    token_types: npt.NDArray[np.uint8] | None  # (T,), None where the tokenizer has none
    labels: Labels  # (n,) int64 classes or float32 numbers

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def token_count(self) -> int:
        """T, special tokens included."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(n,) tokens of each example, special ones included."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """(B,) tokens of each of B rows."""
        found: npt.NDArray[np.int64] = self.offsets[rows + 1] - self.offsets[rows]
        return found

    def take(self, indices: npt.ArrayLike) -> EncodedSplit:
        """These examples, in this order, in memory of their own."""
        rows = np.asarray(indices, np.int64)
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        place = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return EncodedSplit(
            tokens=self.tokens[place],
            offsets=offsets,
            token_types=None if self.token_types is None else self.token_types[place],
            labels=self.labels[rows],
        )

    def batch(
        self, indices: npt.ArrayLike, *, pad_id: int, pad_left: bool, pad_type_id: int = 0
    ) -> dict[str, npt.NDArray[np.int64]]:
        """`input_ids`, `attention_mask` and, where there are any, `token_type_ids`.

        Each (B, W): B indices, in their order, W the longest example among them.
        """
        rows = np.asarray(indices, np.int64)
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts  # (B,)
        width = int(lengths.max(initial=0))
        first = (width - lengths if pad_left else np.zeros_like(lengths))[:, None]  # (B, 1)
        column = np.arange(width)
        mask = (column >= first) & (column < first + lengths[:, None])  # (B, W)
        ends = np.cumsum(lengths)
        # where in `tokens` each token of the batch is, row by row: (sum of lengths,)
        place = np.arange(int(lengths.sum())) + np.repeat(starts - ends + lengths, lengths)
        padded = {
            "input_ids": _padded(mask, self.tokens[place], pad_id),
            "attention_mask": mask.astype(np.int64),
        }
        if self.token_types is not None:
            padded["token_type_ids"] = _padded(mask, self.token_types[place], pad_type_id)
        return padded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedTask:
    """A `LoadedTask` as tokens. The first dev split is the main one."""

    train: EncodedSplit
    dev: dict[str, EncodedSplit]
    label_names: tuple[str, ...]
    num_labels: int
    from_cache: bool
    dev_in_train: int | None = None  # dev rows, of all splits, whose texts also occur in train
    dev_relabelled: int | None = None  # of them those with another label there


def _padded(mask: npt.NDArray[np.bool_], values: npt.NDArray[Any], pad: int) -> Any:
    filled = np.full(mask.shape, pad, np.int64)
    filled[mask] = values  # row by row, as `values` is
    return filled
