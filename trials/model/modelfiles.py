"""Facts from a model's files: whether its type can be pruned, its longest row, its fingerprint.

Imports no torch, so that planning can use it. The types come from transformers' own lists, read as
text, since importing them loads torch.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lp_sweep.storage.printable import did_you_mean, shown
from lp_sweep.trials.model.familytable import family_of

_LIST = "MODEL_FOR_{}_MAPPING_NAMES"
_MAPPINGS = ("id2label", "label2id")
_TRY = "Use an encoder, such as bert-base-cased, roberta-base or answerdotai/ModernBERT-base."


def family_problem(config: Mapping[str, Any]) -> str | None:
    """Why no layer of such a model can be removed here; None if one can."""
    kind = str(config.get("model_type", "it"))
    if kind == "albert" or "num_hidden_groups" in config:
        return (
            f"{kind}: its layers share one set of weights, so there is no layer to remove and a "
            "shorter network would not be smaller. Use a model whose layers have weights of their "
            "own, for example bert-base-cased."
        )
    if kind == "fnet":
        return (
            f"{kind} has no attention mask: its answers depend on how far a text is padded, so no "
            f"score would be that of its layers. {_TRY}"
        )
    if config.get("is_encoder_decoder") or kind in types("SEQ_TO_SEQ_CAUSAL_LM"):
        return f"{kind} is an encoder-decoder, and lp-sweep prunes encoders only. {_TRY}"
    if (
        config.get("is_decoder")
        or config.get("add_cross_attention")
        or _is_decoder(kind)
        or _writes(config)
    ):
        return (
            f"{kind} is a decoder (it reads from left to right only), and lp-sweep prunes encoders "
            f"only. {_TRY}"
        )
    return None


def graph_problem(config: Mapping[str, Any]) -> str | None:
    """Why no ONNX graph of such a model can be written; None if one can, or is to be tried."""
    kind = config.get("model_type")
    why = family_of(kind).no_graph
    return why and (
        f"{kind}: torch can't write this network as ONNX: {why}. Use --as torch, or another model."
    )


def type_problem(config: Mapping[str, Any]) -> str | None:
    """`family_problem`, or why transformers can't classify texts with the model."""
    problem, kind = family_problem(config) or _weights_problem(config), config.get("model_type")
    known = types("SEQUENCE_CLASSIFICATION")
    if problem or kind is None or not known or kind in known:
        return problem
    return (
        f"model type {shown(kind)} has no text classifier in the installed transformers, and code "
        f"that comes with a model is not run.{did_you_mean(str(kind), known)} {_TRY}"
    )


def _weights_problem(config: Mapping[str, Any]) -> str | None:
    """Why the weights of a model are not those of its plain network."""
    if quantized := config.get("quantization_config") or config.get("compression_config"):
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        return (
            f"its weights are quantized (quantization_config: {shown(method)}), and a sweep trains "
            "floating-point weights. Name the model that they were made from, or save it without "
            "quantization."
        )
    if wrong := [name for name in _MAPPINGS if not isinstance(config.get(name) or {}, dict)]:
        return (
            f"its config.json has {wrong[0]}: {shown(config[wrong[0]])}, which can't be read. "
            'Remove it, or write a mapping such as {"0": "no", "1": "yes"}.'
        )
    attention = config.get("_attn_implementation") or config.get("attn_implementation")
    if config.get("output_attentions") and attention not in (None, "eager"):
        return (
            f"its config.json has output_attentions with the attention {shown(attention)}, which "
            "can't be read. Remove output_attentions."
        )
    if "use_return_dict" in config:
        return "its config.json has use_return_dict, which transformers can't read. Remove it."
    if heads := config.get("pruned_heads"):
        return (
            f"its config.json has pruned_heads: {shown(heads)}, and the installed transformers "
            "loads no network without some of its heads. Name the model that it was made from."
        )
    return None


def _writes(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint without a type is a causal language model."""
    kinds = config.get("architectures")
    return "model_type" not in config and any(
        str(kind).endswith(("ForCausalLM", "LMHeadModel"))
        for kind in (kinds if isinstance(kinds, list) else ())
    )


def _is_decoder(kind: str) -> bool:
    causal = kind in types("CAUSAL_LM") and kind not in types("MASKED_LM")
    return causal and not family_of(kind).both_ways


@cache
def types(task: str) -> frozenset[str]:
    """The model types that transformers lists for a task; empty if its source is not found."""
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return frozenset()
    path = Path(found.origin).with_name("models") / "auto" / "modeling_auto.py"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    listed = text.partition(f"\n{_LIST.format(task)} = OrderedDict(")[2].partition("\n)")[0]
    return frozenset(re.findall(r'^\s+\("([\w.-]+)",', listed, re.MULTILINE))


def longest_row(config: Mapping[str, Any]) -> int | None:
    """The most tokens of a row for this config.json. None: no limit, or the config has none."""
    most = config.get("max_position_embeddings")
    counted = family_of(config.get("model_type")).positions
    endless = counted == "endless" or config.get("position_embedding_type") == "rotary"
    if counted == "by distance" and not config.get("position_biased_input", True):
        endless = True
    if endless or type(most) is not int or most <= 0:
        return None
    if not counted.startswith("after"):
        return most
    padding = config.get("pad_token_id") if counted == "after padding" else None
    return most - 1 - (padding if type(padding) is int else 1)  # 1 is the usual padding


_IDENTITY_FILES = (
    "config.json",
    "*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.model",
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
WORD_TABLE = re.compile(r"\b(word_embeddings?|embed_tokens|tok_embeddings|embeddings)\.weight$")
DEPTH_FIELDS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")


def identity_files(folder: Path) -> list[Path]:
    """The files that determine what is trained, sorted by name. The index is none of them."""
    paths = {path for pattern in _IDENTITY_FILES for path in folder.glob(pattern)}
    return sorted(paths, key=lambda path: path.name)


def needed_files(folder: Path) -> list[Path]:
    """All files that loading needs."""
    index = folder / INDEX
    return [*identity_files(folder), *([index] if index.exists() else [])]


def folder_fingerprint(folder: Path) -> str:
    """`sha256:` over names and contents of `identity_files`, not over their folder."""
    whole = hashlib.sha256()
    for path in identity_files(folder):
        with path.open("rb") as stream:
            whole.update(
                f"{path.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}".encode()
            )
    return f"sha256:{whole.hexdigest()}"


def go_offline() -> None:
    """From now on the Hugging Face libraries use their caches or fail at once."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("HF_DATASETS_OFFLINE", None)  # a 0 there would overrule the line above
    for name in ("huggingface_hub.constants", "datasets.config"):
        module = sys.modules.get(name)
        if module is not None:
            module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
