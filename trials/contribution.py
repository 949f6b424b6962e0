"""How much each layer changes the sentence token: what the `contribution` strategy selects by.

Poor Man's BERT (Sajjad et al. 2020), "Contribution-based strategy": the cosine similarity between
the sentence token before and after a layer, averaged over the dev set. A layer with a high value
changes little and may go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.families import (
    find_layers,
    sentence_states,
    sentence_token_is_last,
    time_comes_first,
)


def contribution_profile(
    model: PreTrainedModel, batches: Iterable[Mapping[str, torch.Tensor]]
) -> list[float]:
    """Mean cosine, over all examples, of the sentence token before and after each layer, in order.

    Each batch holds `input_ids` and `attention_mask` (B, T) and whatever else the model takes
    (`labels` are ignored); batches may differ in size and length, on any device. The model runs in
    eval mode, and its mode is restored. Sums are kept in float64, so batching doesn't matter.
    Raises ValueError when there is no example.
    """
    meter = _Meter(model)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), meter.watching():
            for batch in batches:
                meter.feed(batch)
    finally:
        model.train(was_training)
    if not meter.examples:
        raise ValueError("contribution: no examples; give at least one batch.")
    sums: list[float] = meter.sums.tolist()
    return [total / meter.examples for total in sums]


class _Meter:
    """Sums cosines as layers run.

    Hooks rather than `output_hidden_states`: the last of those has ModernBERT's final norm in it,
    and the second DeBERTa's convolution, neither of which belongs to a layer.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.layers = find_layers(model).layers
        self.last = sentence_token_is_last(model.config)
        self.time_first = time_comes_first(model.config)
        self.sums = torch.zeros(len(self.layers), dtype=torch.float64, device=model.device)
        self.examples = 0
        self.mask = torch.empty(0)  # (B, T) of the batch under way

    def feed(self, batch: Mapping[str, torch.Tensor]) -> None:
        inputs = {k: v.to(self.model.device) for k, v in batch.items() if k != "labels"}
        self.mask = inputs["attention_mask"]
        self.model.base_model(**inputs)  # the head is not needed
        self.examples += len(self.mask)

    @contextmanager
    def watching(self) -> Iterator[None]:
        handles = [
            layer.register_forward_hook(self._hook(index), with_kwargs=True)
            for index, layer in enumerate(self.layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, index: int) -> Callable[..., None]:
        def add(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            before = self._sentence(args[0] if args else kwargs["hidden_states"])
            after = self._sentence(output if isinstance(output, torch.Tensor) else output[0])
            self.sums[index] += torch.cosine_similarity(before, after, dim=1).sum()

        return add

    def _sentence(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """(B, T, H), or (T, B, H) where time comes first, to (B, H) in float64."""
        states = hidden_states.transpose(0, 1) if self.time_first else hidden_states
        if states.shape[:2] != self.mask.shape:
            raise UnsupportedModelError(
                f"{self.model.config.model_type}: a layer sees states of shape "
                f"{tuple(states.shape)} for a batch of shape {tuple(self.mask.shape)}, so its "
                "sentence token can't be found. Use another strategy for this model."
            )
        return sentence_states(states, self.mask, self.last).double()
