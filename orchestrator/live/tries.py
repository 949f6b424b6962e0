"""The failed tries of a store, read once each: which work of a sweep has failed, and with what."""

from __future__ import annotations

from collections.abc import Callable, Set

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.live.newrecords import NewRecords
from lp_sweep.orchestrator.plan.known import failures
from lp_sweep.storage.store import Store

_COLUMNS = ("trial_id", "error_type", "final", "started_at", "ended_at")

Owns = Callable[[str], bool]  # whether work is of the sweep in question


class Tries:
    """Raises StoreError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records = NewRecords(store, "attempts", _COLUMNS)
        self._rows: pa.Table | None = None

    def look(self) -> None:
        self._records.look()
        fresh = self._records.read()
        if self._rows is None or len(fresh):
            self._rows = fresh if self._rows is None else pa.concat_tables([self._rows, fresh])

    def failed(self, owns: Owns, done: Set[str]) -> dict[str, str]:
        """Work of the sweep -> the type with which it failed for good. `done`: finished trials."""
        rows = self._of(owns)
        if not len(rows):
            return {}
        return failures(rows, done | self._store.names("profiles"))

    def seconds(self, owns: Owns) -> float:
        """That tries at work of the sweep took; of a lost worker nobody knows."""
        rows = self._of(owns)
        lasted = pc.subtract(rows["ended_at"], rows["started_at"]).cast(pa.int64())
        return float(pc.sum(lasted).as_py() or 0) / 1e6

    def _of(self, owns: Owns) -> pa.Table:
        assert self._rows is not None, "a look comes first"
        ours = [owns(id_) for id_ in self._rows["trial_id"].to_pylist()]
        return self._rows.filter(pa.array(ours, pa.bool_()))
