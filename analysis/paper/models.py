"""Which of a store's models stands for which of the paper's. Names only: nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lp_sweep.analysis.paper.numbers import DEPTHS
from lp_sweep.storage.errors import SpecError

# The paper doesn't say cased or uncased: the scores fit cased. Uncased counts where no cased is.
SECOND_CHOICE = {
    "bert-base-uncased": "bert-base-cased",
    "distilbert-base-uncased": "distilbert-base-cased",
}


class Stand(NamedTuple):
    of: dict[str, str]  # the store's model -> the paper's
    notes: tuple[str, ...]


def stands(found: Iterable[tuple[str, int]], names: Mapping[str, str]) -> Stand:
    """Of the store's models, with their depths, those that the paper has.

    A name is the last part of a path or hub id. What `names` maps counts before what is found by
    name, and an exact name before SECOND_CHOICE: cased and uncased are never pooled. Raises
    SpecError for a name in `names` that the store or the paper does not have, and for another
    number of layers.
    """
    models = dict(found)
    mapped = {_in_store(ours, models): _in_paper(paper) for ours, paper in names.items()}
    for ours, paper in mapped.items():
        if models[ours] != DEPTHS[paper]:
            raise SpecError(
                f"--model {ours}={paper}: {ours} has {models[ours]} layers, {paper} has "
                f"{DEPTHS[paper]}: their K are not the same networks."
            )
    of, notes = dict(mapped), []
    for choice in (_exact, _second):
        taken = set(of.values())
        for ours, depth in models.items():
            known = choice(ours)
            if known is None or ours in of or known in taken:
                continue
            if depth == DEPTHS[known]:
                of[ours] = known
            else:
                notes.append(f"{ours} has {depth} layers, {known} has {DEPTHS[known]}: left out.")
    renamed = (f"{ours} stands for {paper}." for ours, paper in of.items() if ours != paper)
    return Stand(of, (*renamed, *notes))


def _last_part(model: str) -> str:
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()


def _exact(model: str) -> str | None:
    name = _last_part(model)
    return name if name in DEPTHS else None


def _second(model: str) -> str | None:
    return SECOND_CHOICE.get(_last_part(model))


def _in_paper(name: str) -> str:
    found = _exact(name) or _second(name)
    if found is None:
        raise SpecError(f"the paper has no model {name!r}. It has: {', '.join(DEPTHS)}.")
    return found


def _in_store(name: str, models: Mapping[str, int]) -> str:
    if name not in models:
        have = ", ".join(models) or "none"
        raise SpecError(f"the store has no cell of a model {name!r}. It has: {have}.")
    return name
