"""Downloads a sweep's models and data at pinned revisions into the Hugging Face cache.

Writes the manifest that lists them. A second call changes nothing while the hub is unchanged; it
follows a branch that moved and downloads torn files again. Never fetches pickled weights. Starts no
Ray.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import huggingface_hub
from rich import filesize

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.checks import collected
from lp_sweep.orchestrator.inputs.hub import HubRefusal, Kind, model_files
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.pins import (
    FileEntry,
    Manifest,
    PinnedRepo,
    Pins,
    manifest_path,
    read_manifest,
    write_manifest,
)
from lp_sweep.orchestrator.inputs.resolve import TaskInput, local_fingerprints, resolve
from lp_sweep.orchestrator.inputs.weights import folder_problems
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.storage.errors import LpSweepError, MissingInputError, PreflightError
from lp_sweep.trials.data.hub import hub_builder, read_hub

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling


class PrefetchResult(NamedTuple):
    """The inputs found or fetched, and the manifest that lists them."""

    manifest: Manifest
    path: Path
    changed: bool

    def text(self) -> str:
        """For a terminal."""
        lines = []
        for held in (*self.manifest.models, *self.manifest.datasets):
            config = f" ({held.config})" if held.config else ""
            size = filesize.decimal(sum(held.sizes.values()))
            lines.append(
                f"{held.id}{config}: {held.asked} is {held.commit[:12]}, {len(held.files)} files, "
                f"{size}"
            )
        lines += [
            f"{name}: {mark[:19]}, on this machine" for name, mark in self.manifest.local.items()
        ]
        return "\n".join([*lines, f"manifest: {self.path}{'' if self.changed else ' (as it was)'}"])

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = self.manifest.model_dump(mode="json", exclude_none=True)
        return found | {"manifest": str(self.path), "changed": self.changed}


def prefetch(
    file: SweepFile,
    *,
    data_dir: Path | None = None,
    manifest: Path | None = None,
    part: bool = False,
) -> PrefetchResult:
    """Raises SpecError or PreflightError; whole files are kept, and the next call continues.

    manifest: default is next to the sweep file. part: the overrides select a part of the sweep, so
    the manifest keeps its other entries.
    """
    path = manifest or manifest_path(file)
    before = read_manifest(path) if part else None
    sweep = resolve(file, data_dir=data_dir, pins=Pins(newest=True))
    items: list[ModelInput | TaskInput] = [*sweep.models, *sweep.tasks.values()]
    unpinned = [item for item in items if not item.pinned]
    if unpinned:
        raise PreflightError(
            "\n".join(f"can't fetch {item.name!r}: {item.why_not_pinned}" for item in unpinned)
        )
    models, datasets, problems = [], [], list[str]()
    for item in items:
        with collected(problems):
            if isinstance(item, ModelInput):
                models += [fetch_model(item)] if item.of_hub else []
            elif item.source.dataset is not None:
                datasets.append(_fetch_dataset(item))
    if problems:
        raise PreflightError("\n".join(problems))
    found = Manifest(
        models=tuple(models),
        datasets=tuple(datasets),
        local=dict(local_fingerprints(sweep.all_models, sweep.tasks.values())),
    )
    found = (before or Manifest()).merged_with(found)
    return PrefetchResult(found, path, write_manifest(path, found))


def fetch_model(model: ModelInput) -> PinnedRepo:
    """Config, safetensors and tokenizer of one model. Raises PreflightError."""
    where = f"model {model.name!r}"
    commit = str(model.revision)
    with _fetching(where):
        wanted = model_files(model.path, commit)
    files = {name: _fetch("model", model.path, commit, file) for name, file in wanted.items()}
    sizes = {name: entry.bytes for name, entry in files.items()}
    if problems := folder_problems(model.folder, depth=model.depth, sizes=sizes):
        raise PreflightError(f"{where} at {commit}: {'; '.join(problems)}")
    return PinnedRepo(id=model.path, asked=model.asked, commit=commit, files=files)


def _fetch_dataset(task: TaskInput) -> PinnedRepo:
    """One configuration of one data set, ready for `read_hub`. Raises PreflightError or, for rows
    that can't be read, MissingInputError."""
    source, where = task.source, f"task {task.name!r}"
    repo_id, commit = str(source.dataset), str(source.revision)
    with _fetching(where):
        remote = hub.listing("dataset", repo_id, commit)
        builder = hub_builder(source)
    parts = [str(path) for paths in (builder.config.data_files or {}).values() for path in paths]
    # hf://datasets/<id>@<commit>/<name>
    names = {path.partition("@")[2].partition("/")[2] for path in parts} | {"README.md"}
    names &= remote.keys()
    files = {name: _fetch("dataset", repo_id, commit, remote[name]) for name in sorted(names)}
    with _fetching(where):
        builder.download_and_prepare()
    try:
        _read_all(task)
    except MissingInputError:  # the prepared rows are torn: prepare them again
        with _fetching(where):
            builder.download_and_prepare(download_mode="reuse_cache_if_exists")
        _read_all(task)
    asked = task.asked or commit
    return PinnedRepo(id=repo_id, asked=asked, config=source.config, commit=commit, files=files)


def _read_all(task: TaskInput) -> None:
    """Reads as a trial without a network will."""
    columns = [*task.definition.text_columns, task.definition.label_column]
    for split in task.source.splits:
        read_hub(task.source, split, columns, offline=True)


def _fetch(kind: Kind, repo_id: str, commit: str, file: RepoSibling) -> FileEntry:
    """One file, in the cache and whole. Raises PreflightError."""
    name, where = file.rfilename, f"{kind} {repo_id!r}: {file.rfilename}"
    stated = file.lfs.sha256 if file.lfs else None  # none for a file in plain git
    for again in (False, True):  # the cache never checks its files
        with _fetching(where):
            path = Path(
                huggingface_hub.hf_hub_download(
                    repo_id, name, repo_type=kind, revision=commit, force_download=again
                )
            )
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        entry = FileEntry(bytes=path.stat().st_size, sha256=digest)
        if entry.bytes == file.size and stated in (None, digest):
            return entry
    raise PreflightError(
        f"{where} came with {entry.bytes} bytes and is not what the hub lists "
        f"({file.size} bytes, sha256 {stated}). Try again later."
    )


@contextlib.contextmanager
def _fetching(where: str) -> Iterator[None]:
    """Turns the clients' errors, after their own tries, into a PreflightError."""
    try:
        yield
    except HubRefusal as error:
        raise PreflightError(f"{where}: {error}") from None
    except LpSweepError:
        raise
    except Exception as error:  # the hub's clients raise dozens of types
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise PreflightError(
            f"{where} can't be fetched: {reason}. Check the network and run `lp-sweep prefetch` "
            "again: whole files are kept."
        ) from None
