"""Records of an older identity version, published again under the identifiers of today.

A change of what determines a trial's result, or of a default, is a new IDENTITY_VERSION: then no
identifier of the old version is ever asked for again. Where the old records' meaning is known in
the new terms, a function in MIGRATIONS says so, and nothing is trained again. The old records stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from lp_sweep.storage import identity
from lp_sweep.storage.specs import TrialSpec, trial_spec_from_canonical
from lp_sweep.storage.store import Store

Spec = dict[str, Any]

# version -> from the canonical spec of that version (`spec` of a trial's record, without what is at
# its default) to that of the next one. Empty: this is the first version.
MIGRATIONS: dict[int, Callable[[Spec], Spec]] = {}


class Migrated(NamedTuple):
    """Records that got an identifier of today's version, that had one, and that can't have one."""

    moved: int
    kept: int
    unknown: int


def migrate(store: Store) -> Migrated:
    """Publish every trial of an older version under its new identifier, its predictions before it.

    Doing it twice, or stopping it in the middle, is harmless. Raises StoreError.
    """
    rows = store.read_all("trials").rows.to_pylist()
    known = {row["trial_id"] for row in rows}
    moved = kept = unknown = 0
    for row in rows:
        if row["identity_version"] == identity.IDENTITY_VERSION:
            kept += 1
            continue
        spec = _today(row)
        if spec is None:
            unknown += 1
            continue
        new = identity.trial_id(spec)
        if new not in known:
            _publish(store, row, new, spec)
            known.add(new)
            moved += 1
    return Migrated(moved, kept, unknown)


def _today(row: Spec) -> TrialSpec | None:
    """The record's trial in today's terms; None where no migration leads there."""
    version = row["identity_version"]
    if version is None or row["spec"] is None:
        return None
    try:
        payload = dict(json.loads(row["spec"]))
        while version != identity.IDENTITY_VERSION:
            payload = MIGRATIONS[version](payload)
            version += 1
        return trial_spec_from_canonical(json.dumps(payload))
    except (KeyError, TypeError, ValueError):
        return None


def _publish(store: Store, row: Spec, new: str, spec: TrialSpec) -> None:
    predictions = store.find("predictions", row["trial_id"])
    if predictions is not None:
        store.put("predictions", new, [{**item, "trial_id": new} for item in predictions])
    today = {
        "trial_id": new,
        "identity_version": identity.IDENTITY_VERSION,
        "spec": identity.canonical_json(spec),
    }
    store.put("trials", new, [{**row, **today}])  # last: its presence means done
