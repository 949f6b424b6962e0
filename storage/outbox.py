"""How a worker hands its records over: to the node's spool first, then to the store.

The store may be away, from the very start: then all goes to the spool, and `spool.flush` sends it
when the store is back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.files import open_files
from lp_sweep.storage.spool import Record, Spool, flush, send_network
from lp_sweep.storage.store import Store

_OTHERS_SECONDS = 60.0  # younger than this, a spooled file may be on its way by its own worker


class Outbox:
    """One store, and this node's spool for it. `patience`: seconds to wait for the store, each
    time that it is asked for something."""

    def __init__(self, location: str, cache_dir: Path, patience: float = 0.0) -> None:
        self.cache_dir, self.patience = cache_dir, patience
        self.location = open_files(location).location
        self.spool = Spool(cache_dir, self.location)
        self.store: Store | None = None  # None: away
        self.refusal: str | None = None  # why the store took nothing, when it last was asked
        with self._refusing():
            self.store = Store(self.location, patience=patience)

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self.refusal = str(error)

    def find(self, table: str, name: str) -> list[dict[str, Any]] | None:
        """The rows of a record. What waits in the spool is sent first; `refusal` says why it has
        to wait on, and is None where the store has the record."""
        waiting = self.spool.find(table, name)
        rows = None
        if self.store is not None:
            self.refusal = None
            if waiting is not None:
                flush(self.store, self.cache_dir)
            with self._refusing():
                rows = self.store.find(table, name)
        if rows is None and waiting is not None:
            self.refusal = self.refusal or f"the store {self.location} did not take it"
            return waiting.to_list()
        return rows

    def send(self, *records: Record, network: str = "") -> bool:
        """First the network of the trial `network` (else of the last record's), if one waits, then
        records in their order. False: they wait in the spool, and `refusal` says why. Raises
        StoreError when neither takes them: then they are lost."""
        spooled = [self.spool.put(record) for record in records]
        name = network or records[-1].name
        try:
            self._send(records, name)
        except StoreError as error:
            self.refusal = str(error)
            if all(spooled):
                return False
            raise StoreError(
                f"neither the store nor this node's spool {self.spool.root} takes the record of "
                f"{name}, so it is lost. {error}"
            ) from error
        self.refusal = None
        for record in records:
            self.spool.drop(record)
        self._send_others()
        return True

    def _send(self, records: Sequence[Record], name: str) -> None:
        if self.store is None:
            self.store = Store(self.location, patience=self.patience)
        for network in self.spool.networks():
            if network.name == name:
                send_network(self.store, network)
        for record in records:
            self.store.put(record.table, record.name, record.rows)

    def _send_others(self) -> None:
        """What other tries left behind, now that the store is there."""
        if self.store is not None:
            flush(self.store, self.cache_dir, older_than=_OTHERS_SECONDS)

    def delete(self, folder: str, name: str) -> None:
        """From the store, if it is there: what stays is in nobody's way."""
        with contextlib.suppress(StoreError):
            if self.store is not None:
                self.store.delete(folder, name)
