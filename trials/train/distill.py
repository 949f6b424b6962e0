"""Learning from a teacher: the losses of a student.

    (1 - alpha) * loss of the labels + alpha * loss of the logits + hidden_weight * hidden loss

logits  of classes T^2 * KL(teacher || student) of both softmaxes at temperature T (Hinton et al.
        2015, arXiv 1503.02531, section 2); of a number the squared difference.
hidden  the squared distance of the sentence tokens after each kept layer but the last to those of
        the same layer in the teacher, at unit length, mean over layers (PKD, Sun et al. 2019,
        arXiv 1908.09355, equation 7, summed over dimensions). The last layer is left out, as
        there: the logits come from its state.

The teacher's logits of all train rows are computed once and read from the store. Its network is
needed only for hidden states. Rows without a label may follow the train rows: they have no loss of
the labels, and the mean is over all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.batches import EncodedTask
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import unflat
from lp_sweep.trials.model.families import original_layers
from lp_sweep.trials.spec.specs import Distillation, TaskDefinition


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Teaching:
    settings: Distillation
    logits: np.ndarray  # (n, C) float32, the teacher's of the train rows in their order
    network: PreTrainedModel | None = None  # its first layers, in eval mode; for hidden states

    def pairs(self, student: PreTrainedModel) -> list[tuple[int, int]]:
        """Indices from 0 of the student's imitating layers and of the teacher's layers."""
        return [(i, layer - 1) for i, layer in enumerate(original_layers(student.config)[:-1])]


def logits_of(
    rows: Sequence[Mapping[str, Any]], data: EncodedTask, job: str, *, embeds: bool = False
) -> np.ndarray:
    """(n, C), embeddings (n, H), or for words (n, V, C), from rows of TEACHER_LOGITS. Raises
    MissingInputError for those of other data."""
    scores = [row["scores"] for row in sorted(rows, key=lambda row: row["example"])]
    words = data.train.words
    if words is not None:
        asked = np.where(words >= 0, np.arange(1, words.shape[1] + 1), 0).max(axis=1, initial=0)
        if [*map(len, scores)] == (asked * data.num_labels).tolist():
            return unflat(scores, words.shape[1], data.num_labels)
        raise MissingInputError(
            f"{job}: the store's teacher logits are not of the student's train rows and tags: the "
            "teacher learned from other data."
        )
    found = np.asarray(scores, np.float32)
    wanted = (len(data.train), found.shape[-1] if embeds else data.num_labels)
    if found.shape != wanted:
        raise MissingInputError(
            f"{job}: the store has teacher logits of shape {found.shape}, and the student's train "
            f"rows and classes are {wanted}: the teacher learned from other data."
        )
    return found


def student_loss(
    logits: torch.Tensor,
    target: torch.Tensor,
    definition: TaskDefinition,
    settings: Distillation,
    taught: torch.Tensor,
) -> torch.Tensor:
    """The loss of labels and logits, a scalar in fp32. Logits are (B, C), labels (B,)."""
    kind, logits = kind_of(definition), logits.float()
    imitation = kind.imitation_loss(logits, taught, settings.temperature) * settings.alpha
    if settings.alpha == 1:
        return imitation
    labels_loss = kind.labelled_loss if settings.unlabelled else kind.mean_loss
    return labels_loss(logits, target) * (1 - settings.alpha) + imitation


def hidden_loss(
    student: Sequence[torch.Tensor],
    teacher: Sequence[torch.Tensor],
    pairs: Sequence[tuple[int, int]],
) -> torch.Tensor:
    """Squared distance of unit vectors, mean over layers and rows; each state is (B, H)."""
    distances = [
        (normalize(student[own].float(), dim=-1) - normalize(teacher[other].float(), dim=-1))
        .square()
        .sum(-1)
        .mean()
        for own, other in pairs
    ]
    return torch.stack(distances).mean()
