"""The failed tries of a store, read once each: which work of a sweep has failed, and with what."""

from __future__ import annotations

from collections.abc import Callable, Set

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.plan.known import failures
from lp_sweep.orchestrator.watch.newrecords import NewRecords
from lp_sweep.storage.store import Store

_COLUMNS = ("trial_id", "error_type", "final", "started_at", "ended_at")

Owns = Callable[[str], bool]  # whether work is of the sweep in question


class Tries:
    """`version` goes up when there is more to say. Raises StoreError."""

    def __init__(self, store: Store) -> None:
        self.version = 0
        self._store = store
        self._records = NewRecords(store, "attempts", _COLUMNS)
        self._rows = self._records.read()  # of nothing, before the first look
        self._measured: Set[str] = frozenset()  # profiles that are there

    def look(self) -> None:
        self._records.look()
        fresh = self._records.read()
        measured = self._store.names("profiles") if len(self._rows) + len(fresh) else frozenset()
        if len(fresh) or measured != self._measured:
            self._rows = pa.concat_tables([self._rows, fresh])
            self._measured = measured
            self.version += 1

    def failed(self, owns: Owns, done: Set[str]) -> dict[str, str]:
        """Work of the sweep -> the type with which it failed for good. `done`: finished trials."""
        return failures(self._of(owns), done | self._measured)

    def seconds(self, owns: Owns) -> float:
        """That tries at work of the sweep took; of a lost worker nobody knows."""
        rows = self._of(owns)
        lasted = pc.subtract(rows["ended_at"], rows["started_at"]).cast(pa.int64())
        return float(pc.sum(lasted).as_py() or 0) / 1e6

    def _of(self, owns: Owns) -> pa.Table:
        ours = [owns(id_) for id_ in self._rows["trial_id"].to_pylist()]
        return self._rows.filter(pa.array(ours, pa.bool_()))
