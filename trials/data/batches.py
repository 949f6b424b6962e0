"""A task as tokens: flat arrays, the order of an epoch, and batches.

The order depends on (seed, epoch) only, never on a network's depth. Rows of similar length can form
groups, each padded to its own longest row: the gradient is the same but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.columns import Labels
from lp_sweep.trials.device import bound_by_launches, onto
from lp_sweep.trials.kinds.tokens import NO_ANSWER, NO_TAG
from lp_sweep.trials.spec.specs import ProfileSpec, SpeedSpec, TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedSplit:
    """n examples of T tokens in all; example i is tokens[offsets[i] : offsets[i + 1]]."""

    tokens: npt.NDArray[np.int32]  # (T,)
    offsets: npt.NDArray[np.int64]  # (n + 1,)
    token_types: npt.NDArray[np.uint8] | None  # (T,), None where the tokenizer has none
    # (n,) classes or numbers; (n, .) marks, relevance, or tags; the judgements of a search
    labels: Labels
    # (n, V) the position in its row of each word's first token; -1: it has none
    words: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

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
        """A copy with these examples, in this order."""
        rows = np.asarray(indices, np.int64)
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        place = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return EncodedSplit(
            tokens=self.tokens[place],
            offsets=offsets,
            token_types=None if self.token_types is None else self.token_types[place],
            labels=self.labels[rows],
            words=None if self.words is None else self.words[rows],
        )

    def target(self, rows: npt.NDArray[np.integer]) -> Labels:
        """(B, ...) labels of B rows. For words (B, V): `NO_TAG` if there is no token, `NO_ANSWER`
        for a token without a tag."""
        if self.words is None:
            labels: Labels = self.labels[rows]
            return labels
        asked = self.words[rows, : self.most_words(rows)]
        tags = np.maximum(self.labels[rows, : asked.shape[1]], NO_ANSWER)
        return np.asarray(np.where(asked >= 0, tags, NO_TAG), np.int64)

    def answers(self, rows: npt.NDArray[np.integer]) -> int:
        """Number of answers in the mean loss of these rows: one each, or one for each word."""
        return len(rows) if self.words is None else int((self.words[rows] >= 0).sum())

    def most_words(self, rows: npt.NDArray[np.integer]) -> int:
        """The largest number (from 1) of a word with a token in these rows."""
        assert self.words is not None
        return int(np.flatnonzero((self.words[rows] >= 0).any(axis=0)).max(initial=-1)) + 1

    def batch(self, indices: npt.ArrayLike, padding: Padding) -> dict[str, npt.NDArray[np.int64]]:
        """`input_ids`, `attention_mask` and, where there are any, `token_type_ids`.

        Each (B, W): B indices, in their order, W the longest example among them.
        """
        rows = np.asarray(indices, np.int64)
        starts, lengths = self.offsets[rows], self.lengths_of(rows)  # (B,)
        width = int(lengths.max(initial=0))
        first = (width - lengths if padding.left else np.zeros_like(lengths))[:, None]  # (B, 1)
        column = np.arange(width)
        mask = (column >= first) & (column < first + lengths[:, None])  # (B, W)
        ends = np.cumsum(lengths)
        # where in `tokens` each token of the batch is, row by row: (sum of lengths,)
        place = np.arange(int(lengths.sum())) + np.repeat(starts - ends + lengths, lengths)
        padded = {
            "input_ids": _padded(mask, self.tokens[place], padding.token_id),
            "attention_mask": mask.astype(np.int64),
        }
        if self.token_types is not None:
            padded["token_type_ids"] = _padded(mask, self.token_types[place], padding.type_id)
        return padded


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedTask:
    """A `LoadedTask` as tokens. The first dev split is the main one."""

    train: EncodedSplit
    dev: dict[str, EncodedSplit]
    label_names: tuple[str, ...]
    num_labels: int
    from_cache: bool
    dev_in_train: int | None = None  # dev rows of all splits whose texts also occur in train
    dev_relabelled: int | None = None  # those of them with another label there


def _padded(mask: npt.NDArray[np.bool_], values: npt.NDArray[Any], pad: int) -> Any:
    filled = np.full(mask.shape, pad, np.int64)
    filled[mask] = values  # row by row, as `values` is
    return filled


# batches sorted by length together: enough to match, and few enough that epochs differ
_BATCHES, _PARTS = 50, 4


def epoch_order(
    lengths: npt.NDArray[np.integer],
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    group_by_length: bool = False,
    groups: npt.NDArray[Any] | None = None,
) -> npt.NDArray[np.intp]:
    """A permutation of the n rows; consecutive rows form batches.

    `group_by_length`: rows of similar length share a batch, as with the Trainer's option of that
    name. A random order is sorted in parts of 50 batches, at least four parts. Then whole batches
    are shuffled over the epoch, so that length does not depend on the step.
    `groups`: (n,) the group of each row; rows of a group follow each other.
    """
    draw = np.random.default_rng((seed, epoch))
    order = draw.permutation(len(lengths))
    if groups is not None:
        names, number = np.unique(groups, return_inverse=True)
        return order[np.argsort(draw.permutation(len(names))[number[order]], kind="stable")]
    if not group_by_length:
        return order
    size = batch_size * max(1, min(_BATCHES, len(order) // (_PARTS * batch_size)))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        part[:] = part[np.argsort(-lengths[part], kind="stable")]
    whole = len(order) // batch_size
    batches = order[: whole * batch_size].reshape(whole, batch_size)
    rest = order[whole * batch_size :]  # a short batch stays the last
    return np.concatenate([draw.permutation(batches).ravel(), rest])


def longest_first(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
    """The order in which `group_ends` cuts rows: by falling length, stable."""
    return np.argsort(-lengths, kind="stable")


def group_ends(costs: npt.NDArray[np.integer], overhead: int) -> list[int]:
    """Where to cut rows, sorted by falling length, into groups of the least total cost.

    costs: (B,) falling, the cost of a row padded to the length of each. A group costs its number
    of rows times the cost of its first one, plus `overhead`.
    """
    count = len(costs)
    least = np.zeros(count + 1, np.int64)  # of the first n rows
    begun = np.zeros(count + 1, np.int64)  # where the last group of those begins
    for end in range(1, count + 1):
        total = least[:end] + costs[:end].astype(np.int64) * (end - np.arange(end))
        begun[end] = total.argmin()
        least[end] = total[begun[end]] + overhead
    ends = [count]
    while begun[ends[-1]]:
        ends.append(int(begun[ends[-1]]))
    return ends[::-1]


EVALUATION_BATCH = 64
_GPU_EVALUATION = 4  # times as many rows per batch


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
    """Examples in one forward pass. The recipe's batch, for an optimiser step, does not change."""

    training: int
    evaluation: int

    @classmethod
    def halved(cls, batch_size: int, times: int) -> BatchSizes:
        return cls(math.ceil(batch_size / 2**times), EVALUATION_BATCH // 2**times)

    def on(self, device: torch.device) -> BatchSizes:
        """More rows are evaluated at once where kernel launches are the bottleneck."""
        if not bound_by_launches(device):
            return self
        return self._replace(evaluation=self.evaluation * _GPU_EVALUATION)


def whole_batch(spec: TrialSpec | ProfileSpec | SpeedSpec) -> int:
    """The batch size of a specification: the smallest of a speed measurement, and the evaluation
    batch if there is no recipe."""
    if spec.kind == "speed":
        return min(spec.batches)
    return spec.recipe.batch_size if spec.recipe else EVALUATION_BATCH


def to_device(
    split: EncodedSplit, rows: np.ndarray, padding: Padding, device: torch.device
) -> dict[str, torch.Tensor]:
    """These rows padded to the longest of them: each (B, T) int64 on `device`."""
    return {name: onto(array, device) for name, array in split.batch(rows, padding).items()}


def chunks(order: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Pieces of `size`; the last one may be shorter."""
    for start in range(0, len(order), size):
        yield order[start : start + size]
