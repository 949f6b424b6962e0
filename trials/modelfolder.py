"""What a model folder is, to a sweep: the files that decide what is trained, and their fingerprint.
Loads no model."""

from __future__ import annotations

import hashlib
from pathlib import Path

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
_INDEX = "model.safetensors.index.json"  # of several weight files; says nothing of its own


def identity_files(folder: Path) -> list[Path]:
    """Those that decide what is trained, by name."""
    paths = {path for pattern in _IDENTITY_FILES for path in folder.glob(pattern)}
    return sorted(paths, key=lambda path: path.name)


def needed_files(folder: Path) -> list[Path]:
    """All that loading takes: whoever has these has the model."""
    index = folder / _INDEX
    return [*identity_files(folder), *([index] if index.exists() else [])]


def folder_fingerprint(folder: Path) -> str:
    """`sha256:` over the content of the files that decide what is trained, not over their place."""
    whole = hashlib.sha256()
    for path in identity_files(folder):
        with path.open("rb") as stream:
            whole.update(
                f"{path.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}".encode()
            )
    return f"sha256:{whole.hexdigest()}"
