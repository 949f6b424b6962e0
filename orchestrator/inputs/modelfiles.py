"""Which files of a hub model a trial opens: config, safetensors, tokenizer. Nothing pickled."""

from __future__ import annotations

from pathlib import Path

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.hub import Listing, RemoteFile
from lp_sweep.orchestrator.inputs.weights import INDEX, WEIGHTS, has_vocabulary
from lp_sweep.storage.errors import PreflightError

_SMALL = {
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "bpe.codes",
    "chat_template.jinja",
}
_NOT_PICKLED = (
    "has no model.safetensors at that commit, and pickled weights are never fetched. Name a "
    "revision that has it, or convert the model once, where it is trusted, with save_pretrained, "
    "and name that folder."
)


def model_files(repo_id: str, listing: Listing) -> list[RemoteFile]:
    """Sorted by name. Raises PreflightError for a model that can't be used, Refused."""
    remote = {file.name: file for file in listing.files}
    small = [name for name in remote if name in _SMALL or ("/" not in name and _has_words(name))]
    if "config.json" not in small:
        raise PreflightError(f"model {repo_id!r} has no config.json at {listing.commit}.")
    if not any(map(_has_words, small)):
        raise PreflightError(f"model {repo_id!r} has no tokenizer's words at {listing.commit}.")
    names = sorted({*small, *_weights(repo_id, listing.commit, remote)})
    return [remote[name] for name in names]


def _has_words(name: str) -> bool:
    return has_vocabulary([name])


def _weights(repo_id: str, commit: str, remote: dict[str, RemoteFile]) -> list[str]:
    """As transformers chooses: one file, else the index and its shards."""
    if WEIGHTS in remote:
        return [WEIGHTS]
    if INDEX not in remote:
        raise PreflightError(f"model {repo_id!r} {_NOT_PICKLED}")
    named = (hub.read_json(repo_id, INDEX, commit) or {}).get("weight_map")
    shards = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
    lacking = [name for name in shards if name not in remote or Path(name).name != name]
    if not shards or lacking:
        raise PreflightError(
            f"model {repo_id!r}: {INDEX} names {', '.join(lacking) or 'no files'}, and the hub "
            f"has no such file at {commit}."
        )
    return [INDEX, *shards]


def absent(repo_id: str, commit: str, files: list[RemoteFile]) -> list[RemoteFile]:
    """Those that are still to be downloaded. Raises PreflightError for a file of the cache that is
    torn: nobody mends it by asking again."""
    folder = hub.snapshot("model", repo_id, commit)
    torn = []
    missing = []
    for file in files:
        path = folder / file.name
        if not path.is_file():
            missing.append(file)
        elif path.stat().st_size != file.bytes:
            torn.append(f"{path} has {path.stat().st_size} bytes and should have {file.bytes}")
    if torn:
        raise PreflightError(
            f"model {repo_id!r}: {'; '.join(torn)}. `lp-sweep prefetch` mends it, or delete it."
        )
    return missing
