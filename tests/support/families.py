"""Tiny models of every family, written down by hand: what the code finds out is compared with this.

Not a test. Weights are random and the same in every run.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PretrainedConfig,
)

VOCABULARY = 40
STRONG = 0.7  # standard deviation of matrices; of an untrained network no answer hangs on its text
DROPOUTS = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "seq_classif_dropout",
    "summary_last_dropout",
)


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: where its layers are, its name for the depth, and a tiny config."""

    name: str
    layers: str
    embedding: str
    settings: dict[str, Any]
    _: KW_ONLY
    model_type: str = ""  # the name
    depth_field: str = "num_hidden_layers"
    first_layer_stays: bool = False

    def config(self, depth: int) -> PretrainedConfig:
        settings = self.settings | {self.depth_field: depth, "vocab_size": VOCABULARY}
        config = AutoConfig.for_model(self.model_type or self.name, **settings)
        for name in DROPOUTS:
            if hasattr(config, name):
                setattr(config, name, 0.0)
        config.initializer_range = STRONG  # of the head that a trial draws
        return config


BERT_LIKE = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
DEBERTA = BERT_LIKE | {
    "relative_attention": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
MODERN = BERT_LIKE | {
    "local_attention": 4,
    "global_attn_every_n_layers": 3,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
DISTILLED = {
    "dim": 16,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
}
XLNET = {"d_model": 16, "n_head": 2, "d_inner": 24, "mem_len": 8, "pad_token_id": 1}


def _like_bert(
    name: str, root: str = "", settings: dict[str, Any] = BERT_LIKE, **more: Any
) -> Family:
    root = root or name
    return Family(name, f"{root}.encoder.layer", f"{root}.embeddings", settings, **more)


FAMILIES = {
    family.name: family
    for family in (
        _like_bert("bert"),
        _like_bert("roberta"),
        _like_bert("xlm-roberta", "roberta"),
        _like_bert("camembert", "roberta"),
        _like_bert("electra", settings=BERT_LIKE | {"embedding_size": 8}),
        _like_bert("mpnet"),
        Family(
            "distilbert",
            "distilbert.transformer.layer",
            "distilbert.embeddings",
            DISTILLED,
            depth_field="n_layers",
        ),
        Family(
            "xlnet",
            "transformer.layer",
            "transformer.word_embedding",
            XLNET,
            depth_field="n_layer",
        ),
        _like_bert("deberta-v2", "deberta", DEBERTA),
        _like_bert(
            "deberta-v2-conv",
            "deberta",
            DEBERTA | {"conv_kernel_size": 3, "conv_act": "gelu"},
            model_type="deberta-v2",
        ),
        Family("modernbert", "model.layers", "model.embeddings", MODERN, first_layer_stays=True),
    )
}
DEBERTA_1 = _like_bert(
    "deberta", settings={key: value for key, value in DEBERTA.items() if key != "position_buckets"}
)


def save_pretrained(family: Family, depth: int, folder: Path) -> Path:
    """Save a "pre-trained" masked-language model of this family: an encoder without our head."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        by_type = (
            AutoModelForPreTraining if family.name in ("bert", "xlnet") else AutoModelForMaskedLM
        )
        model = by_type.from_config(family.config(depth))
        for name, parameter in model.named_parameters():
            _draw(name, parameter)
    model.save_pretrained(folder)
    return folder


def _draw(name: str, parameter: torch.nn.Parameter) -> None:
    """Norms scale by about 1: with less, each layer takes away what tells two texts apart."""
    if parameter.dim() > 1:
        torch.nn.init.normal_(parameter, std=STRONG)
    else:
        scales = name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=1.0 if scales else 0.0, std=0.3)


# of each way to embed, attend and answer one
_EVERY_DAY = ("bert", "distilbert", "xlnet", "modernbert")


def daily(*names: str) -> list[Any]:
    """The name of every family, of which only these run every day."""
    return [
        pytest.param(name, id=name, marks=[] if name in names else [pytest.mark.slow])
        for name in FAMILIES
    ]


NAMES = daily(*_EVERY_DAY)
CASES = [pytest.param(FAMILIES[str(case.id)], id=case.id, marks=case.marks) for case in NAMES]
