"""Writes the driver's own records: a sweep's cells, the attempts of lost workers, and marks on
networks that other work needs."""

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
    """How a worker was lost: `message` is a line, `details` Ray's whole text."""

    error_type: str
    message: str
    details: str
    node: str | None


def blocked_by(need: str) -> Loss:
    """The loss of a trial that never began because the trial it continues from failed."""
    message = f"it needs the network of {need}, which failed: see `lp-sweep logs {need}`"
    return Loss("missing_input", message, message, None)


class Recorder:
    """`part`: the run covers a part of its sweep, so the other cells stay listed. `overrides`: the
    run's, quoted for a shell, for the command that continues it."""

    def __init__(self, store: Store, *, part: bool, command: str, overrides: str = "") -> None:
        self.store, self.part, self.command = store, part, command
        self.overrides = overrides

    def cells(self, plan: Plan) -> None:
        """Writes the sweep's cells, for the views, unless the store has them."""
        name = plan.sweep.name
        listed = self.store.find("sweeps", name) or []
        listing = relisted(plan, listed, part=self.part, overrides=self.overrides)
        if listing.replaced:  # written first, so that no cell is ever missing from both tables
            earlier = with_earlier(self.store.find(EARLIER, name) or [], listing)
            self.store.put(EARLIER, name, pa.Table.from_pylist(earlier, TABLES[EARLIER]))
        rows = pa.Table.from_pylist(listing.cells, TABLES["sweeps"])
        if rows.to_pylist() != listed:
            self.store.put("sweeps", name, rows)

    def lost(self, work: Work, loss: Loss, *, final: bool) -> None:
        """Writes the attempt of a worker that could not do so itself."""
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
    """Keeps the networks in a store while other work needs them, and releases them afterwards.

    While another run uses the store nothing is released, since it may need the same network; the
    last run does it. `keep_best`: keep what `keep: best` would. All methods raise StoreError."""

    def __init__(self, store: Store, presence: Presence, *, keep_best: bool) -> None:
        self.store, self.presence, self.keep_best = store, presence, keep_best

    def hold(self, plan: Plan) -> None:
        """Protects stored networks from a `keep: best` that would delete them."""
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
        """Releases the networks that no work of the plan needs any more."""
        if idle := plan.sources() - plan.needed_networks():
            self.release(idle & self.store.folders(WEIGHTS))
