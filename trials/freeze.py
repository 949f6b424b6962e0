"""Which parameters of a network don't learn."""

from __future__ import annotations

from transformers import PreTrainedModel

from lp_sweep.storage.specs import Recipe
from lp_sweep.trials.families import embedding_path, find_layers
from lp_sweep.trials.reduced import original_layers


def freeze(model: PreTrainedModel, recipe: Recipe) -> None:
    """The recipe's layers, by their original indices, and the embedding block; all else learns."""
    frozen = set(recipe.freeze_layers)
    model.requires_grad_(True)
    if recipe.freeze_embeddings:
        model.get_submodule(embedding_path(model)).requires_grad_(False)
    for original, layer in zip(
        original_layers(model.config), find_layers(model).layers, strict=True
    ):
        if original in frozen:
            layer.requires_grad_(False)
