"""What the driver itself writes to the store: a sweep's cells, and attempts of lost workers."""

from __future__ import annotations

import datetime as dt
import socket

import pyarrow as pa

from lp_sweep.orchestrator.engine.loss import Loss
from lp_sweep.orchestrator.plan.listing import relisted, with_earlier
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.setups import EARLIER
from lp_sweep.storage.store import Store
from lp_sweep.trials.job import Failure, attempt_row


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
        listing = relisted(plan, listed, self.store, part=self.part, overrides=self.overrides)
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
