"""From the tokens of a text to one vector: the embedding of a bi-encoder.

`mean` over the text's tokens, special ones included; `cls` the first; `last` the last. What a
Sentence Transformers folder says of its own pooling is read by `orchestrator.inputs.models`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lp_sweep.trials.families import sentence_states
from lp_sweep.trials.unpadded.attention import grid
from lp_sweep.trials.unpadded.families import as_asked, hidden_states
from lp_sweep.trials.unpadded.pick import pick
from lp_sweep.trials.unpadded.tokens import RealTokens


def pooled(hidden: torch.Tensor, real: torch.Tensor, pooling: str) -> torch.Tensor:
    """(B, T, H) and (B, T), non-zero on real tokens, give (B, H)."""
    if pooling != "mean":
        return sentence_states(hidden, real, last=pooling == "last")
    weights = real.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(1) / weights.sum(1)


def padded_embeddings(
    model: nn.Module, batch: dict[str, Any], real: torch.Tensor, pooling: str
) -> torch.Tensor:
    """(B, H) of a padded batch, whose tokens are real (B, T); the head does not run."""
    base: nn.Module = model.base_model  # type: ignore[assignment]
    return pooled(base(**batch).last_hidden_state, real, pooling)


def unpadded_embeddings(
    model: nn.Module, tokens: RealTokens, pooling: str, states: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """(B, H) in the order that was asked for. See `unpadded.families.logits`."""
    hidden = hidden_states(model, tokens, states)
    if pooling != "mean":
        index = tokens.last if pooling == "last" else tokens.first
        return as_asked(tokens, pick(hidden, tokens.one_each(index)))
    lengths = (tokens.last - tokens.first + 1)[:, None]
    if tokens.packed:
        here = torch.arange(len(hidden), device=hidden.device)
        of_row = (here >= tokens.first[:, None]) & (here <= tokens.last[:, None])  # (B, N)
        return of_row.to(hidden.dtype) @ hidden / lengths
    found, begin = [], 0
    sizes = [group.size for group in tokens.groups]
    for group, own in zip(tokens.groups, torch.split(hidden, sizes), strict=True):
        here = torch.arange(group.longest, device=hidden.device)
        real = here < lengths[begin : begin + group.rows]
        found.append(pooled(grid(group, own), real, pooling))
        begin += group.rows
    return as_asked(tokens, torch.cat(found))
