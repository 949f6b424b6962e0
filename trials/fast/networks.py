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

from lp_sweep.trials.device import Picked, pick
from lp_sweep.trials.fast import xlnet
from lp_sweep.trials.fast.attention import attend
from lp_sweep.trials.fast.tokens import RealTokens, WordTokens
from lp_sweep.trials.model.familytable import family_of

Layer = Callable[[Any, torch.Tensor, RealTokens, Picked | None, Any], torch.Tensor]


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
    after_padding = family_of(model.config.model_type).positions == "after padding"
    positions = _counted(words, tokens) if after_padding else tokens.positions
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
    layer: Any, hidden: torch.Tensor, tokens: RealTokens, only: Picked | None, _: None
) -> torch.Tensor:
    own = layer.attention.self
    asking = hidden if only is None else pick(hidden, only)
    mixed = attend(
        tokens,
        own.query(hidden if tokens.packed else asking),
        own.key(hidden),
        own.value(hidden),
        heads=own.num_attention_heads,
        dropout=own.dropout.p if own.training else 0.0,
        only=only,
    )
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
    layer: Any, hidden: torch.Tensor, tokens: RealTokens, only: Picked | None, _: None
) -> torch.Tensor:
    own = layer.attention
    asking = hidden if only is None else pick(hidden, only)
    mixed = attend(
        tokens,
        own.q_lin(hidden if tokens.packed else asking),
        own.k_lin(hidden),
        own.v_lin(hidden),
        heads=own.n_heads,
        dropout=own.dropout.p if own.training else 0.0,
        only=only,
    )
    attended = layer.sa_layer_norm(own.out_lin(mixed) + asking)
    return layer.output_layer_norm(layer.ffn(attended) + attended)


def _distilbert_head(model: Any, sentence: torch.Tensor) -> torch.Tensor:
    pooled = nn.functional.relu(model.pre_classifier(sentence))
    return model.classifier(model.dropout(pooled))


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
    "xlnet": ForwardPass(
        xlnet.embed,
        lambda model: model.transformer.layer,
        xlnet.layer,
        xlnet.head,
        shared=xlnet.relations,
        sentence_last=True,
        supported=xlnet.supported,
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
    sentence = _sentence(way, tokens)
    hidden, shared = _below(way, model, tokens, sentence, states)
    asked = as_asked(tokens, way.layer(way.layers(model)[-1], hidden, tokens, sentence, shared))
    if states is not None:
        states.append(asked)
    return way.head(model, asked)


def word_logits(model: Any, tokens: RealTokens, words: WordTokens) -> torch.Tensor:
    """(B, V, C) of each word, in the requested order of rows. A word without a token has arbitrary
    logits and no gradient."""
    answered = pick(hidden_states(model, tokens), words.picked)
    return _way(model).tagger(model, answered).view(*words.shape, model.config.num_labels)


def hidden_states(
    model: Any, tokens: RealTokens, states: list[torch.Tensor] | None = None
) -> torch.Tensor:
    """(N, H) of all tokens after the last layer; `states` as for `logits`."""
    way = _way(model)
    sentence = _sentence(way, tokens)
    hidden, shared = _below(way, model, tokens, sentence, states)
    hidden = way.layer(way.layers(model)[-1], hidden, tokens, None, shared)
    if states is not None:
        states.append(as_asked(tokens, pick(hidden, sentence)))
    return hidden


def as_asked(tokens: RealTokens, vectors: torch.Tensor) -> torch.Tensor:
    """The rows' (B, H) in the requested order."""
    return vectors if tokens.asked is None else pick(vectors, tokens.asked)


def _way(model: Any) -> ForwardPass:
    """How to pass through a network that `forward_pass_of` knows."""
    return PASSES[family_of(model.config.model_type).unpadded or ""]


def _sentence(way: ForwardPass, tokens: RealTokens) -> Picked:
    return tokens.one_each(tokens.last if way.sentence_last else tokens.first)


def _below(
    way: ForwardPass,
    model: Any,
    tokens: RealTokens,
    sentence: Picked,
    states: list[torch.Tensor] | None,
) -> tuple[torch.Tensor, Any]:
    """(N, H) before the last layer, and the result of `shared`."""
    hidden, shared = way.embed(model, tokens), way.shared(model, tokens)
    for layer in way.layers(model)[:-1]:
        hidden = way.layer(layer, hidden, tokens, None, shared)
        if states is not None:
            states.append(as_asked(tokens, pick(hidden, sentence)))
    return hidden, shared
