"""From a branch to a commit: the one name of a model or data set that can't come to mean another.

In this order: what the user wrote, if it is a commit; the sweep's manifest; what this machine's
cache knows the branch by; the hub. A commit that the hub named is kept in the cache, so that the
next plan on this machine is the same one.
"""

from __future__ import annotations

from typing import NamedTuple

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.hub import Kind, Refused
from lp_sweep.orchestrator.inputs.manifest import Manifest
from lp_sweep.trials.tasks import is_commit

DEFAULT_REVISION = "main"


class Pin(NamedTuple):
    """`revision` is a commit, or what the user asked for with the reason why it stays so."""

    revision: str
    why_not: str | None = None


class Pins:
    """Looks revisions up. After the first request that got no answer the hub is left alone."""

    def __init__(
        self, manifest: Manifest | None = None, *, offline: bool = False, newest: bool = False
    ) -> None:
        """`newest`: only the hub's word counts, as when a manifest is to be written."""
        self._manifest = manifest
        self._newest = newest
        self._unreachable = "--offline is set" if offline else None

    @property
    def unreachable(self) -> str | None:
        """Why the hub isn't asked, None while it is."""
        return self._unreachable

    def find(self, kind: Kind, repo_id: str, asked: str | None) -> Pin:
        revision = asked or DEFAULT_REVISION
        if is_commit(revision):
            return Pin(revision)
        known = None if self._newest else self._known(kind, repo_id, revision)
        if known is not None:
            return Pin(known)
        if self._unreachable is not None:
            return Pin(revision, self._unreachable)
        try:
            commit = hub.listing(kind, repo_id, revision).commit
        except Refused as error:
            self._unreachable = None if error.reached else str(error)
            return Pin(revision, str(error))
        hub.remember_commit(kind, repo_id, revision, commit)
        return Pin(commit)

    def _known(self, kind: Kind, repo_id: str, revision: str) -> str | None:
        held = self._manifest.commit(kind, repo_id, revision) if self._manifest else None
        return held or hub.cached_commit(kind, repo_id, revision)
