"""Reads the Hugging Face hub and this machine's cache of it: commits, sizes, small files.

Downloads nothing into the cache (`prefetch` does); imports no torch. huggingface_hub cannot read or
write the commit of a branch while none of its files is cached, so this module reads and writes
`refs/` in the same format.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lp_sweep.orchestrator.inputs.weights import has_vocabulary
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.files import arriving
from lp_sweep.trials.data.tasks import is_commit
from lp_sweep.trials.model.modelfiles import INDEX, WEIGHTS

DEFAULT_REVISION = "main"
Kind = Literal["model", "dataset"]

_SMALL = {
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "bpe.codes",
    "chat_template.jinja",
    "modules.json",
    "config_sentence_transformers.json",
}
_NOT_PICKLED = (
    "has no model.safetensors at that commit, and pickled weights are never fetched. Name a "
    "revision that has it, or convert the model once, where it is trusted, with save_pretrained, "
    "and name that folder."
)

_SECONDS = 5.0  # timeout of a request: a plan must not hang on a network that drops packets


class Refused(Exception):
    """The hub did not answer, or refused: nothing of that name, no access. The text is for
    messages."""

    def __init__(self, reason: str, *, reached: bool) -> None:
        super().__init__(reason)
        self.reached = reached


class RemoteFile(NamedTuple):
    """A file of a repository, as the hub lists it."""

    name: str
    bytes: int
    sha256: str | None  # None for a file in plain git


class Listing(NamedTuple):
    """A repository at one commit."""

    commit: str
    files: tuple[RemoteFile, ...]


def repo_folder(kind: Kind, repo_id: str) -> Path:
    """The cache's folder of a repository, with `refs/`, `snapshots/<commit>/` and `blobs/`."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / "--".join([f"{kind}s", *repo_id.split("/")])


def snapshot(kind: Kind, repo_id: str, commit: str) -> Path:
    """The cache's folder of one commit, which may not exist."""
    return repo_folder(kind, repo_id) / "snapshots" / commit


def cached_commit(kind: Kind, repo_id: str, revision: str) -> str | None:
    """The commit of a branch or tag in the cache."""
    try:
        text = _ref(kind, repo_id, revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return text if is_commit(text) else None


def remember_commit(kind: Kind, repo_id: str, revision: str, commit: str) -> None:
    """Writes to the cache, so that the next plan on this machine uses the same commit offline."""
    # if the cache can't be written, or a file can't have the name, the next plan asks the hub
    with contextlib.suppress(OSError, ValueError):
        path = _ref(kind, repo_id, revision)
        path.parent.mkdir(parents=True, exist_ok=True)
        with arriving(path) as temporary:
            temporary.write_text(commit, encoding="utf-8")


def _ref(kind: Kind, repo_id: str, revision: str) -> Path:
    """Raises ValueError for a revision that would lead out of the folder."""
    folder = repo_folder(kind, repo_id) / "refs"
    path = folder / revision
    if ".." in path.parts or not path.is_relative_to(folder) or path == folder:
        raise ValueError(f"not a revision: {revision!r}")
    return path


def listing(kind: Kind, repo_id: str, revision: str) -> Listing:
    """The commit of a revision and its files, by one request. Raises Refused."""
    from huggingface_hub import HfApi

    api = HfApi()
    ask: Any = api.model_info if kind == "model" else api.dataset_info
    with _refusals(kind, repo_id, revision):
        info = _twice(
            lambda: ask(repo_id, revision=revision, files_metadata=True, timeout=_SECONDS)
        )
    if not is_commit(info.sha):
        raise Refused(f"the hub names no commit for {revision!r}", reached=True)
    files = (
        RemoteFile(each.rfilename, int(each.size or 0), each.lfs.sha256 if each.lfs else None)
        for each in info.siblings or ()
    )
    return Listing(str(info.sha), tuple(sorted(files)))


def read_json(repo_id: str, name: str, commit: str) -> dict[str, Any] | None:
    """A small file of a model, by one request; None if there is none. Raises Refused."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    with _refusals("model", repo_id, commit):
        answer = _twice(
            lambda: get_session().get(
                hf_hub_url(repo_id, name, revision=commit),
                headers=build_hf_headers(),
                timeout=_SECONDS,
                follow_redirects=True,
            )
        )
        if answer.status_code == 404:
            return None
        content = json.loads(answer.raise_for_status().content)
    return content if isinstance(content, dict) else None


def _twice(request: Callable[[], Any]) -> Any:
    """Repeats a request whose connection broke; not one that timed out."""
    try:
        return request()
    except Exception as error:
        if type(error).__name__ not in ("RemoteProtocolError", "ReadError"):
            raise
        return request()


@contextlib.contextmanager
def _refusals(kind: Kind, repo_id: str, revision: str) -> Any:
    """Turns the client's errors into one sentence each, without tokens and hosts."""
    from huggingface_hub import errors

    try:
        yield
    except errors.OfflineModeIsEnabled:
        raise Refused("HF_HUB_OFFLINE is set: the hub is not asked", reached=False) from None
    except errors.GatedRepoError:
        raise Refused(
            "the hub asks for an accepted licence: accept it there and set HF_TOKEN", reached=True
        ) from None
    except errors.RevisionNotFoundError:
        raise Refused(f"the hub has no revision {revision!r} of it", reached=True) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise Refused(
            f"the hub has no {kind} {repo_id!r}, or it is private: check the name and HF_TOKEN",
            reached=True,
        ) from None
    except Exception as error:  # no network, a proxy's page: types of three libraries
        status = getattr(getattr(error, "response", None), "status_code", None)
        what = f"answered {status}" if status else f"did not answer ({type(error).__name__})"
        raise Refused(f"the hub {what}", reached=status is not None) from None


# -- the files of a model that a trial opens


def model_files(repo_id: str, listing: Listing) -> list[RemoteFile]:
    """The files to download, by name. Raises Refused; PreflightError for an unusable model."""
    remote = {file.name: file for file in listing.files}
    small = [
        name
        for name in remote
        if name in _SMALL or ("/" not in name and has_vocabulary([name])) or _of_vectors(name)
    ]
    if "config.json" not in small:
        raise PreflightError(f"model {repo_id!r} has no config.json at {listing.commit}.")
    if not has_vocabulary(small):
        raise PreflightError(f"model {repo_id!r} has no tokenizer vocabulary at {listing.commit}.")
    names = sorted({*small, *_weights(repo_id, listing.commit, remote)})
    return [remote[name] for name in names]


def _of_vectors(name: str) -> bool:
    """Whether it is a file of Sentence Transformers, such as 1_Pooling/config.json."""
    return bool(
        re.fullmatch(r"(\d+_\w+/(config\.json|model\.safetensors)|sentence_\w+_config\.json)", name)
    )


def _weights(repo_id: str, commit: str, remote: dict[str, RemoteFile]) -> list[str]:
    """The weights that transformers would choose: one file, else the index and its shards."""
    if WEIGHTS in remote:
        return [WEIGHTS]
    if INDEX not in remote:
        raise PreflightError(f"model {repo_id!r} {_NOT_PICKLED}")
    named = (read_json(repo_id, INDEX, commit) or {}).get("weight_map")
    shards = sorted(set(map(str, named.values()))) if isinstance(named, dict) else []
    lacking = [name for name in shards if name not in remote or Path(name).name != name]
    if not shards or lacking:
        raise PreflightError(
            f"model {repo_id!r}: {INDEX} names {', '.join(lacking) or 'no files'}, and the hub "
            f"has no such file at {commit}."
        )
    return [INDEX, *shards]


def absent(repo_id: str, commit: str, files: list[RemoteFile]) -> list[RemoteFile]:
    """The files still to download. Raises PreflightError for a torn file in the cache, which the
    client would not download again."""
    folder = snapshot("model", repo_id, commit)
    torn, missing = [], []
    for file in files:
        path = folder / file.name
        if not path.is_file():
            missing.append(file)
        elif path.stat().st_size != file.bytes:
            torn.append(f"{path} has {path.stat().st_size} bytes and should have {file.bytes}")
    if torn:
        raise PreflightError(
            f"model {repo_id!r}: {'; '.join(torn)}. Download it again with `lp-sweep prefetch`."
        )
    return missing
