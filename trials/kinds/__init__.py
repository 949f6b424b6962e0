"""The kinds of tasks: all that differs between classes, numbers, label sets, tags and vectors.

A kind knows its metrics, how a label column becomes numbers, the head, the loss, how logits become
answers, what is stored of each example, the score of guessing, the probe of a layer, and what a
model card says. `KINDS` is the table; other code asks `kind_of` instead of comparing names.
Planning imports this package, so torch and scikit-learn are imported `Later`.
"""

from __future__ import annotations

from lp_sweep.trials.kinds.embedding import COSENT, IMITATE, LOSSES, Embedding, Retrieval
from lp_sweep.trials.kinds.kind import Classification, Kind, ProblemType, Regression
from lp_sweep.trials.kinds.multi_label import MultiLabel
from lp_sweep.trials.kinds.ranking import ListwiseRanking, Ranking
from lp_sweep.trials.kinds.tokens import Tokens
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

__all__ = ["COSENT", "IMITATE", "KINDS", "LOSSES", "Kind", "ProblemType", "kind_of"]

_KINDS = (Classification, Regression, Embedding, Retrieval, MultiLabel, Ranking, Tokens)
KINDS: dict[TaskKind, Kind] = {kind.name: kind() for kind in _KINDS}
_BY_DOT_PRODUCT: dict[TaskKind, Kind] = {
    "embedding": Embedding(dot=True),
    "retrieval": Retrieval(dot=True),
}
_LISTWISE = ListwiseRanking()


def kind_of(definition: TaskDefinition) -> Kind:
    if definition.loss == "listwise":
        return _LISTWISE
    return (_BY_DOT_PRODUCT if definition.similarity == "dot" else KINDS)[definition.kind]
