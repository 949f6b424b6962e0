"""The model families, one entry each: differences that can't be read from a network.

An unlisted family can still be pruned, trained and measured: `families` finds its layers from
structure. Entries go by name, since families with equally named children may use them in another
order. Imports no torch, so that planning can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Positions = Literal["from 0", "after padding", "after 1", "by distance", "endless"]
MaskShape = Literal["rows", "cells", "cells by layer type"]
Instead = Literal["identity", "nothing", "norm", "norm after attention", "norm in a sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardParts:
    """The modules of a layer's feed-forward, and the replacement of each child (see `reduced`)."""

    linears: tuple[str, str]
    norm: str
    instead: Mapping[str, Instead]
    norm_can_stay: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The peculiarities of a type of model; the defaults suit an unlisted one.

    feed_forward: None if it can't be removed.
    unpadded: the forward pass over real tokens only, by its name in `fast.networks.PASSES`.
    after_attention: the child of a layer that returns the state after self-attention; with `given`,
        the state is the child's input.
    positions: how the position table counts. "endless": there is no table. "by distance": there is
        one only with `position_biased_input`.
    time_first: layers see (T, B, H). both_ways: transformers lists it as a causal model only.
    mask: the shape of attention mask that it uses without reading its values, for which a GPU would
        wait: (B, T), (B, 1, 1, T), or one (B, 1, T or 1, T) for each type of layer.
    no_graph: the error with which torch's ONNX exporter refuses it.
    corrections: of trials that train by a forward pass of ours, see `specs`.
    """

    feed_forward: FeedForwardParts | None = None
    unpadded: str | None = None
    after_attention: str | None = None
    given: bool = False
    positions: Positions = "from 0"
    time_first: bool = False
    both_ways: bool = False
    mask: MaskShape = "rows"
    no_graph: str | None = None
    corrections: tuple[str, ...] = ()


BERT_FEED_FORWARD = FeedForwardParts(
    linears=("intermediate.dense", "output.dense"),
    norm="output.LayerNorm",
    instead={"intermediate": "identity", "output": "norm after attention"},
)
_BERT = Family(
    feed_forward=BERT_FEED_FORWARD,
    unpadded="bert",
    after_attention="attention.output",
    mask="cells",
)
_DEBERTA = replace(_BERT, unpadded=None, positions="by distance", mask="rows")
_PASS_IS_NEW = ("unpadded",)  # before, it went in groups and drew other dropout masks
_ROBERTA = replace(_BERT, unpadded="roberta", positions="after padding")
_POSITIONS_ALONE = {
    **dict.fromkeys(
        (
            *("data2vec-text", "esm", "ibert", "longformer", "luke"),
            *("roberta-prelayernorm", "xlm-roberta-xl", "xmod"),
        ),
        Family(positions="after padding"),
    ),
    **dict.fromkeys(("eurobert", "nomic_bert", "t5", "mt5", "umt5"), Family(positions="endless")),
}

# A new family is one entry here: see docs/extending.md
FAMILIES: dict[str, Family] = {
    **_POSITIONS_ALONE,
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": replace(_BERT, unpadded="roberta"),
    "mpnet": Family(
        feed_forward=BERT_FEED_FORWARD,
        unpadded="mpnet",
        after_attention="attention.LayerNorm",
        positions="after 1",
        mask="cells",
        corrections=_PASS_IS_NEW,
    ),
    "deberta": _DEBERTA,
    "deberta-v2": replace(_DEBERTA, unpadded="deberta-v2", corrections=_PASS_IS_NEW),
    "distilbert": Family(
        feed_forward=FeedForwardParts(
            linears=("ffn.lin1", "ffn.lin2"),
            norm="output_layer_norm",
            instead={"ffn": "nothing", "output_layer_norm": "norm"},
        ),
        unpadded="distilbert",
        after_attention="sa_layer_norm",  # the residual is added outside `attention`
        mask="cells",
    ),
    "xlnet": Family(
        feed_forward=FeedForwardParts(
            linears=("ff.layer_1", "ff.layer_2"),
            norm="ff.layer_norm",
            instead={"ff": "norm in a sequence"},
        ),
        unpadded="xlnet",
        after_attention="rel_attn",
        positions="endless",
        time_first=True,
        both_ways=True,
        no_graph="RuntimeError: Cannot find a compatible OpOverload for aten.sub",
    ),
    "modernbert": Family(
        feed_forward=FeedForwardParts(
            linears=("mlp.Wi", "mlp.Wo"),
            norm="mlp_norm",
            instead={"mlp": "nothing", "mlp_norm": "identity"},
            norm_can_stay=False,  # before the MLP, off the residual path: alone it has no effect
        ),
        unpadded="modernbert",
        after_attention="mlp_norm",  # the sum exists only as what this norm is given
        given=True,
        positions="endless",
        mask="cells by layer type",
        corrections=_PASS_IS_NEW,
    ),
}


def padding_side(model_type: object) -> Literal["left", "right"]:
    """The side where padding changes no answer: away from the token that a head reads, and from
    the first position. A tokenizer's own side may be another, and its answers would then depend
    on what else is in a batch."""
    return "left" if model_type == "xlnet" else "right"


def family_of(model_type: object) -> Family:
    return FAMILIES.get(str(model_type), Family())
