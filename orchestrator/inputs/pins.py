"""Pins revisions: finds the commit of a branch or tag, since only a commit can't change.

The commit comes from the first of these that has one: the sweep file, the sweep's manifest, this
machine's cache, the hub. The hub's answer is stored in the cache, so that the next plan on this
machine is the same. Downloads nothing.

The manifest is a JSON file to read and to keep under version control. `prefetch` writes
`sweep.manifest.json` for `sweep.yaml`; `plan` and `run` read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.hub import DEFAULT_REVISION, HubRefusal, Kind
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.places import arriving
from lp_sweep.trials.data.tasks import is_commit


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class FileEntry(_Entry):
    """One file as it was downloaded."""

    bytes: int = Field(ge=0)
    sha256: Sha256


class PinnedRepo(_Entry):
    """A model or data set at the commit of `asked` (a branch, a tag or a commit)."""

    id: str
    asked: str
    config: str | None = None  # of a data set; None: the default one
    commit: Commit
    files: dict[str, FileEntry]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file."""
        return {name: file.bytes for name, file in self.files.items()}


class Manifest(_Entry):
    """All inputs of a sweep. `local`: a folder or a task of files -> its fingerprint."""

    lp_sweep_manifest: Literal[1] = 1
    models: tuple[PinnedRepo, ...] = Field(default=(), strict=False)
    datasets: tuple[PinnedRepo, ...] = Field(default=(), strict=False)
    local: dict[str, str] = Field(default={})

    def commit(self, kind: Kind, repo_id: str, asked: str) -> str | None:
        """The commit of a branch; a data set's configurations share it."""
        for held in self.models if kind == "model" else self.datasets:
            if (held.id, held.asked) == (repo_id, asked):
                return held.commit
        return None

    def find(self, repo_id: str, asked: str, config: str | None = None) -> PinnedRepo | None:
        """A model, or a data set's configuration (None: the default one)."""
        for held in (*self.models, *self.datasets):
            if (held.id, held.asked, held.config) == (repo_id, asked, config):
                return held
        return None

    def merged_with(self, newer: Manifest) -> Manifest:
        """The entries of both, sorted; `newer` counts where they differ."""

        def latest(*entries: PinnedRepo) -> tuple[PinnedRepo, ...]:
            by_key = {(held.id, held.config or "", held.asked): held for held in entries}
            return tuple(by_key[key] for key in sorted(by_key))

        return Manifest(
            models=latest(*self.models, *newer.models),
            datasets=latest(*self.datasets, *newer.datasets),
            local=dict(sorted((self.local | newer.local).items())),
        )


def manifest_path(file: SweepFile) -> Path:
    """`sweep.manifest.json` beside `sweep.yaml`."""
    return file.folder / f"{Path(file.document.name).stem}.manifest.json"


def read_manifest(path: Path) -> Manifest | None:
    """None if there is no file. Raises PreflightError for one that can't be read: without its pins
    it would be another sweep."""
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror or str(error)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        reason = f"{place + ': ' if place else ''}{first['msg']}"
    raise PreflightError(
        f"can't read the manifest {path}: {reason}. Write it again with `lp-sweep prefetch`, or "
        "delete it to go on without pinned revisions."
    )


def write_manifest(path: Path, manifest: Manifest) -> bool:
    """Writes atomically; returns False if nothing has changed. Raises PreflightError."""
    content = f"{manifest.model_dump_json(indent=2, exclude_none=True)}\n".encode()
    try:
        if path.is_file() and path.read_bytes() == content:
            return False
        with arriving(path) as temporary, temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise PreflightError(
            f"can't write the manifest {path}: {error}. Name another file with --manifest; what "
            "was downloaded stays in the cache."
        ) from None
    return True


class Pin(NamedTuple):
    """`revision`: a commit, or the user's own text. `why_not`: why it is not a commit."""

    revision: str
    why_not: str | None = None


class Pins:
    """Finds commits. After one request without an answer the hub is not asked again."""

    def __init__(
        self, manifest: Manifest | None = None, *, offline: bool = False, newest: bool = False
    ) -> None:
        """newest: ask only the hub, to write a new manifest."""
        self._manifest = manifest
        self._newest = newest
        self.unreachable = "--offline is set" if offline else None  # why the hub is not asked

    def find(self, kind: Kind, repo_id: str, asked: str | None) -> Pin:
        revision = asked or DEFAULT_REVISION
        if is_commit(revision):
            return Pin(revision)
        if not self._newest:
            held = self._manifest.commit(kind, repo_id, revision) if self._manifest else None
            if known := held or hub.cached_commit(kind, repo_id, revision):
                return Pin(known)
        if self.unreachable is not None:
            return Pin(revision, self.unreachable)
        try:
            return Pin(hub.newest_commit(kind, repo_id, revision))
        except HubRefusal as error:
            self.unreachable = None if error.reached else str(error)
            return Pin(revision, str(error))
