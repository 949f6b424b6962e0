"""What a plan must know of a model without loading it: its depth, and what identifies its weights.

Reads `config.json` only (a folder's, the Hugging Face cache's, or the hub's); imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.wording import did_you_mean
from lp_sweep.storage.errors import PreflightError, SpecError

DEPTH_FIELDS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")

# depth of well-known encoders, so that a plan needs neither a network nor a download
KNOWN_DEPTHS = {
    "bert-base-cased": 12,
    "bert-base-uncased": 12,
    "bert-large-cased": 24,
    "bert-large-uncased": 24,
    "bert-base-multilingual-cased": 12,
    "roberta-base": 12,
    "roberta-large": 24,
    "xlm-roberta-base": 12,
    "xlm-roberta-large": 24,
    "xlnet-base-cased": 12,
    "xlnet-large-cased": 24,
    "distilbert-base-cased": 6,
    "distilbert-base-uncased": 6,
    "distilroberta-base": 6,
    "camembert-base": 12,
    "google/electra-small-discriminator": 12,
    "google/electra-base-discriminator": 12,
    "google/electra-large-discriminator": 24,
    "microsoft/mpnet-base": 12,
    "microsoft/deberta-v3-small": 6,
    "microsoft/deberta-v3-base": 12,
    "microsoft/deberta-v3-large": 24,
    "answerdotai/ModernBERT-base": 22,
    "answerdotai/ModernBERT-large": 28,
}

# the files of a model folder that decide what is trained
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


class ModelInput(NamedTuple):
    """A model as the plan and the workers need it."""

    name: str  # as the user wrote it
    path: str  # hub id, or absolute folder
    revision: str | None
    depth: int
    fingerprint: str
    layer_parameters: int | None  # rough size of one layer, for estimates


def find_model(
    name: str, *, revision: str | None, layers: int | None, folder: Path, offline: bool
) -> ModelInput:
    """Look a model up. Raises SpecError (unknown) or PreflightError (folder without weights)."""
    local = _as_folder(name, folder)
    if local.is_dir():
        return _local_model(name, local)
    if name.startswith((".", "/", "~")):
        raise SpecError(f"no model folder at {local}. {_near_folders(local)}".rstrip())
    config = _cached_config(name, revision)
    depth = layers or _depth(config) or KNOWN_DEPTHS.get(name)
    if depth is None and not offline:
        config = _hub_config(name, revision)
        depth = _depth(config)
    if depth is None:
        raise SpecError(
            f"unknown model {name!r}: it is neither a folder nor in the Hugging Face cache, and "
            f"the hub did not give its config.{did_you_mean(name, KNOWN_DEPTHS)} "
            f"If the name is right, state its depth: {{id: {name}, layers: 12}}."
        )
    return ModelInput(
        name, name, revision, depth, f"hub:{name}@{revision or 'main'}", _layer_parameters(config)
    )


def _as_folder(name: str, folder: Path) -> Path:
    try:
        local = (folder / Path(name).expanduser()).resolve()
        local.stat()
    except FileNotFoundError:
        return local
    except (OSError, RuntimeError, ValueError) as error:  # too long, ~nobody, a NUL
        raise SpecError(f"model {name!r} is no name and no folder: {error}") from None
    return local


def _local_model(name: str, folder: Path) -> ModelInput:
    config = _read_config(folder / "config.json")
    if config is None:
        raise SpecError(
            f"model {name!r}: {folder} has no readable config.json. A model folder is what "
            "`save_pretrained` writes: config.json, model.safetensors, tokenizer files."
        )
    depth = _depth(config)
    if depth is None:
        raise SpecError(
            f"model {name!r}: its config.json has none of {', '.join(DEPTH_FIELDS)}; "
            "lp-sweep prunes encoders that are a list of layers."
        )
    if not any(folder.glob("*.safetensors")):
        raise PreflightError(
            f"model {name!r}: no *.safetensors in {folder}. Pickled weights are not read; load the "
            "model once where you trust it and call save_pretrained(folder)."
        )
    return ModelInput(
        name, str(folder), None, depth, _fingerprint(folder), _layer_parameters(config)
    )


def _fingerprint(folder: Path) -> str:
    """`sha256:` over the content of the files that decide what is trained, not over their place."""
    whole = hashlib.sha256()
    paths = {path for pattern in _IDENTITY_FILES for path in folder.glob(pattern)}
    for path in sorted(paths, key=lambda path: path.name):
        with path.open("rb") as stream:
            whole.update(
                f"{path.name}\0{hashlib.file_digest(stream, 'sha256').hexdigest()}".encode()
            )
    return f"sha256:{whole.hexdigest()}"


def _read_config(path: Path) -> dict[str, Any] | None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _depth(config: dict[str, Any] | None) -> int | None:
    values = (config.get(name) for name in DEPTH_FIELDS) if config else ()
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _layer_parameters(config: dict[str, Any] | None) -> int | None:
    """Attention and feed-forward weights of one layer: 4 h^2 + 2 h f."""
    if not config:
        return None
    hidden = _first_int(config, ("hidden_size", "dim", "d_model"))
    inner = _first_int(config, ("intermediate_size", "hidden_dim", "d_inner"))
    return 4 * hidden * hidden + 2 * hidden * inner if hidden and inner else None


def _first_int(config: dict[str, Any], names: Iterable[str]) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _cached_config(name: str, revision: str | None) -> dict[str, Any] | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(name, "config.json", revision=revision)
    except ValueError:  # not a valid repository id
        return None
    return _read_config(Path(path)) if isinstance(path, str) else None


def _hub_config(name: str, revision: str | None) -> dict[str, Any] | None:
    """The hub's config.json by one plain request: a download would retry for half a minute."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    try:
        answer = get_session().get(
            hf_hub_url(name, "config.json", revision=revision),
            headers=build_hf_headers(),
            timeout=5,
            follow_redirects=True,
        )
        config = answer.raise_for_status().json()
    except (
        Exception
    ):  # many types: no network, no such id, no access; the caller names the next step
        return None
    return config if isinstance(config, dict) else None


def _near_folders(missing: Path) -> str:
    if not missing.parent.is_dir():
        return f"There is no folder {missing.parent} either."
    names = [path.name for path in missing.parent.iterdir() if path.is_dir()]
    return did_you_mean(missing.name, names).strip()
