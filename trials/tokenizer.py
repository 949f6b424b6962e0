"""Load a model's tokenizer, and name its content by a digest."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.identity import content_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(
    path_or_id: str | Path, revision: str | None = None, local_files_only: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model folder or a hub id. Runs no code of the model's own.

    Raises MissingInputError, also for a folder without tokenizer files: transformers 5 then returns
    a tokenizer that knows no word, and every text would become unknown tokens.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(path_or_id),
            revision=revision or "main",
            local_files_only=local_files_only,
            trust_remote_code=False,
        )
    except Exception as error:  # hub, JSON and Rust errors of many types, all about the input
        raise MissingInputError(
            f"tokenizer of {str(path_or_id)!r}: can't be loaded: {type(error).__name__}: {error}. "
            f"Check the path or hub id and the network, or copy the tokenizer's files into the "
            f"model's folder."
        ) from error
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise MissingInputError(
            f"tokenizer of {str(path_or_id)!r}: its vocabulary has no words, so its files are "
            f"missing. Copy them (tokenizer.json, or the vocabulary) into the model's folder."
        )
    return tokenizer


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """64 hex digits of what decides the tokens: the same for a tokenizer and its copy anywhere, and
    before and after use."""
    return content_hash(
        {
            "class": type(tokenizer).__name__,
            "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
            "inputs": list(tokenizer.model_input_names),
            "sides": [tokenizer.padding_side, tokenizer.truncation_side],
            "split_special_tokens": bool(getattr(tokenizer, "split_special_tokens", False)),
            "content": _fast_content(tokenizer) if tokenizer.is_fast else _slow_content(tokenizer),
        }
    )


def _fast_content(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    # state that the last call left behind
    return {key: value for key, value in content.items() if key not in ("truncation", "padding")}


def _slow_content(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Digest of each vocabulary and configuration file that it saves."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in Path(folder).iterdir()
        }
