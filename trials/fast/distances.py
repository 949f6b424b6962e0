"""Layers whose attention depends on the distance of two tokens: of MPNet, DeBERTa, ModernBERT and
XLNet. As in `networks`, they call the network's own modules, in its own order."""

# mypy: disable-error-code="no-any-return"
# (a network's own modules have no types)

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lp_sweep.trials.device import Gathering, onto, pick
from lp_sweep.trials.fast.attention import Grids, attend, by_heads, grid, grids, self_attention
from lp_sweep.trials.fast.tokens import Group, RealTokens, barred

# -- MPNet: as BERT, but attention also depends on the distance of two tokens (Song et al. 2020)


def mpnet_biased(model: Any, tokens: RealTokens) -> RealTokens:
    """With the bias of each distance in the masks, which all layers share."""
    bias = model.base_model.encoder.compute_position_bias  # of (1, L) to (1, heads, L, L)
    ids = tokens.ids
    every = (group.biased(bias(ids.new_empty(1, group.longest))) for group in tokens.groups)
    return tokens._replace(groups=tuple(every))


def mpnet_layer(
    layer: Any, hidden: torch.Tensor, _: RealTokens, only: Gathering | None, tokens: RealTokens
) -> torch.Tensor:
    around, own = layer.attention, layer.attention.attn
    linears = own.q, own.k, own.v
    asking, mixed = self_attention(own, linears, own.num_attention_heads, hidden, tokens, only)
    attended = around.LayerNorm(around.dropout(own.o(mixed)) + asking)
    return layer.output(layer.intermediate(attended), attended)


# -- DeBERTa-v2 and v3: attention also depends on the product of a token with a distance (He et al.
# 2021, section 3.1). Only the distances within the longest row are computed.


class _Distances(NamedTuple):
    """Tensors that all layers share; R distances are within the longest row."""

    near: torch.Tensor  # (R, H)
    places: tuple[torch.Tensor, ...]  # of each group, (L, L): two tokens' distance, in `near`


def deberta_distances(model: Any, tokens: RealTokens) -> _Distances:
    encoder = model.base_model.encoder
    span = encoder.layer[0].attention.self.pos_ebd_size
    lengths = [group.longest for group in tokens.groups]
    apart = encoder.get_rel_pos(torch.empty(1, max(lengths), 0))[0].numpy()
    place = (apart + span).clip(0, 2 * span - 1)  # (L, L)
    lowest, highest = int(place.min()), int(place.max())
    place = onto(place - lowest, tokens.ids.device)
    places = tuple(place[:length, :length] for length in lengths)
    return _Distances(encoder.get_rel_embedding()[lowest : highest + 1], places)


def deberta_layer(
    layer: Any, hidden: torch.Tensor, tokens: RealTokens, only: Gathering | None, shared: _Distances
) -> torch.Tensor:
    own, heads = layer.attention.self, layer.attention.self.num_attention_heads
    kinds = {"c2p", "p2c"} & {*own.pos_att_type}  # content to position, position to content
    share, scale = (1 + len(kinds)) ** -0.5, own.attention_head_size**-0.5
    near, places = own.pos_dropout(shared.near), iter(shared.places)
    prefix = "" if own.share_att_key else "pos_"

    def far(linear: str) -> torch.Tensor:
        """(1, heads, D, R)"""
        return by_heads(getattr(own, prefix + linear)(near)[None] * scale, heads).transpose(2, 3)

    keys = far("key_proj") if "c2p" in kinds else None
    queries = far("query_proj").transpose(2, 3) * share if "p2c" in kinds else None

    def bias(part: Grids) -> torch.Tensor:
        place = next(places)[: part.query.shape[2]].expand(*part.query.shape[:3], -1)
        by_key: Any = 0 if keys is None else (part.query @ keys).gather(3, place)
        if queries is None:
            return by_key
        return by_key + (queries @ part.key.transpose(2, 3)).gather(2, place)

    def query(states: torch.Tensor) -> torch.Tensor:
        return own.query_proj(states) * share

    linears = query, own.key_proj, own.value_proj
    asking, mixed = self_attention(
        own, linears, heads, hidden, tokens, only, bias if kinds else None
    )
    attended = layer.attention.output(mixed, asking)
    return layer.output(layer.intermediate(attended), attended)


# -- ModernBERT: positions turn queries and keys (Su et al. 2021), and two of three layers attend to
# near tokens only (Warner et al. 2024)


class _Turned(NamedTuple):
    """Tensors that all layers of a type share."""

    tokens: RealTokens  # in a layer that attends to near tokens only, with masks of its window
    cos: torch.Tensor  # (N, 1, D)
    sin: torch.Tensor  # (N, 1, D)


def modernbert_turned(model: Any, tokens: RealTokens) -> dict[str, _Turned]:
    base, window = model.base_model, model.config.local_attention // 2

    def near(group: Group) -> Group:
        if group.longest <= window + 1:
            return group
        place = torch.arange(group.longest, device=tokens.ids.device)
        return group.biased(barred((place - place[:, None]).abs() > window)[None, None])

    found = {}
    for kind in {layer.attention_type for layer in base.layers}:
        cos, sin = base.rotary_emb(base.embeddings.norm.weight, tokens.positions[None], kind)
        groups = map(near, tokens.groups) if kind == "sliding_attention" else tokens.groups
        own = tokens._replace(groups=tuple(groups))
        found[kind] = _Turned(own, cos[0, :, None], sin[0, :, None])
    return found


def modernbert_layer(
    layer: Any,
    hidden: torch.Tensor,
    _: RealTokens,
    only: Gathering | None,
    shared: dict[str, _Turned],
) -> torch.Tensor:
    own, (tokens, cos, sin) = layer.attn, shared[layer.attention_type]

    def turned(states: torch.Tensor) -> torch.Tensor:
        heads = states.view(len(states), -1, own.head_dim)
        first, second = heads.chunk(2, -1)
        found = heads * cos + torch.cat((-second, first), -1) * sin
        return found.to(states.dtype).view(states.shape)

    query, key, value = own.Wqkv(layer.attn_norm(hidden)).chunk(3, -1)
    query = turned(query)
    if only is not None and not tokens.packed:
        query = pick(query, only)
    heads, dropout = query.shape[1] // own.head_dim, own.attention_dropout if own.training else 0.0
    mixed = attend(tokens, query, turned(key), value, heads, dropout, only)
    attended = (hidden if only is None else pick(hidden, only)) + own.out_drop(own.Wo(mixed))
    return attended + layer.mlp(layer.mlp_norm(attended))


# -- XLNet: attention by the distance and the segments of two tokens (Yang et al. 2019, and
# Transformer-XL, Dai et al. 2019, section 3.3). Its sentence token is the last. Terms and names are
# those of the network's own code, which is for grids of all rows.


class _Relations(NamedTuple):
    """Tensors that all layers share for a group of B rows of up to L tokens."""

    distances: torch.Tensor  # (B or 1, 2 L, H): of L, L - 1, ... 1 - L, with dropout
    lengths: torch.Tensor  # (B,)
    segments: torch.Tensor | None  # (B, L); None if the tokenizer has none


def xlnet_relations(model: Any, tokens: RealTokens) -> list[_Relations]:
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
            _Relations(
                base.dropout(distances).transpose(0, 1),
                lengths,
                None if own is None else grid(group, own).squeeze(2),
            )
        )
    return found


def xlnet_layer(
    module: Any,
    hidden: torch.Tensor,
    tokens: RealTokens,
    only: Gathering | None,
    shared: list[_Relations],
) -> torch.Tensor:
    own = module.rel_attn
    asking = hidden if only is None else pick(hidden, only)
    query = asking @ own.q.flatten(1)
    key, value = hidden @ own.k.flatten(1), hidden @ own.v.flatten(1)
    parts = zip(grids(tokens, query, key, value, own.n_head), shared, strict=True)
    mixed = torch.cat([part.flat(_xlnet_attend(own, part, relations)) for part, relations in parts])
    attended = own.layer_norm(own.dropout(mixed @ own.o.flatten(1).t()) + asking)
    return module.ff(attended)


def _xlnet_attend(own: Any, part: Grids, relations: _Relations) -> torch.Tensor:
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
    own: Any, relations: _Relations, asked: torch.Tensor, place: torch.Tensor
) -> torch.Tensor:
    """(B, heads, A, L). place: (B or 1, A, L), the index of two tokens' distance in the 2 L."""
    far = by_heads(relations.distances @ own.r.flatten(1), own.n_head)
    scores = (asked + own.r_r_bias[:, None]) @ far.transpose(2, 3)  # (B, heads, A, 2 L)
    return scores.gather(3, place[:, None].expand(*scores.shape[:3], -1))
