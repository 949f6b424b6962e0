"""The forward passes that `familytable` names, over tokens (N, H) instead of (B, T, H).

They call the network's own modules in the order of its own forward pass. A family is found by name:
others have children of the same names but use them in another order.
"""

# mypy: disable-error-code="no-any-return"
# (a network's own modules have no types)

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from lp_sweep.trials.device import Gathering, pick
from lp_sweep.trials.fast.attention import Grids, attend, by_heads, grid, grids
from lp_sweep.trials.fast.tokens import Group, RealTokens, WordTokens
from lp_sweep.trials.model.familytable import family_of

Layer = Callable[[Any, torch.Tensor, RealTokens, Gathering | None, Any], torch.Tensor]


class ForwardPass(NamedTuple):
    """The steps of a forward pass.

    embed: returns (N, H). layer: (N, H) to (N, H), or with `only` to the (B, H) of those tokens;
    it also gets the result of `shared`. head: sentence tokens (B, H) to logits (B, C). tagger: any
    tokens (P, H) to logits (P, C), in a network that classifies tokens. on_device: a CUDA graph can
    hold it, since it never waits for the device, and its attention keeps the rows of a bin apart.
    """

    embed: Callable[[Any, RealTokens], torch.Tensor]
    layers: Callable[[Any], nn.ModuleList]
    layer: Layer
    head: Callable[[Any, torch.Tensor], torch.Tensor]
    shared: Callable[[Any, RealTokens], Any] = lambda model, tokens: None
    sentence_last: bool = False  # the sentence token is a row's last, not its first
    supported: Callable[[Any], bool] = lambda config: True
    on_device: bool = True
    tagger: Callable[[Any, torch.Tensor], torch.Tensor] = lambda model, states: model.classifier(
        model.dropout(states)
    )


def _bert_embed(model: Any, tokens: RealTokens) -> torch.Tensor:
    base = model.base_model
    words = base.embeddings
    from_0 = family_of(model.config.model_type).positions == "from 0"
    positions = tokens.positions if from_0 else _counted(words, tokens)
    types = torch.zeros_like(tokens.ids) if tokens.types is None else tokens.types
    hidden = words(
        input_ids=tokens.ids[None],
        token_type_ids=types[None],
        position_ids=positions[None],
    )
    if hasattr(base, "embeddings_project"):
        hidden = base.embeddings_project(hidden)
    return hidden[0]


def _counted(words: Any, tokens: RealTokens) -> torch.Tensor:
    """(N,) positions, counted from after the padding's number. A padding token inside a text has
    the padding's number and is not counted."""
    real = (tokens.ids != words.word_embeddings.padding_idx).long()
    counts = real.cumsum(0)
    begins = torch.arange(len(real), device=real.device) - tokens.positions
    before = (counts - real).index_select(0, begins)
    return (counts - before) * real + words.padding_idx


def _bert_layer(
    layer: Any, hidden: torch.Tensor, tokens: RealTokens, only: Gathering | None, _: None
) -> torch.Tensor:
    own = layer.attention.self
    linears = own.query, own.key, own.value
    asking, mixed = _attended(own, linears, own.num_attention_heads, hidden, tokens, only)
    attended = layer.attention.output(mixed, asking)
    return layer.output(layer.intermediate(attended), attended)


def _attended(
    own: Any,
    linears: tuple[nn.Linear, nn.Linear, nn.Linear],
    heads: int,
    hidden: torch.Tensor,
    tokens: RealTokens,
    only: Gathering | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The states of the tokens that attend, (N or B, H), and what they attend to, of that shape.
    linears: of query, key and value."""
    query, key, value = linears
    asking = hidden if only is None else pick(hidden, only)
    asked = query(hidden if tokens.packed else asking)
    dropout = own.dropout.p if own.training else 0.0
    return asking, attend(tokens, asked, key(hidden), value(hidden), heads, dropout, only)


def _bert_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    return model.classifier(model.dropout(model.bert.pooler(sentence[:, None])))


def _roberta_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    return model.classifier(sentence[:, None])


def _distilbert_embed(model: Any, tokens: RealTokens) -> torch.Tensor:
    words = model.distilbert.embeddings
    return words(input_ids=tokens.ids[None], position_ids=tokens.positions[None])[0]


def _distilbert_layer(
    layer: Any, hidden: torch.Tensor, tokens: RealTokens, only: Gathering | None, _: None
) -> torch.Tensor:
    own = layer.attention
    linears = own.q_lin, own.k_lin, own.v_lin
    asking, mixed = _attended(own, linears, own.n_heads, hidden, tokens, only)
    attended = layer.sa_layer_norm(own.out_lin(mixed) + asking)
    return layer.output_layer_norm(layer.ffn(attended) + attended)


def _distilbert_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    pooled = nn.functional.relu(model.pre_classifier(sentence))
    return model.classifier(model.dropout(pooled))


# -- MPNet: as BERT, but attention also depends on the distance of two tokens (Song et al. 2020)


def _mpnet_biased(model: Any, tokens: RealTokens) -> RealTokens:
    """With the bias of each distance in the masks, which all layers share."""
    bias = model.base_model.encoder.compute_position_bias

    def biased(group: Group) -> Group:
        found = bias(tokens.ids.new_empty(1, group.longest))  # (1, heads, L, L)
        return group._replace(mask=found if group.mask is None else found + group.mask)

    return tokens._replace(groups=tuple(map(biased, tokens.groups)))


def _mpnet_layer(
    layer: Any, hidden: torch.Tensor, _: RealTokens, only: Gathering | None, tokens: RealTokens
) -> torch.Tensor:
    around, own = layer.attention, layer.attention.attn
    linears = own.q, own.k, own.v
    asking, mixed = _attended(own, linears, own.num_attention_heads, hidden, tokens, only)
    attended = around.LayerNorm(around.dropout(own.o(mixed)) + asking)
    return layer.output(layer.intermediate(attended), attended)


# -- XLNet: attention by the distance and the segments of two tokens (Yang et al. 2019, and
# Transformer-XL, Dai et al. 2019, section 3.3). Its sentence token is the last. Terms and names are
# those of the network's own code, which is for grids of all rows.


class _Relations(NamedTuple):
    """Tensors that all layers share for a group of B rows of up to L tokens."""

    distances: torch.Tensor  # (B or 1, 2 L, H): of L, L - 1, ... 1 - L, with dropout
    lengths: torch.Tensor  # (B,)
    segments: torch.Tensor | None  # (B, L); None if the tokenizer has none


def _xlnet_supported(config: Any) -> bool:
    return config.summary_type == "last" and config.attn_type == "bi" and not config.bi_data


def _xlnet_embed(model: Any, tokens: RealTokens) -> torch.Tensor:
    base = model.transformer
    return base.dropout(base.word_embedding(tokens.ids))


def _xlnet_relations(model: Any, tokens: RealTokens) -> list[_Relations]:
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


def _xlnet_layer(
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


def _xlnet_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    last = model.transformer.dropout(sentence)
    return model.logits_proj(model.sequence_summary(last[:, None]))


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


def _encoder_layers(model: Any) -> nn.ModuleList:
    return model.base_model.encoder.layer


PASSES = {
    "bert": ForwardPass(_bert_embed, _encoder_layers, _bert_layer, _bert_head),
    "roberta": ForwardPass(_bert_embed, _encoder_layers, _bert_layer, _roberta_head),
    "distilbert": ForwardPass(
        _distilbert_embed,
        lambda model: model.distilbert.transformer.layer,
        _distilbert_layer,
        _distilbert_head,
    ),
    "mpnet": ForwardPass(
        _bert_embed, _encoder_layers, _mpnet_layer, _roberta_head, shared=_mpnet_biased
    ),
    "xlnet": ForwardPass(
        _xlnet_embed,
        lambda model: model.transformer.layer,
        _xlnet_layer,
        _xlnet_head,
        shared=_xlnet_relations,
        sentence_last=True,
        supported=_xlnet_supported,
        on_device=False,  # the host computes its table of distances
        tagger=lambda model, states: model.classifier(model.transformer.dropout(states)),
    ),
}


def forward_pass_of(model: Any) -> ForwardPass | None:
    """None if this network has no forward pass without padding."""
    if getattr(model.config, "is_decoder", False):
        return None
    found = PASSES.get(family_of(model.config.model_type).unpadded or "")
    return found if found is not None and found.supported(model.config) else None


def logits(
    model: Any, tokens: RealTokens, states: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """(B, C). The last layer computes only the sentence tokens. `states` collects the sentence
    tokens after each layer, (B, H)."""
    sentence = _through(model, tokens, states, only_sentence=True)
    return _way(model).head(model, sentence)


def word_logits(model: Any, tokens: RealTokens, words: WordTokens) -> torch.Tensor:
    """(B, V, C) of each word, in the requested order of rows. A word without a token has arbitrary
    logits and no gradient."""
    answered = pick(hidden_states(model, tokens), words.picked)
    return _way(model).tagger(model, answered).view(*words.shape, model.config.num_labels)


def hidden_states(
    model: Any, tokens: RealTokens, states: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """(N, H) of all tokens after the last layer; `states` as for `logits`."""
    return _through(model, tokens, states, only_sentence=False)


def as_asked(tokens: RealTokens, vectors: torch.Tensor) -> torch.Tensor:
    """The rows' (B, H) in the requested order."""
    return vectors if tokens.asked is None else pick(vectors, tokens.asked)


def _way(model: Any) -> ForwardPass:
    """How to pass through a network that `forward_pass_of` knows."""
    return PASSES[family_of(model.config.model_type).unpadded or ""]


def _through(
    model: Any, tokens: RealTokens, states: list[torch.Tensor] | None, *, only_sentence: bool
) -> torch.Tensor:
    """After the last layer: (N, H), or the sentence tokens (B, H) in the requested order."""
    way = _way(model)
    sentence = tokens.one_each(tokens.last if way.sentence_last else tokens.first)
    hidden, shared = way.embed(model, tokens), way.shared(model, tokens)
    *below, last = way.layers(model)
    for layer in below:
        hidden = way.layer(layer, hidden, tokens, None, shared)
        if states is not None:
            states.append(as_asked(tokens, pick(hidden, sentence)))
    hidden = way.layer(last, hidden, tokens, sentence if only_sentence else None, shared)
    if only_sentence:
        hidden = as_asked(tokens, hidden)
    if states is not None:
        states.append(hidden if only_sentence else as_asked(tokens, pick(hidden, sentence)))
    return hidden
