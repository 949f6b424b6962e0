"""Whether a model is an encoder that can be pruned, by its config.json alone: no torch, no weights.

The types come from transformers' own lists. They are read as text, since importing them loads torch
and a plan must not wait for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lp_sweep.storage.printable import shown
from lp_sweep.storage.wording import did_you_mean

_LIST = "MODEL_FOR_{}_MAPPING_NAMES"
_BOTH_WAYS = frozenset({"xlnet"})  # listed as a causal model only, and reads in both directions
_TRY = "Use an encoder, such as bert-base-cased, roberta-base or answerdotai/ModernBERT-base."


def family_problem(config: Mapping[str, Any]) -> str | None:
    """Why no layer of such a model can be removed here; None where one can."""
    kind = str(config.get("model_type", "it"))
    if kind == "albert" or "num_hidden_groups" in config:
        return (
            f"{kind}: its layers share one set of weights, so there is no layer to remove and a "
            "shorter network would not be smaller. Use a model whose layers have weights of their "
            "own, for example bert-base-cased."
        )
    if config.get("is_encoder_decoder") or kind in types("SEQ_TO_SEQ_CAUSAL_LM"):
        return f"{kind} is an encoder-decoder, and lp-sweep prunes encoders only. {_TRY}"
    if config.get("is_decoder") or kind in _decoders() or _writes(config):
        return (
            f"{kind} is a decoder (it reads from left to right only), and lp-sweep prunes encoders "
            f"only. {_TRY}"
        )
    return None


def type_problem(config: Mapping[str, Any]) -> str | None:
    """The same, and why transformers can't classify texts with it."""
    problem, kind, known = family_problem(config), config.get("model_type"), _classifiers()
    if problem or kind is None or not known or kind in known:
        return problem
    return (
        f"model type {shown(kind)} has no text classifier in the installed transformers, and code "
        f"that comes with a model is not run.{did_you_mean(str(kind), known)} {_TRY}"
    )


def _writes(config: Mapping[str, Any]) -> bool:
    """Without a type: whether the checkpoint is of a causal language model."""
    kinds = config.get("architectures")
    return "model_type" not in config and any(
        str(kind).endswith(("ForCausalLM", "LMHeadModel"))
        for kind in (kinds if isinstance(kinds, list) else ())
    )


def _classifiers() -> frozenset[str]:
    return types("SEQUENCE_CLASSIFICATION")


def _decoders() -> frozenset[str]:
    return types("CAUSAL_LM") - types("MASKED_LM") - _BOTH_WAYS


@cache
def types(task: str) -> frozenset[str]:
    """The model types that transformers lists for a task; none where its source is not there."""
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
