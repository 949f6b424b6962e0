"""A threshold for each label, chosen on the train rows, as a part of the head.

A label is given where its probability is above 0.5, which is a logit above 0. A threshold moves
that: it is subtracted from the bias of the head's output, so the trained network, its stored logits
and its export need no other number, and 0.5 still decides. The order of the texts for a label, and
with it average precision, stays as it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError

Array = npt.NDArray[Any]


def best_thresholds(marks: Array, logits: Array) -> npt.NDArray[np.float32]:
    """(labels,) logits above which each label is given, for the highest F1 of each; of equal ones
    that nearest to 0. Of (n, labels) marks and logits. A label that no row has keeps 0."""
    found = [_best(has, of) for has, of in zip(marks.T, logits.T, strict=True)]
    return np.array(found, np.float32)


def _best(has: Array, logits: Array) -> float:
    if not has.any():
        return 0.0
    order = np.argsort(-logits, kind="stable")
    falling, hits = logits[order].astype(np.float64), np.cumsum(has[order], dtype=np.int64)
    f1 = 2 * hits / (np.arange(1, len(has) + 1) + hits[-1])  # of the first i given the label
    below = np.append(falling[1:], falling[-1] - 1)
    f1[falling == below] = -1.0  # equal logits are on one side
    cuts = (falling + below) / 2
    highest = np.flatnonzero(f1 == f1.max())
    return float(cuts[highest[np.abs(cuts[highest]).argmin()]])


class FoldedThresholds:
    """Puts thresholds into the head of `model`, and takes them out before it learns on."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._learned: torch.Tensor | None = None

    def fold(self, marks: Array, logits: Array) -> None:
        """Those of train rows: (n, labels) each. Raises UnsupportedModelError."""
        bias = _output_bias(self._model)
        self._learned = bias.detach().clone()
        with torch.no_grad():
            bias.sub_(torch.from_numpy(best_thresholds(marks, logits)).to(bias.device))

    def unfold(self) -> None:
        if self._learned is not None:
            with torch.no_grad():
                _output_bias(self._model).copy_(self._learned)
            self._learned = None


def _output_bias(model: PreTrainedModel) -> nn.Parameter:
    """(labels,) of the head's last linear."""
    encoder = f"{model.base_model_prefix}."
    outputs = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not name.startswith(encoder)
        and module.out_features == model.config.num_labels
    ]
    if not outputs or outputs[-1].bias is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no head whose output has a bias, and tuned thresholds "
            "are put there. Remove `tune_thresholds` from the task."
        )
    return outputs[-1].bias
