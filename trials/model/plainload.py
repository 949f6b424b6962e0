"""Load a folder as any user's program does. As a program it imports nothing of ours:

    python -P plainload.py FOLDER REQUEST.json ANSWER.npz

REQUEST has `kinds`, the classes of transformers to load the folder with, `device` and `threads`.
The first class computes either
- the logits of `texts` (one or two columns, at most `max_length` tokens; for a tagger lists of
  words), or with `pooling` an embedding of each text, row by row; or
- the hidden states of `ids`, rows of tokens.
An embedding is what Sentence Transformers makes of the folder where it is installed. Elsewhere
states are pooled by the modes `pooling`, and changed by the modules `after`, (name, path) each.
ANSWER has the array `values`, and JSON `told` with `missing` (class -> weights that the folder does
not have) and `labels` (the names of the classes). If the folder can't be loaded, the program ends
with a traceback and a non-zero exit code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

_BATCH = 64
_TAGGER = "AutoModelForTokenClassification"


# settings of how a network is run, which an earlier program may have left in config.json
_LEFT_OVER = {
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
    "torchscript": False,
    "gradient_checkpointing": False,
    "chunk_size_feed_forward": 0,
}


def plain_config(folder: str | Path, **source: Any) -> Any:
    """The configuration of a checkpoint, to be run as transformers runs it by default."""
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, **source)
    for name, usual in _LEFT_OVER.items():
        if getattr(config, name, usual) != usual:
            setattr(config, name, usual)
    if config._attn_implementation not in ("eager", "sdpa"):  # may need, or fetch, other code
        config._attn_implementation = None
    return config


def load(folder: str | Path, kind: str) -> tuple[Any, list[str]]:
    """The network in eval mode, and the weights that its folder lacks, which are random."""
    model, info = getattr(transformers, kind).from_pretrained(
        folder,
        config=plain_config(folder),
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    return model.eval(), sorted(info["missing_keys"])


def logits_of(
    model: Any, tokenizer: Any, texts: Sequence[Sequence[str]], max_length: int
) -> np.ndarray:
    """(rows, classes) float32. `texts`: one or two columns of rows."""
    return _answers(
        lambda inputs: model(**inputs).logits, model.device, tokenizer, texts, max_length
    )


def embeddings_of(
    model: Any,
    tokenizer: Any,
    texts: Sequence[Sequence[str]],
    max_length: int,
    pooling: str | Sequence[str],
    after: torch.nn.Module | None = None,
) -> np.ndarray:
    """(rows * columns, width) float32, row by row. `pooling`: modes, whose vectors are joined."""
    modes = [pooling] if isinstance(pooling, str) else pooling
    after = after or torch.nn.Identity()
    return _answers(
        lambda inputs: vectors_of(model, inputs, modes, after),
        model.device,
        tokenizer,
        [apart(texts)],
        max_length,
    )


def vectors_of(
    model: Any, inputs: Any, modes: Sequence[str], after: torch.nn.Module
) -> torch.Tensor:
    """(B, width): the tokens' states, pooled by each mode and joined, then changed by `after`."""
    states: torch.Tensor = model(**inputs).last_hidden_state
    mask: torch.Tensor = inputs["attention_mask"]
    found: torch.Tensor = after(torch.cat([pooled(states, mask, m) for m in modes], dim=-1))
    return found


def apart(texts: Sequence[Sequence[str]]) -> list[str]:
    return [text for row in zip(*texts, strict=True) for text in row]


def pooled(states: torch.Tensor, mask: torch.Tensor, mode: str) -> torch.Tensor:
    """(B, T, H) and (B, T) give (B, H), by a mode of Sentence Transformers."""
    if mode in ("mean", "mean_sqrt_len_tokens"):
        count = mask.sum(1, keepdim=True)
        return (states * mask[..., None]).sum(1) / (count if mode == "mean" else count.sqrt())
    if mode == "weightedmean":
        weights = (mask.cumsum(1) * mask)[..., None]
        return (states * weights).sum(1) / weights.sum(1)
    if mode == "max":
        return states.masked_fill(mask[..., None] == 0, -torch.inf).max(1).values
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return states[torch.arange(len(states)), last if mode == "last" else mask.argmax(1)]


def vector_modules(folder: Path, modules: Sequence[Sequence[str]]) -> torch.nn.Module:
    """The modules (name, path) that follow a pooling, in float32."""
    return torch.nn.Sequential(*(_module(name, folder / path) for name, path in modules)).eval()


def _module(name: str, folder: Path) -> torch.nn.Module:
    config = folder / "config.json"
    told = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    if name not in ("Dense", "LayerNorm"):
        return _Normalised() if name == "Normalize" else torch.nn.Identity()
    weights = load_file(folder / "model.safetensors")
    if name == "Dense":
        module: torch.nn.Module = _Dense(told)
    else:
        module = torch.nn.ModuleDict({"norm": torch.nn.LayerNorm(told["dimension"])})
    module.load_state_dict({key: tensor.float() for key, tensor in weights.items()})
    return module if name == "Dense" else module["norm"]  # type: ignore[index]


class _Normalised(torch.nn.Module):
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(vectors)


class _Dense(torch.nn.Module):
    """As Sentence Transformers defines it, with its names of weights."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__()
        width, other = told["in_features"], told["out_features"]
        self.linear = torch.nn.Linear(width, other, bias=told.get("bias", True))
        name = told.get("activation_function", "torch.nn.Tanh").rpartition(".")[2]
        self.activation = getattr(torch.nn, name)()
        self.added = bool(told.get("use_residual"))
        if self.added and width != other:
            self.residual = torch.nn.Linear(width, other, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.activation(self.linear(vectors))
        if not self.added:
            return found
        return found + (self.residual(vectors) if hasattr(self, "residual") else vectors)


def sentence_vectors(folder: str, request: dict[str, Any], model: Any, tokenizer: Any) -> Any:
    """The embeddings of `texts`, as a user of the folder gets them."""
    if not (Path(folder) / "modules.json").is_file() or find_spec("sentence_transformers") is None:
        after = vector_modules(Path(folder), request.get("after", ()))
        texts = request["texts"], request["max_length"]
        return embeddings_of(
            model.float(), tokenizer, *texts, request["pooling"], after.to(model.device)
        )
    from sentence_transformers import SentenceTransformer

    whole = SentenceTransformer(
        folder,
        device=request["device"],
        trust_remote_code=False,
        local_files_only=True,
        model_kwargs={"dtype": "float32", "use_safetensors": True},
    )
    length = request["max_length"]
    whole.max_seq_length = min(length, whole.max_seq_length or length)
    return whole.encode(apart(request["texts"]), prompt="", show_progress_bar=False)


def word_logits_of(
    model: Any, tokenizer: Any, sentences: Sequence[Sequence[str]], max_length: int
) -> np.ndarray:
    """(answered words, classes) float32, sentence by sentence, each word at its first token. Words
    that are cut off or have no token are left out."""
    parts: dict[int, np.ndarray] = {}
    for rows, inputs in _batches(tokenizer, [sentences], max_length, is_split_into_words=True):
        with torch.inference_mode():
            found = model(**inputs.to(model.device)).logits.float().cpu().numpy()
        for place, row in enumerate(rows):
            words = inputs.word_ids(place)
            first = {word: at for at, word in reversed([*enumerate(words)])}
            kept = [at for word, at in first.items() if word is not None]
            parts[row] = found[place, sorted(kept)]
    return np.concatenate([parts[row] for row in range(len(sentences))])


def try_pipeline(folder: str, sentence: Sequence[str], labels: Sequence[str]) -> None:
    """Raises ValueError if a plain pipeline returns other tags."""
    tag = transformers.pipeline("token-classification", model=folder, aggregation_strategy="none")
    given = {each["entity"] for each in tag(" ".join(sentence))}
    if not given <= {*labels}:
        raise ValueError(f"the pipeline gives {sorted(given)}, and the tags are {list(labels)}")


def _answers(
    answer: Callable[[Any], torch.Tensor],
    device: Any,
    tokenizer: Any,
    texts: Sequence[Sequence[str]],
    max_length: int,
) -> np.ndarray:
    order, parts = list[int](), []
    for rows, inputs in _batches(tokenizer, texts, max_length):
        order += rows
        with torch.inference_mode():
            parts.append(answer(inputs.to(device)).float().cpu().numpy())
    return np.concatenate(parts)[np.argsort(order)]


def _batches(
    tokenizer: Any, columns: Sequence[Sequence[Any]], max_length: int, **how: bool
) -> Iterator[tuple[list[int], Any]]:
    """The rows of each batch and its tokens, the longest rows first."""
    rows = range(len(columns[0]))
    order = sorted(rows, key=lambda row: -sum(len(column[row]) for column in columns))
    for start in range(0, len(order), _BATCH):
        part = order[start : start + _BATCH]
        texts = ([column[row] for row in part] for column in columns)
        cut: Any = {"truncation": "longest_first", "max_length": max_length, "padding": True}
        yield part, tokenizer(*texts, **cut, return_tensors="pt", **how)


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
    missing, pooling = {}, request.get("pooling")
    for kind in reversed(request["kinds"]):  # the first stays
        model, lacks = load(folder, kind)
        # some classifiers have no pooler, and embeddings do not use it
        missing[kind] = [name for name in lacks if not (pooling and name.startswith("pooler."))]
    model = model.to(request["device"])
    labels = [model.config.id2label.get(index) for index in range(model.config.num_labels)]
    told = {"missing": missing, "labels": labels}
    if "ids" in request:
        return states_of(model, request["ids"]), told
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = request["texts"], request["max_length"]
    if pooling:
        return sentence_vectors(folder, request, model, tokenizer), told
    if request["kinds"][0] == _TAGGER:
        [sentences], most = texts
        try_pipeline(folder, sentences[0], labels)
        return word_logits_of(model, tokenizer, sentences, most), told
    return logits_of(model, tokenizer, *texts), told


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True, warn_only=True)
    values, told = answer_of(sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    np.savez(sys.argv[3], values=values, told=np.array(json.dumps(told)))
