"""A network's states over a task's dev rows, and what of them is kept for the next measure.

Contribution, block influence, angles, probes and similarity all look at the pre-trained network as
it goes over the same rows: where a worker measures several, it goes there once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from lp_sweep.trials.measures.influence import CosineSums, cosine_sums
from lp_sweep.trials.model.reduced import original_layers
from lp_sweep.trials.model.states import Batch, LayerStates, layer_states

MAX_BYTES = 512 << 20  # of states, on the host


class DevPass(NamedTuple):
    """The result of one pass, batch by batch, on the CPU."""

    sentence: list[LayerStates]  # of the sentence tokens alone
    cosines: list[CosineSums]
    whole: list[LayerStates] | None  # of every token, where there is room for them


Keep = Callable[[Callable[[], DevPass]], DevPass]  # gives what was kept, else makes and keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class DevStates:
    """Either way the numbers are the same, to the last bit.

    rows, padded_tokens: of all batches. keep: None for a network that nobody measures again.
    """

    model: PreTrainedModel
    batches: Callable[[], Iterable[Batch]]
    rows: int
    padded_tokens: int
    keep: Keep | None

    def sentence(self) -> Iterator[LayerStates]:
        """Those of the sentence tokens: L x B x H a batch."""
        if (kept := self._kept()) is None:
            return layer_states(self.model, self.batches(), only_sentence=True)
        return (states.to(self.model.device) for states in kept.sentence)

    def cosines(self) -> Iterator[CosineSums]:
        """Between what each layer receives and returns, of every token."""
        if (kept := self._kept()) is None:
            return map(cosine_sums, layer_states(self.model, self.batches()))
        return iter(kept.cosines)

    def whole(self) -> Iterator[LayerStates]:
        """Those of every token: L x B x T x H a batch."""
        if not self._keeps_whole() or (kept := self._kept()) is None or kept.whole is None:
            return layer_states(self.model, self.batches())
        return (states.to(self.model.device) for states in kept.whole)

    def _kept(self) -> DevPass | None:
        if self.keep is None or self._bytes(self.rows) > MAX_BYTES:
            return None
        return self.keep(self._pass)

    def _keeps_whole(self) -> bool:
        return self._bytes(self.rows + self.padded_tokens) <= MAX_BYTES

    def _bytes(self, tokens: int) -> int:
        """Size of their states in float32. A layer mostly receives what the last one gave."""
        states = 1 + len(original_layers(self.model.config))
        return tokens * states * int(self.model.config.hidden_size) * 4

    def _pass(self) -> DevPass:
        found = DevPass([], [], [] if self._keeps_whole() else None)
        host = torch.device("cpu")
        for states in layer_states(self.model, self.batches()):
            sums, tokens = cosine_sums(states)
            found.cosines.append(CosineSums(sums.to(host), tokens))
            found.sentence.append(states.sentence_only().to(host))
            if found.whole is not None:
                found.whole.append(states.to(host))
        return found
