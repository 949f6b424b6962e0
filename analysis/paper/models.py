"""Which models of a store stand for those of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError

DEPTHS = {
    "bert-base-cased": 12,
    "xlnet-base-cased": 12,
    "distilbert-base-cased": 6,
    "roberta-base": 12,
    "distilroberta-base": 6,
}
# The paper doesn't say cased or uncased; its scores fit cased. Uncased counts if there is no cased.
SECOND_CHOICE = {
    "bert-base-uncased": "bert-base-cased",
    "distilbert-base-uncased": "distilbert-base-cased",
}


class PaperModels(NamedTuple):
    of: Mapping[str, str]  # the store's model -> the paper's
    notes: tuple[str, ...]


def store_models(catalog: Catalog) -> dict[str, int]:
    """The store's models, with their depths."""
    found = catalog.query("SELECT DISTINCT model, depth FROM cells ORDER BY ALL").to_pylist()
    return {row["model"]: row["depth"] for row in found}


def paper_models(models: Mapping[str, int], names: Mapping[str, str]) -> PaperModels:
    """Matches the store's models, with their depths, with the paper's.

    A name is the last part of a path or hub id. `names` takes precedence over models found by name,
    and an exact name over SECOND_CHOICE: cased and uncased are never pooled. Raises SpecError for a
    name in `names` that the store or the paper does not have, and for a different number of layers.
    """
    of, notes = {ours: _named(ours, paper, models) for ours, paper in names.items()}, []
    for known in ({name: name for name in DEPTHS}, SECOND_CHOICE):
        taken = set(of.values())
        for ours, depth in models.items():
            paper = known.get(_last_part(ours))
            if paper is None or ours in of or paper in taken:
                continue
            if depth == DEPTHS[paper]:
                of[ours] = paper
            else:
                notes.append(f"{ours} has {depth} layers, {paper} has {DEPTHS[paper]}: left out.")
    renamed = (f"{ours} stands for {paper}." for ours, paper in of.items() if ours != paper)
    return PaperModels(of, (*renamed, *notes))


def _named(ours: str, name: str, models: Mapping[str, int]) -> str:
    """The paper's model of this name, which `ours` stands for."""
    if ours not in models:
        have = ", ".join(models) or "none"
        raise SpecError(f"the store has no cell of a model {ours!r}. It has: {have}.")
    last = _last_part(name)
    paper = SECOND_CHOICE.get(last, last)
    if paper not in DEPTHS:
        raise SpecError(f"the paper has no model {name!r}. It has: {', '.join(DEPTHS)}.")
    if models[ours] != DEPTHS[paper]:
        raise SpecError(
            f"--model {ours}={paper}: {ours} has {models[ours]} layers, {paper} has "
            f"{DEPTHS[paper]}: their K are not the same networks."
        )
    return paper


def _last_part(model: str) -> str:
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
