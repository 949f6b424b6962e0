"""A threshold for each label, chosen on the train rows, as a part of the head.

A label is given where its probability is above 0.5, which is a logit above 0. A threshold moves
that: it is subtracted from the bias of the head's output, so the trained network, its stored logits
and its export need no other number, and 0.5 still decides. The order of the texts for a label, and
with it average precision, stays as it was.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError

Array = npt.NDArray[Any]


def best_thresholds(marks: Array, logits: Array, metric: str) -> npt.NDArray[np.float32]:
    """(labels,) logits above which each label is given, of (n, labels) marks and logits; of equally
    good ones that nearest to 0.

    For `micro_f1` those of the highest F1 over all labels together, else of each label, where one
    that no row has keeps 0. F1 is 2 hits / (given + had). The highest is found by raising a ratio
    to the F1 of the thresholds with the most 2 hits - ratio * given (Dinkelbach, Management Science
    13(7), 1967).
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
    """The thresholds that part a label's logits: how many rows each gives it, rightly or not."""

    cuts: Array
    given: Array
    hits: Array

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


class FoldedThresholds:
    """Puts thresholds into the head of `model`, and takes them out before it learns on."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._learned: torch.Tensor | None = None

    def fold(self, marks: Array, logits: Array, metric: str) -> None:
        """Those of train rows: (n, labels) each. Raises UnsupportedModelError."""
        bias = output_bias(self._model)
        if bias is None:
            raise UnsupportedModelError(
                f"{type(self._model).__name__} has no head whose output has a bias, and tuned "
                "thresholds are put there. Remove `tune_thresholds` from the task."
            )
        self._learned = bias.detach().clone()
        with torch.no_grad():
            bias.sub_(torch.from_numpy(best_thresholds(marks, logits, metric)).to(bias.device))

    def unfold(self) -> None:
        bias = output_bias(self._model)
        if self._learned is not None and bias is not None:
            with torch.no_grad():
                bias.copy_(self._learned)
            self._learned = None


def output_bias(model: PreTrainedModel) -> nn.Parameter | None:
    """(labels,) of the head's last linear; None where it has none."""
    encoder = f"{model.base_model_prefix}."
    outputs = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not name.startswith(encoder)
        and module.out_features == model.config.num_labels
    ]
    return outputs[-1].bias if outputs else None
