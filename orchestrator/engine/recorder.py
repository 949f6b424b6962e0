"""Writes the driver's own records: a sweep's cells, attempts of lost workers, and which networks
are kept while other work needs them."""

from __future__ import annotations

import datetime as dt
import socket
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from lp_sweep.orchestrator.plan.listing import relisted, with_earlier
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.networks import WEIGHTS, keep_while_needed, release
from lp_sweep.storage.runs import Presence
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.setups import EARLIER
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.job import Failure, attempt_row


class Loss(NamedTuple):
    """`message` is a line, `details` all that Ray says; `node` None where Ray does not know it."""

    error_type: str
    message: str
    details: str
    node: str | None


def blocked_by(need: str) -> Loss:
    """The loss of a trial that never began, since the trial it continues from failed."""
    message = f"it needs the network of {need}, which failed: see `lp-sweep logs {need}`"
    return Loss("missing_input", message, message, None)


class Recorder:
    """`part`: a run of a part of a sweep leaves the other cells listed. `overrides`: of the run, as
    a shell takes them, for the command that goes on with its cells."""

    def __init__(self, store: Store, *, part: bool, command: str, overrides: str = "") -> None:
        self.store, self.part, self.command = store, part, command
        self.overrides = overrides

    def cells(self, plan: Plan) -> None:
        """The sweep's cells, for the views; written again when a profile opens deferred ones."""
        name = plan.sweep.name
        listed = self.store.find("sweeps", name) or []
        listing = relisted(plan, listed, part=self.part, overrides=self.overrides)
        if listing.replaced:  # first: between the two writes no cell is missing from both tables
            earlier = with_earlier(self.store.find(EARLIER, name) or [], listing)
            self.store.put(EARLIER, name, pa.Table.from_pylist(earlier, TABLES[EARLIER]))
        rows = pa.Table.from_pylist(listing.cells, TABLES["sweeps"])
        if rows.to_pylist() != listed:  # a finished sweep writes nothing
            self.store.put("sweeps", name, rows)

    def lost(self, work: Work, loss: Loss, *, final: bool) -> None:
        """An attempt whose worker could not write one itself."""
        row = attempt_row(
            work.id,
            work.job(),
            Failure(loss.error_type, loss.message, loss.details),
            final=final,
            command=self.command,
            host=socket.gethostname(),
            ended_at=dt.datetime.now(dt.UTC),
        )
        self.store.put("attempts", row["attempt_id"], [row])


class Sources:
    """The networks of a store that work goes on from: kept while it is missing, released after.

    While another run works on the store nothing is released: it may need the same. The last one
    does. `keep_best`: what a `best` would keep stays. All methods raise StoreError."""

    def __init__(self, store: Store, presence: Presence, *, keep_best: bool) -> None:
        self.store, self.presence, self.keep_best = store, presence, keep_best

    def hold(self, plan: Plan) -> None:
        """Keeps networks that are there already from a `best` that would delete them."""
        for id_ in sorted(plan.needed_networks() & plan.known.networks):
            keep_while_needed(self.store, id_)

    def release(self, ids: Iterable[str]) -> None:
        """Releases networks that were kept only for other work."""
        if self.presence.others():
            return
        for id_ in sorted(ids):
            if row := self.store.find("trials", id_):
                release(self.store, row[0], keep_best=self.keep_best)

    def release_idle(self, plan: Plan) -> None:
        """All that no work of the plan needs any more."""
        if idle := plan.sources() - plan.needed_networks():
            self.release(idle & self.store.folders(WEIGHTS))
