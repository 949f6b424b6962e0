"""`prune`: a model in memory with fewer layers, for people who fine-tune it themselves."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from torch import nn

from lp_sweep.orchestrator.service.export import model_files
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.model.families import find_layers
from lp_sweep.trials.model.load import load_network
from lp_sweep.trials.model.prune import network_of, pruned
from lp_sweep.trials.model.sentencefolder import read_sentence_folder
from lp_sweep.trials.spec.select import kept_layers


def prune(
    model: Any,
    *,
    keep: Iterable[int] | None = None,
    drop: Iterable[int] | None = None,
    revision: str | None = None,
    offline: bool = False,
) -> Any:
    """A copy of `model` with only the layers `keep`, or without the layers `drop`. Layers are
    numbered from 1, next to the embeddings; in a model that was pruned before, as it is now.

    `model`: one of transformers with any head, or a SentenceTransformer, whose pooling and prompts
    stay. It is unchanged, and the copy shares no weight with it: either can be trained. The config
    follows, so `save_pretrained` writes an ordinary checkpoint. Or the folder or hub name of one,
    which is loaded on the CPU as the class that its config names.

    Raises SpecError for layers that it does not have, UnsupportedModelError for another model.
    """
    if (keep is None) == (drop is None):
        raise SpecError("prune: name the layers with keep=[1, 2, 5] or with drop=[3, 4].")
    if isinstance(model, str | os.PathLike):
        model = _loaded(os.fspath(model), revision, offline)
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"prune: a model of transformers, a SentenceTransformer, a folder or a hub name is "
            f"needed, got {type(model).__name__}."
        )
    depth = len(find_layers(network_of(model)).layers)
    named = [*(keep if keep is not None else drop or ())]
    if any(type(layer) is not int or not 1 <= layer <= depth for layer in named):
        raise SpecError(f"prune: layers are numbers from 1 to {depth}, got {named}.")
    try:
        return pruned(model, kept_layers(depth, named) if keep is None else named)
    except ValueError as error:
        raise SpecError(f"prune: {error}") from None


def _loaded(name: str, revision: str | None, offline: bool) -> Any:
    """Raises LpSweepError."""
    _, files = model_files(name, revision, offline)
    sentences = read_sentence_folder(files)
    if not sentences.modules or sentences.pools_nothing:
        return load_network(files)
    if sentences.problem:
        raise SpecError(f"model {name!r} is of Sentence Transformers: {sentences.problem}.")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise SpecError(
            f"model {name!r} is of Sentence Transformers. Next: pip install sentence-transformers"
        ) from None
    return SentenceTransformer(str(files), device="cpu", local_files_only=True)
