"""A pre-trained encoder that was read once, and the networks that are made from it without reading.

    original = Original(load_original("bert-base-cased", num_labels=2, ...))
    model = original.network([1, 2, 3, 4], seed=1)   # what load_pruned gives, to the last bit

What is handed out shares no tensor with the original: a trial may do with it what it likes. The
original's own are mostly pages of the checkpoint's file, which the workers of a node share.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.load import LoadedEncoder, initialise_head
from lp_sweep.trials.prune import finish, keep_layers
from lp_sweep.trials.shelf import Shelf

_CHOICES = 16  # of layers, whose modules are kept: some 5 kB a module, and no tensor


class Original:
    """One encoder with one kind of head, as `prune.load_original` gives it."""

    def __init__(self, loaded: LoadedEncoder) -> None:
        self._model, self._fresh = loaded
        self._pruned: Shelf[tuple[int, ...] | None, PreTrainedModel] = Shelf(_CHOICES)

    @property
    def bytes(self) -> int:
        """Of its parameters."""
        return sum(p.numel() * p.element_size() for p in self._model.parameters())

    def network(self, kept_layers: Sequence[int] | None, seed: int) -> PreTrainedModel:
        """A new network of these layers, as `load_pruned` would read it; raises what that does."""
        kept = None if kept_layers is None else tuple(kept_layers)
        network = copy.deepcopy(self._pruned.get(kept, lambda: self._prune(kept)))
        initialise_head(network, self._fresh, seed)
        return network

    def _prune(self, kept: tuple[int, ...] | None) -> PreTrainedModel:
        """Modules of their own, the tensors still the original's: only what stays is copied."""
        tensors = [*self._model.parameters(), *self._model.buffers()]
        shallow = copy.deepcopy(self._model, {id(tensor): tensor for tensor in tensors})
        if kept is not None:
            keep_layers(shallow, kept)
        return shallow

    def become(self, kept_layers: Sequence[int] | None, seed: int) -> PreTrainedModel:
        """The same without a copy: the original itself, which is of no further use."""
        return finish(LoadedEncoder(self._model, self._fresh), kept_layers, seed)

    def sharing(self, others: Sequence[Original]) -> Original:
        """This one, with the tensors of the others, which were read from the same files with other
        heads: memory holds an encoder once. (What a head's draw overwrites may be shared, too.)"""
        theirs = {name: value for other in others for name, value in other._parameters().items()}
        for name, parameter in self._parameters().items():
            if name in theirs and theirs[name].shape == parameter.shape:
                path, _, leaf = name.rpartition(".")
                setattr(self._model.get_submodule(path), leaf, theirs[name])
        return self

    def _parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._model.named_parameters(remove_duplicate=False))
