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
from lp_sweep.trials.fast.attention import grid, self_attention
from lp_sweep.trials.fast.distances import (
    deberta_distances,
    deberta_layer,
    modernbert_layer,
    modernbert_turned,
    mpnet_biased,
    mpnet_layer,
    xlnet_layer,
    xlnet_relations,
)
from lp_sweep.trials.fast.tokens import RealTokens, WordTokens
from lp_sweep.trials.model.families import sentence_states
from lp_sweep.trials.model.familytable import family_of

Layer = Callable[[Any, torch.Tensor, RealTokens, Gathering | None, Any], torch.Tensor]


class ForwardPass(NamedTuple):
    """The steps of a forward pass.

    embed: returns (N, H). layer: (N, H) to (N, H), or with `only` to the (B, H) of those tokens;
    it also gets the result of `shared`. finish: the norm after the last layer, of any tokens. head:
    sentence tokens (B, H) to logits (B, C). tagger: any tokens (P, H) to logits (P, C), in a
    network that classifies tokens. on_device: a CUDA graph can hold it, since it never waits for
    the device, and its attention keeps the rows of a bin apart.
    """

    embed: Callable[[Any, RealTokens], torch.Tensor]
    layers: Callable[[Any], nn.ModuleList]
    layer: Layer
    head: Callable[[Any, torch.Tensor], torch.Tensor]
    shared: Callable[[Any, RealTokens], Any] = lambda model, tokens: None
    sentence_last: bool = False  # the sentence token is a row's last, not its first
    finish: Callable[[Any, torch.Tensor], torch.Tensor] = lambda model, hidden: hidden
    mean: Callable[[Any], bool] = lambda config: False  # the head reads the mean of a row's tokens
    supported: Callable[[Any], bool] = lambda config: True
    on_device: bool = True
    tagger: Callable[[Any, torch.Tensor], torch.Tensor] = lambda model, states: model.classifier(
        model.dropout(states)
    )


def _bert_embed(model: Any, tokens: RealTokens) -> torch.Tensor:
    base = model.base_model
    words = base.embeddings
    after = family_of(model.config.model_type).positions.startswith("after")
    positions = _counted(words, tokens) if after else tokens.positions
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
    asking, mixed = self_attention(own, linears, own.num_attention_heads, hidden, tokens, only)
    attended = layer.attention.output(mixed, asking)
    return layer.output(layer.intermediate(attended), attended)


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
    asking, mixed = self_attention(own, linears, own.n_heads, hidden, tokens, only)
    attended = layer.sa_layer_norm(own.out_lin(mixed) + asking)
    return layer.output_layer_norm(layer.ffn(attended) + attended)


def _distilbert_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    pooled = nn.functional.relu(model.pre_classifier(sentence))
    return model.classifier(model.dropout(pooled))


def _deberta_supported(config: Any) -> bool:
    return config.relative_attention and not getattr(config, "conv_kernel_size", 0)


def _deberta_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    return model.classifier(model.dropout(model.pooler(sentence[:, None])))


def _modernbert_head(model: Any, states: torch.Tensor) -> torch.Tensor:
    return model.classifier(model.drop(model.head(states)))


def _xlnet_supported(config: Any) -> bool:
    return config.summary_type == "last" and config.attn_type == "bi" and not config.bi_data


def _xlnet_embed(model: Any, tokens: RealTokens) -> torch.Tensor:
    base = model.transformer
    return base.dropout(base.word_embedding(tokens.ids))


def _xlnet_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    last = model.transformer.dropout(sentence)
    return model.logits_proj(model.sequence_summary(last[:, None]))


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
        _bert_embed, _encoder_layers, mpnet_layer, _roberta_head, shared=mpnet_biased
    ),
    "deberta-v2": ForwardPass(
        _bert_embed,
        _encoder_layers,
        deberta_layer,
        _deberta_head,
        shared=deberta_distances,
        supported=_deberta_supported,
        on_device=False,  # the host computes its distances
    ),
    "modernbert": ForwardPass(
        lambda model, tokens: model.base_model.embeddings(input_ids=tokens.ids[None])[0],
        lambda model: model.base_model.layers,
        modernbert_layer,
        _modernbert_head,
        shared=modernbert_turned,
        finish=lambda model, hidden: model.base_model.final_norm(hidden),
        mean=lambda config: config.classifier_pooling == "mean",
        tagger=_modernbert_head,
    ),
    "xlnet": ForwardPass(
        _xlnet_embed,
        lambda model: model.transformer.layer,
        xlnet_layer,
        _xlnet_head,
        shared=xlnet_relations,
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
    way = _way(model)
    if way.mean(model.config):
        return way.head(model, embeddings(model, tokens, "mean", states))
    sentence = _through(model, tokens, states, only_sentence=True)
    return way.head(model, way.finish(model, sentence))


def word_logits(model: Any, tokens: RealTokens, words: WordTokens) -> torch.Tensor:
    """(B, V, C) of each word, in the requested order of rows. A word without a token has arbitrary
    logits and no gradient."""
    answered = pick(hidden_states(model, tokens), words.picked)
    return _way(model).tagger(model, answered).view(*words.shape, model.config.num_labels)


def tagged(model: Any, tokens: RealTokens) -> torch.Tensor:
    """(bins, length, C) of every token of packed rows."""
    (group,) = tokens.groups
    found = _way(model).tagger(model, hidden_states(model, tokens))
    return found.view(group.rows, group.longest, model.config.num_labels)


def hidden_states(
    model: Any, tokens: RealTokens, states: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """(N, H) of all tokens after the last layer; `states` as for `logits`."""
    hidden = _through(model, tokens, states, only_sentence=False)
    return _way(model).finish(model, hidden)


def pooled(hidden: torch.Tensor, real: torch.Tensor, pooling: str) -> torch.Tensor:
    """(B, T, H) and (B, T), non-zero on real tokens, give (B, H)."""
    if pooling != "mean":
        return sentence_states(hidden, real, last=pooling == "last")
    weights = real.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(1) / weights.sum(1)


def embeddings(
    model: nn.Module, tokens: RealTokens, pooling: str, states: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """(B, H) in the requested order; `states` as for `logits`."""
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
