"""A folder as any user's program loads it. Run in a process of its own it imports nothing of ours:

    python -P plainload.py FOLDER REQUEST.json ANSWER.npz

REQUEST: `kinds`, the classes of transformers to load it with, and `device`, `threads`; of the first
class either the logits of `texts` (one or two columns, at most `max_length` tokens), or the hidden
states of `ids`, rows of tokens. ANSWER: the array `values`, and `told`: JSON with `missing`, by
class the weights that the folder does not have, and `labels`, the names of the classes.
Ends with a traceback and another exit code than 0 for what can't be loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

_BATCH = 64


def load(folder: str | Path, kind: str) -> tuple[Any, list[str]]:
    """The network in eval mode, and the weights that its folder lacks: those are random."""
    model, info = getattr(transformers, kind).from_pretrained(
        folder, use_safetensors=True, trust_remote_code=False, output_loading_info=True
    )
    return model.eval(), sorted(info["missing_keys"])


def logits_of(
    model: Any, tokenizer: Any, texts: Sequence[Sequence[str]], max_length: int
) -> np.ndarray:
    """(rows, classes) float32. `texts`: one or two columns of rows."""
    found = np.empty((len(texts[0]), model.config.num_labels), np.float32)
    order = sorted(range(len(found)), key=lambda row: -sum(len(column[row]) for column in texts))
    with torch.inference_mode():
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            inputs = tokenizer(
                *([column[row] for row in rows] for column in texts),
                truncation="longest_first",
                max_length=max_length,
                padding=True,
                return_tensors="pt",
            )
            found[rows] = model(**inputs.to(model.device)).logits.float().cpu().numpy()
    return found


def states_of(model: Any, ids: Sequence[Sequence[int]]) -> np.ndarray:
    """(layers + 1, tokens of all rows, width) float32: the embeddings', then each layer's."""
    parts = []
    with torch.inference_mode():
        for row in ids:
            inputs = torch.tensor([row], device=model.device)
            answer = model(
                input_ids=inputs,
                attention_mask=torch.ones_like(inputs),
                output_hidden_states=True,
            )
            parts.append(torch.stack([state[0] for state in answer.hidden_states]))
    return torch.cat(parts, dim=1).float().cpu().numpy()


def answer_of(folder: str, request: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
    if request["threads"]:
        torch.set_num_threads(request["threads"])
    missing = {}
    for kind in reversed(request["kinds"]):  # the first stays
        model, missing[kind] = load(folder, kind)
    model = model.to(request["device"])
    labels = [model.config.id2label.get(index) for index in range(model.config.num_labels)]
    told = {"missing": missing, "labels": labels}
    if "ids" in request:
        return states_of(model, request["ids"]), told
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return logits_of(model, tokenizer, request["texts"], request["max_length"]), told


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True, warn_only=True)
    values, told = answer_of(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    np.savez(sys.argv[3], values=values, told=np.array(json.dumps(told)))
