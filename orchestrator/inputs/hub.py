"""Reads the Hugging Face hub and this machine's cache of it: commits, lists of files, small files.

`prefetch` downloads the rest. Imports no torch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import huggingface_hub  # its own names are imported when they are first used, with its `errors`
from huggingface_hub import constants

from lp_sweep.orchestrator.inputs.folder import VOCABULARIES, has_vocabulary
from lp_sweep.storage.errors import PreflightError
from lp_sweep.trials.data.tasks import is_commit
from lp_sweep.trials.model.modelfiles import INDEX, WEIGHTS

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

DEFAULT_REVISION = "main"
Kind = Literal["model", "dataset"]

# what a trial opens of a model, as patterns of names; a star is for one folder
_OPENED = (
    *VOCABULARIES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *("bpe.codes", "chat_template.jinja", "config.json"),
    *("modules.json", "config_sentence_transformers.json", "sentence_*_config.json"),
    *("[0-9]*_*/config.json", "[0-9]*_*/model.safetensors"),
)
_SHARDS = (INDEX, "*-of-*.safetensors")
_NOT_PICKLED = (
    "has no model.safetensors at that commit, and pickled weights are never fetched. Name a "
    "revision that has it, or convert the model once, where it is trusted, with save_pretrained, "
    "and name that folder."
)

_SECONDS = 5.0  # timeout of a request: a plan must not hang on a network that drops packets


class HubRefusal(Exception):
    """The hub did not answer, or refused: nothing of that name, no access. The text is for
    messages."""

    def __init__(self, reason: str, *, reached: bool) -> None:
        super().__init__(reason)
        self.reached = reached


def snapshot(kind: Kind, repo_id: str, commit: str) -> Path:
    """The cache's folder of one commit, which may not exist."""
    folder = "--".join([f"{kind}s", *repo_id.split("/")])
    return Path(constants.HF_HUB_CACHE) / folder / "snapshots" / commit


def cached_commit(kind: Kind, repo_id: str, revision: str) -> str | None:
    """The commit of a branch or tag in the cache."""
    try:
        found = huggingface_hub.resolve_revision(
            repo_id, repo_type=kind, revision=revision, local_files_only=True
        )
    except (huggingface_hub.errors.RevisionResolutionError, OSError, ValueError):
        return None
    return found.resolved if is_commit(found.resolved) else None


def newest_commit(kind: Kind, repo_id: str, revision: str) -> str:
    """The hub's commit of a branch or tag. The cache remembers it, so that the next plan on this
    machine uses it, also offline. Raises HubRefusal."""
    with _refusals(kind, repo_id, revision):
        # `resolve_revision` would wait for an answer without a limit
        huggingface_hub.HfApi().repo_info(
            repo_id, repo_type=kind, revision=revision, timeout=_SECONDS
        )
        return huggingface_hub.resolve_revision(repo_id, repo_type=kind, revision=revision).resolved


def listing(kind: Kind, repo_id: str, commit: str) -> dict[str, RepoSibling]:
    """The files of a repository at a commit, by one request. Raises HubRefusal."""
    with _refusals(kind, repo_id, commit):
        info: Any = huggingface_hub.HfApi().repo_info(
            repo_id, repo_type=kind, revision=commit, files_metadata=True, timeout=_SECONDS
        )
    return {file.rfilename: file for file in info.siblings or ()}


def read_json(repo_id: str, name: str, commit: str) -> dict[str, Any] | None:
    """A small file of a model, which goes to the cache; None: no such file. Raises HubRefusal."""
    with _refusals("model", repo_id, commit):
        try:
            path = huggingface_hub.hf_hub_download(
                repo_id, name, revision=commit, etag_timeout=_SECONDS
            )
        except huggingface_hub.errors.RemoteEntryNotFoundError:
            return None
        content = json.loads(Path(path).read_bytes())
    return content if isinstance(content, dict) else None


@contextlib.contextmanager
def _refusals(kind: Kind, repo_id: str, revision: str) -> Iterator[None]:
    """Turns the client's errors into one sentence each, without tokens and hosts."""
    try:
        yield
    except Exception as error:  # no network, a proxy's page: types of three libraries
        errors = huggingface_hub.errors
        unanswered = (errors.LocalEntryNotFoundError, errors.RevisionResolutionError)
        cause = error.__cause__ if isinstance(error, unanswered) else error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        reached = status is not None or isinstance(cause, errors.HFValidationError)
        if isinstance(cause, errors.OfflineModeIsEnabled):
            said = "HF_HUB_OFFLINE is set: the hub is not asked"
        elif isinstance(cause, errors.GatedRepoError):
            said = "the hub asks for an accepted licence: accept it there and set HF_TOKEN"
        elif isinstance(cause, errors.RevisionNotFoundError):
            said = f"the hub has no revision {revision!r} of it"
        elif isinstance(cause, errors.RepositoryNotFoundError | errors.HFValidationError):
            said = f"the hub has no {kind} {repo_id!r}, or it is private: check the name and "
            said += "HF_TOKEN"
        else:
            what = f"answered {status}" if status else f"did not answer ({type(cause).__name__})"
            said = f"the hub {what}"
        raise HubRefusal(said, reached=reached) from None


def model_files(repo_id: str, commit: str) -> dict[str, RepoSibling]:
    """The files to download. Raises HubRefusal; PreflightError for an unusable model."""
    remote = listing("model", repo_id, commit)
    weights = (WEIGHTS,) if WEIGHTS in remote else _SHARDS  # as transformers chooses
    names = [name for name in sorted(remote) if _is_one_of(name, (*_OPENED, *weights))]
    if "config.json" not in names:
        raise PreflightError(f"model {repo_id!r} has no config.json at {commit}.")
    if not has_vocabulary(names):
        raise PreflightError(f"model {repo_id!r} has no tokenizer vocabulary at {commit}.")
    if weights[0] not in names:
        raise PreflightError(f"model {repo_id!r} {_NOT_PICKLED}")
    return {name: remote[name] for name in names}


def _is_one_of(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, each) and name.count("/") == each.count("/") for each in patterns)
