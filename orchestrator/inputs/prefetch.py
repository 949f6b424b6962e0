"""Downloads a sweep's models and data at pinned revisions into the Hugging Face cache.

Writes the manifest that lists them. A second call changes nothing while the hub is unchanged; it
follows a branch that moved and downloads torn files again. Never fetches pickled weights. Starts no
Ray.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rich import filesize

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.hub import (
    Kind,
    Refused,
    RemoteFile,
    model_files,
)
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.pins import (
    FileEntry,
    Held,
    Manifest,
    Pins,
    manifest_path,
    read_manifest,
    write_manifest,
)
from lp_sweep.orchestrator.inputs.resolve import Sweep, TaskInput, local_fingerprints, resolve
from lp_sweep.orchestrator.inputs.weights import folder_problems
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.storage.errors import MissingInputError, PreflightError
from lp_sweep.trials.data.hub import hub_builder, read_hub

_TRIES = 2  # of the libraries' own five
_Found = TypeVar("_Found")


class Prefetched(NamedTuple):
    """The inputs found or fetched, and the manifest that lists them."""

    manifest: Manifest
    path: Path
    changed: bool

    def text(self) -> str:
        """For a terminal."""
        lines = [
            f"{held.id}{f' ({held.config})' if held.config else ''}: {held.asked} is "
            f"{held.commit[:12]}, {len(held.files)} files, {filesize.decimal(held.bytes)}"
            for held in (*self.manifest.models, *self.manifest.datasets)
        ]
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
) -> Prefetched:
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
    found = _fetch_all(sweep)
    found = before.merged_with(found) if before else found
    return Prefetched(found, path, write_manifest(path, found))


def _fetch_all(sweep: Sweep) -> Manifest:
    """Tries every input, then reports all failures at once."""
    models, datasets, problems = [], [], []
    for model in sweep.models:
        if model.of_hub:
            try:
                models.append(fetch_model(model))
            except PreflightError as error:
                problems.append(str(error))
    for task in sweep.tasks.values():
        if task.source.dataset is not None:
            try:
                datasets.append(_fetch_dataset(task))
            except (PreflightError, MissingInputError) as error:
                problems.append(str(error))
    if problems:
        raise PreflightError("\n".join(problems))
    local = dict(local_fingerprints(sweep.all_models, sweep.tasks.values()))
    return Manifest().merged_with(
        Manifest(models=tuple(models), datasets=tuple(datasets), local=local)
    )


def fetch_model(model: ModelInput) -> Held:
    """Config, safetensors and tokenizer of one model. Raises PreflightError."""
    where = f"model {model.name!r}"
    commit = str(model.revision)
    try:
        wanted = model_files(model.path, hub.listing("model", model.path, commit))
    except Refused as error:
        raise PreflightError(f"{where}: {error}") from None
    files = {file.name: _fetch("model", model.path, commit, file) for file in wanted}
    sizes = {name: entry.bytes for name, entry in files.items()}
    folder = hub.snapshot("model", model.path, commit)
    if problems := folder_problems(folder, depth=model.depth, sizes=sizes):
        raise PreflightError(f"{where} at {commit}: {'; '.join(problems)}")
    if model.asked != commit:
        hub.remember_commit("model", model.path, model.asked, commit)
    return Held(id=model.path, asked=model.asked, commit=commit, files=files)


def _fetch_dataset(task: TaskInput) -> Held:
    """One configuration of one data set, ready for `read_hub`. Raises PreflightError or, for rows
    that can't be read, MissingInputError."""
    source, where = task.source, f"task {task.name!r}"
    repo_id, commit = str(source.dataset), str(source.revision)
    try:
        remote = {file.name: file for file in hub.listing("dataset", repo_id, commit).files}
    except Refused as error:
        raise PreflightError(f"{where}: {error}") from None
    builder = _retried(lambda: hub_builder(source), where)
    if builder.name == "cache":  # what `datasets` returns if the hub does not answer
        raise PreflightError(f"{where}: the hub did not answer. Run `lp-sweep prefetch` again.")
    names = [name for name in remote if name in {"README.md", *_data_files(builder)}]
    files = {name: _fetch("dataset", repo_id, commit, remote[name]) for name in sorted(names)}
    _retried(builder.download_and_prepare, where)
    try:
        _read_all(task)
    except MissingInputError:  # the prepared rows are torn: prepare them again
        again = {"download_mode": "reuse_cache_if_exists"}
        _retried(lambda: builder.download_and_prepare(**again), where)
        _read_all(task)
    asked = task.asked or commit
    if asked != commit:
        hub.remember_commit("dataset", repo_id, asked, commit)
    return Held(id=repo_id, asked=asked, config=source.config, commit=commit, files=files)


def _data_files(builder: Any) -> set[str]:
    """The files of all splits: the cache holds a configuration whole or not at all."""
    named = (str(path) for paths in (builder.config.data_files or {}).values() for path in paths)
    return {path.partition("@")[2].partition("/")[2] for path in named}


def _read_all(task: TaskInput) -> None:
    """Reads as a trial without a network will."""
    columns = [*task.definition.text_columns, task.definition.label_column]
    for split in task.source.splits:
        read_hub(task.source, split, columns, offline=True)


def _fetch(kind: Kind, repo_id: str, commit: str, file: RemoteFile) -> FileEntry:
    """One file, in the cache and whole. Raises PreflightError."""
    from huggingface_hub import hf_hub_download

    where = f"{kind} {repo_id!r}: {file.name}"

    def download(again: bool) -> Path:
        return Path(
            _retried(
                lambda: hf_hub_download(
                    repo_id, file.name, repo_type=kind, revision=commit, force_download=again
                ),
                where,
            )
        )

    entry = _measure(download(again=False))
    if not _is(entry, file):  # the cache never checks its files
        entry = _measure(download(again=True))
    if not _is(entry, file):
        raise PreflightError(
            f"{where} came with {entry.bytes} bytes and is not what the hub lists "
            f"({file.bytes} bytes, sha256 {file.sha256}). Try again later."
        )
    return entry


def _is(entry: FileEntry, file: RemoteFile) -> bool:
    return entry.bytes == file.bytes and file.sha256 in (None, entry.sha256)


def _measure(path: Path) -> FileEntry:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(bytes=path.stat().st_size, sha256=digest)


def _retried(get: Callable[[], _Found], where: str) -> _Found:
    """Tries again after a broken connection; whole files are in the cache by then."""
    for attempt in range(_TRIES):
        try:
            return get()
        except Exception as error:  # the hub's clients raise dozens of types
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            status = getattr(getattr(error, "response", None), "status_code", 500)
            if 400 <= status < 500 and status not in (408, 429):  # it would be refused again
                break
            if attempt < _TRIES - 1:
                time.sleep(2.0**attempt)
    raise PreflightError(
        f"{where} can't be fetched: {reason}. Check the network and run `lp-sweep prefetch` again: "
        "whole files are kept."
    )
