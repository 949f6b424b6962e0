"""XLNet over real tokens: attention by the distance and the segments of two tokens (Yang et al.
2019, and Transformer-XL, Dai et al. 2019, section 3.3). Its sentence token is the last.

Terms and names are those of the network's own code, which is for grids of all rows.
"""

# mypy: disable-error-code="no-any-return"
# (a network's own modules have no types)

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lp_sweep.trials.device import Picked, pick
from lp_sweep.trials.fast.attention import Grids, by_heads, grid, grids
from lp_sweep.trials.fast.tokens import RealTokens


class Relations(NamedTuple):
    """Tensors that all layers share for a group of B rows of up to L tokens."""

    distances: torch.Tensor  # (B or 1, 2 L, H): of L, L - 1, ... 1 - L, with dropout
    lengths: torch.Tensor  # (B,)
    segments: torch.Tensor | None  # (B, L); None if the tokenizer has none


def supported(config: Any) -> bool:
    return config.summary_type == "last" and config.attn_type == "bi" and not config.bi_data


def embed(model: Any, tokens: RealTokens) -> torch.Tensor:
    base = model.transformer
    return base.dropout(base.word_embedding(tokens.ids))


def relations(model: Any, tokens: RealTokens) -> list[Relations]:
    """One for each group."""
    base, found = model.transformer, []
    sizes = [group.size for group in tokens.groups]
    types = (
        [None] * len(sizes)
        if tokens.types is None
        else torch.split(tokens.types.unsqueeze(1), sizes)
    )
    counts = torch.split(tokens.last - tokens.first + 1, [group.rows for group in tokens.groups])
    for group, own, lengths in zip(tokens.groups, types, counts, strict=True):
        rows = group.rows if base.training and base.dropout.p else 1  # dropout differs by row
        distances = base.relative_positional_encoding(
            group.longest, group.longest, bsz=rows, device=tokens.ids.device
        )
        found.append(
            Relations(
                base.dropout(distances).transpose(0, 1),
                lengths,
                None if own is None else grid(group, own).squeeze(2),
            )
        )
    return found


def layer(
    module: Any,
    hidden: torch.Tensor,
    tokens: RealTokens,
    only: Picked | None,
    shared: list[Relations],
) -> torch.Tensor:
    own = module.rel_attn
    asking = hidden if only is None else pick(hidden, only)
    query = asking @ own.q.flatten(1)
    key, value = hidden @ own.k.flatten(1), hidden @ own.v.flatten(1)
    parts = zip(grids(tokens, query, key, value, own.n_head), shared, strict=True)
    mixed = torch.cat([part.flat(_mixed(own, part, relations)) for part, relations in parts])
    attended = own.layer_norm(own.dropout(mixed @ own.o.flatten(1).t()) + asking)
    return module.ff(attended)


def head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    last = model.transformer.dropout(sentence)
    return model.logits_proj(model.sequence_summary(last[:, None]))


def _mixed(own: Any, part: Grids, relations: Relations) -> torch.Tensor:
    """(B, heads, A, D)."""
    group, asked, longest = part.group, part.query, part.group.longest
    scores = (asked + own.r_w_bias[:, None]) @ part.key.transpose(2, 3)
    column = torch.arange(longest, device=asked.device)
    row = relations.lengths[:, None] - 1 if part.one_each else column[None]  # (B or 1, A)
    scores = scores + _by_distance(own, relations, asked, longest - row[..., None] + column)
    if relations.segments is not None:
        rows = row.expand(group.rows, -1)
        here = relations.segments.gather(1, rows)  # (B, A)
        other = here[:, None, :, None] != relations.segments[:, None, None, :]  # (B, 1, A, L)
        by_segment = torch.einsum("bnid,snd->bnis", asked + own.r_s_bias[:, None], own.seg_embed)
        scores = scores + torch.where(other, by_segment[..., 1:], by_segment[..., :1])
    scores = scores * own.scale
    if group.mask is not None:
        scores = scores + group.mask
    return own.dropout(scores.softmax(-1)) @ part.value


def _by_distance(
    own: Any, relations: Relations, asked: torch.Tensor, place: torch.Tensor
) -> torch.Tensor:
    """(B, heads, A, L). place: (B or 1, A, L), the index of two tokens' distance in the 2 L."""
    far = by_heads(relations.distances @ own.r.flatten(1), own.n_head)
    scores = (asked + own.r_r_bias[:, None]) @ far.transpose(2, 3)  # (B, heads, A, 2 L)
    return scores.gather(3, place[:, None].expand(*scores.shape[:3], -1))
