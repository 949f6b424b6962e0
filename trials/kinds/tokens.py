"""A tag for each word of a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.kinds.entities import f1_tally, scheme_of
from lp_sweep.trials.kinds.kind import Array, ProblemType
from lp_sweep.trials.kinds.labelled import Classification

if TYPE_CHECKING:
    import torch

    from lp_sweep.trials.data.columns import Labels, Rows

NO_TAG = -100  # in (n, W) tags: no word, or one without a tag
NO_ANSWER = -1
# the logits of a word that has no token: it was cut off at max_length, or is of no known character
SILENT = float(np.finfo(np.float32).min)


class Tokens(Classification):
    """Labels are (n, W) tags of n sentences of at most W words, `NO_TAG` after the last; logits are
    (n, W, C), `SILENT` where there is no answer: such a word counts as wrong, as `O` for entities.
    A word is answered at its first token. Of an example is stored how many words it has, and how
    many have the right tag."""

    help = "a tag for each word; `text:` and `label:` name columns of lists"
    metrics: tuple[str, ...] = ("entity_f1", "accuracy")
    problem_type: ProblemType = "token_classification"
    words = True
    learns_from, scored_by = "sentences", "sentences"
    called = "tags"

    def problem(self, definition: TaskDefinition) -> str | None:
        if len(definition.text_columns) != 1:
            return "kind tokens tags the words of one column: `text:` names one."
        return super().problem(definition)

    def label_names(self, train: Rows, definition: TaskDefinition) -> tuple[str, ...]:
        from lp_sweep.trials.kinds.tagged import tag_names

        return tag_names(train, definition)

    def labels(self, rows: Rows, definition: TaskDefinition, names: tuple[str, ...]) -> Labels:
        from lp_sweep.trials.kinds.tagged import tag_codes

        return tag_codes(rows, definition, names)

    def no_labels(self, rows: int, outputs: int = 1) -> Labels:
        return np.empty((rows, 0), np.int64)

    def counts(self, labels: Labels, outputs: int) -> Array:
        """Words."""
        return np.bincount(labels[labels >= 0], minlength=outputs)

    def stored_labels(self, labels: Labels) -> Array:
        return np.asarray((labels >= 0).sum(axis=1))

    def mean_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Over the words that are answered and have a tag. (B, V, C) and (B, V)."""
        return self._sum(logits, target) / (target >= 0).sum().clamp(min=1)

    def labelled_loss(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Over the words that are answered."""
        return self._sum(logits, target) / (target != NO_TAG).sum().clamp(min=1)

    @staticmethod
    def _sum(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import cross_entropy

        tags = target.long().clamp(min=NO_ANSWER).flatten()
        return cross_entropy(logits.flatten(0, 1), tags, ignore_index=NO_ANSWER, reduction="sum")

    def imitation_loss(
        self, logits: torch.Tensor, teacher: torch.Tensor, temperature: float
    ) -> torch.Tensor:
        """Over the words that the teacher answers. (B, V, C) and at least so many words."""
        import torch
        from torch.nn.functional import kl_div, log_softmax

        taught = teacher[:, : logits.shape[1]]
        answered = taught[..., :1] > SILENT
        taught = torch.where(answered, taught, 0.0)
        own, other = (log_softmax(of / temperature, dim=-1) for of in (logits, taught))
        each = kl_div(own, other, reduction="none", log_target=True).sum(-1, keepdim=True)
        total = torch.where(answered, each, 0.0).sum()
        return total / answered.sum().clamp(min=1) * temperature**2

    def answers(self, logits: Array) -> Array:
        return np.where(logits[..., 0] > SILENT, logits.argmax(axis=-1), NO_ANSWER)

    def guess(self, train_labels: Array, metric: str, positive: int) -> int | None:
        """The most common tag; with entity F1 no tag scores anything for every word."""
        if metric == "entity_f1":
            return None
        return int(np.bincount(train_labels[train_labels >= 0]).argmax())

    def tally(
        self, metric: str, targets: Array, answers: Array, names: tuple[str, ...]
    ) -> Array | None:
        if metric == "entity_f1":
            answers = np.where(targets >= 0, answers, NO_ANSWER)
            return f1_tally(targets, answers, scheme_of(names))
        words = targets >= 0
        right = (targets == answers) & words
        return np.stack([right.sum(axis=1), words.sum(axis=1)], axis=1).astype(np.float64)

    def stored(
        self, labels: Labels, logits: Array, metric: str, names: tuple[str, ...]
    ) -> Iterator[dict[str, Any]]:
        """`scores`: the logits of all words, one word after the other."""
        answers = self.answers(logits)
        tallies, right = (self.tally(each, labels, answers, names) for each in (metric, "accuracy"))
        assert tallies is not None
        assert right is not None
        for scores, words, tally, (found, _) in zip(
            logits, self.stored_labels(labels).tolist(), tallies.tolist(), right, strict=True
        ):
            yield {
                "label": float(words),
                "prediction": float(found),
                "scores": scores[:words].ravel().tolist(),
                "tally": tally,
            }

    def restored(self, labels: Labels, scores: Sequence[Sequence[float]]) -> Array:
        classes = sum(map(len, scores)) // int((labels >= 0).sum())
        return unflat(scores, labels.shape[1], classes)

    def probe(self, train: Array, dev: Array, labels: Array) -> Array:
        raise MissingInputError(
            "probes are of the sentence token, and a task of kind tokens has a label for each word"
        )

    def described(self, names: Sequence[str]) -> str:
        return f"for each word, at its first token, {super().described(names)}"


def flat(logits: Array) -> Iterator[list[float]]:
    """(n, W, C) logits as n lists, word after word, up to the last one that is answered."""
    answered = logits[..., 0] > SILENT
    ends = np.where(answered.any(axis=1), answered.shape[1] - answered[:, ::-1].argmax(axis=1), 0)
    for row, end in zip(logits, ends, strict=True):
        yield row[:end].ravel().tolist()


def unflat(rows: Sequence[Sequence[float]], words: int, classes: int) -> Array:
    """The inverse of `flat`: (n, words, classes) float32. Raises ValueError for rows of another
    number of classes, or of more words."""
    found = np.full((len(rows), words, classes), SILENT, np.float32)
    for row, scores in zip(found, rows, strict=True):
        each = np.asarray(scores, np.float32).reshape(-1, classes)
        if len(each) > words:
            raise ValueError(f"{len(each)} words, not {words}")
        row[: len(each)] = each
    return found
