"""A threshold for each label, chosen on the train rows and stored in the head.

A label is predicted if its probability is above 0.5, that is its logit above 0. A threshold is
subtracted from the bias of the head's output, so stored logits and exports still use 0.5. The order
of the texts for a label, and so its average precision, does not change. A network that learns from
this one, or trains on from it, gets the bias without thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError

Array = npt.NDArray[Any]
_LEARNED = "lp_sweep_learned_bias"  # the field of a config with the bias before thresholds


def best_thresholds(marks: Array, logits: Array, metric: str) -> npt.NDArray[np.float32]:
    """(labels,) logits above which each label is predicted, from (n, labels) marks and logits.

    They maximise F1 over all labels together for `micro_f1`, else of each label; a label without
    rows keeps 0. Of equally good thresholds the nearest to 0 is taken. F1 is
    2 hits / (given + had). The best micro F1 is found by iteration: the ratio becomes the F1 of the
    thresholds with the most 2 hits - ratio * given (Dinkelbach, Management Science 13(7), 1967).
    """
    labels = [_Cuts.of(has, of) for has, of in zip(marks.T, logits.T, strict=True)]
    if metric != "micro_f1":
        own = [
            label.best(2 * label.hits / (label.given + label.hits[-1])) if label.hits[-1] else 0.0
            for label in labels
        ]
        return np.array(own, np.float32)
    best, ratio = np.zeros(len(labels), np.float32), -1.0
    while (found := _micro_f1(marks, logits > best)) > ratio:
        ratio = found
        best = np.array(
            [label.best(2 * label.hits - ratio * label.given) for label in labels], np.float32
        )
    return best


class _Cuts(NamedTuple):
    """The thresholds between a label's logits."""

    cuts: Array
    given: Array  # the rows that get the label, for each threshold
    hits: Array  # those of them that have it

    @classmethod
    def of(cls, has: Array, logits: Array) -> _Cuts:
        order = np.argsort(-logits, kind="stable")
        falling = logits[order].astype(np.float64)
        edges = np.concatenate([falling[:1] + 1, falling, falling[-1:] - 1])
        given = np.flatnonzero(edges[:-1] != edges[1:])  # equal logits are on one side
        hits = np.append(0, np.cumsum(has[order], dtype=np.int64))
        return cls((edges[given] + edges[given + 1]) / 2, given, hits[given])

    def best(self, scores: Array) -> float:
        highest = self.cuts[scores == scores.max()]
        return float(highest[np.abs(highest).argmin()])


def _micro_f1(marks: Array, given: Array) -> float:
    return float(2 * (marks & given).sum() / max(1, marks.sum() + given.sum()))


def fold(model: PreTrainedModel, marks: Array, logits: Array, metric: str) -> None:
    """Merges thresholds, chosen on train rows, into the bias. The config keeps the bias as it was
    learned. `marks`, `logits`: (n, labels). Raises UnsupportedModelError."""
    bias = output_bias(model)
    if bias is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no head whose output has a bias, and tuned "
            "thresholds are put there. Remove `tune_thresholds` from the task."
        )
    setattr(model.config, _LEARNED, bias.tolist())
    with torch.no_grad():
        bias.sub_(torch.from_numpy(best_thresholds(marks, logits, metric)).to(bias.device))


def unfold(model: PreTrainedModel, *, new_head: bool = False) -> None:
    """Takes the thresholds out, if there are any. `new_head`: it has none yet."""
    bias, learned = output_bias(model), model.config.__dict__.pop(_LEARNED, None)
    if bias is not None and learned is not None and not new_head:
        with torch.no_grad():
            bias.copy_(torch.tensor(learned))


@contextmanager
def unfolded(model: PreTrainedModel) -> Iterator[None]:
    """The same while inside."""
    bias, learned = output_bias(model), getattr(model.config, _LEARNED, None)
    folded = None if bias is None else bias.detach().clone()
    unfold(model)
    yield
    if bias is not None and folded is not None and learned is not None:
        setattr(model.config, _LEARNED, learned)
        with torch.no_grad():
            bias.copy_(folded)


def output_bias(model: PreTrainedModel) -> nn.Parameter | None:
    """The bias (labels,) of the head's last linear, if any."""
    encoder = f"{model.base_model_prefix}."
    outputs = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not name.startswith(encoder)
        and module.out_features == model.config.num_labels
    ]
    return outputs[-1].bias if outputs else None
