"""A node's copies of records that a store does not have yet: no finished trial is lost.

    <cache_dir>/spool/<hash of the store's location>/
      location.txt                  the store's location
      <table>/<name>.parquet        records
      weights/<trial_id>/...        kept networks, moved here when complete

A record is written here first, then to the store, and deleted here when the store has it. The
workers of a node share one spool, and each may send what another left: the store's writes are
idempotent.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.storage import parquet
from lp_sweep.storage.errors import StoreError, SweepWarning
from lp_sweep.storage.files import Folder
from lp_sweep.storage.networks import (
    BEST,
    CONFIG,
    KEPT_BY,
    NEED,
    NEED_BEST,
    WEIGHTS,
    is_for_good,
    kept_by,
    settle,
)
from lp_sweep.storage.places import expanded
from lp_sweep.storage.store import Store, open_files
from lp_sweep.storage.tablefiles import record_name

_OTHERS_SECONDS = 60.0  # a younger file may be being sent by its own worker
# in the order of sending: a trial is done when its record is there
_ORDER = ("predictions", "teacher_logits", "profiles", "trials", "attempts")


class Record(NamedTuple):
    """The rows of a record, and where they go."""

    table: str
    name: str
    rows: Sequence[Mapping[str, Any]] | pa.Table

    @property
    def path(self) -> str:
        return f"{self.table}/{self.name}.parquet"

    def to_list(self) -> list[dict[str, Any]]:
        rows = self.rows.to_pylist() if isinstance(self.rows, pa.Table) else self.rows
        return [dict(row) for row in rows]


class SpoolResult(NamedTuple):
    """The number of records and networks that were sent to the store, and that still wait."""

    sent: int
    waiting: int


class Spool:
    """The records and networks on this node that wait to be sent to one store."""

    def __init__(self, cache_dir: Path, location: str) -> None:
        key = hashlib.sha256(location.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self.root = expanded(cache_dir).absolute() / "spool" / key
        self.location = location
        self._files = Folder(self.root, durable=False)  # need not survive a power failure

    def put(self, record: Record) -> bool:
        """Writes a record. Returns False, with a warning, if this node's disk refuses it."""
        try:
            self._files.create([record.table])
            self._files.write("location.txt", f"{self.location}\n".encode("utf-8", "replace"))
            self._files.write(record.path, parquet.encode(record.table, record.rows))
        except OSError as error:
            warnings.warn(
                f"can't write to this node's spool {self.root}: {error}", SweepWarning, stacklevel=2
            )
            return False
        return True

    def find(self, table: str, name: str) -> Record | None:
        """Returns a record; None if there is none. A damaged one is set aside with a warning."""
        path = f"{table}/{name}.parquet"
        try:
            return Record(table, name, parquet.decode(self._files.read(path), table))
        except OSError:
            return None
        except parquet.NotARecordError as error:
            warnings.warn(f"set aside {self.root / path}: {error}", SweepWarning, stacklevel=2)
            with contextlib.suppress(OSError):
                self._files.move(path, f"set-aside/{table}.{name}.parquet")
            return None

    def put_network(self, name: str, save: Callable[[Path], None]) -> None:
        """Adds a kept network, whose folder `save` fills. Raises OSError."""
        folder = self.root / WEIGHTS
        temporary, final = folder / f".new-{uuid.uuid4().hex}", folder / name
        self._files.create([WEIGHTS])
        try:
            temporary.mkdir()
            save(temporary)
            shutil.rmtree(final, ignore_errors=True)
            temporary.rename(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def drop_network(self, name: str) -> None:
        shutil.rmtree(self.root / WEIGHTS / name, ignore_errors=True)

    def drop(self, record: Record) -> None:
        with contextlib.suppress(OSError):
            self._files.delete(record.path)

    def names(self, table: str, older_than: float = 0.0) -> list[str]:
        """The names of records that have waited for at least so many seconds."""
        latest = time.time() - older_than
        try:
            found = self._files.list(table)
        except OSError:  # removed just now
            return []
        names = (record_name(info.name) for info in found if info.modified <= latest)
        return sorted(filter(None, names))

    def networks(self, older_than: float = 0.0) -> list[Path]:
        """The folders of complete networks that have waited for at least so many seconds."""
        latest = time.time() - older_than
        found = []
        for path in (self.root / WEIGHTS).glob("[!.]*"):
            with contextlib.suppress(OSError):  # just sent
                if path.stat().st_mtime <= latest:
                    found.append(path)
        return sorted(found)


def flush(store: Store, cache_dir: str | Path, *, older_than: float = 0.0) -> SpoolResult:
    """Sends what waits on this node for the store; stops when the store refuses.

    older_than: seconds; younger files are left to their own worker.
    """
    spool = Spool(Path(cache_dir), store.location)
    sent = 0
    with contextlib.suppress(StoreError):
        for network in spool.networks(older_than):
            sent += send_network(store, network)
        for table in _ORDER:
            for name in spool.names(table, older_than):
                sent += _send_record(store, spool, table, name)
    waiting = sum(len(spool.names(table)) for table in _ORDER) + len(spool.networks())
    return SpoolResult(sent, waiting)


def _send_record(store: Store, spool: Spool, table: str, name: str) -> bool:
    """Returns False if there is none, as when another process has sent it meanwhile."""
    record = spool.find(table, name)
    if record is None:
        return False
    if store.find(table, name) is None:  # a record is never rewritten
        store.put(table, name, record.rows)
    if table == "trials":
        store.delete("checkpoints", f"{name}.safetensors")
        _settle(store, record)
    spool.drop(record)
    return True


def _settle(store: Store, record: Record) -> None:
    """Compares its network with those stored meanwhile. Never fails a trial."""
    try:
        if kept_by(store, record.name) == BEST:
            settle(store, record.to_list()[0])
    except Exception as error:  # the next trial of the group tries again
        warnings.warn(f"networks beside {record.name}: {error}", SweepWarning, stacklevel=2)


def send_network(store: Store, network: Path) -> bool:
    """Sends a kept network's files to the store and deletes the folder. Returns False if there is
    none, as when another process has sent it meanwhile."""
    target = f"{WEIGHTS}/{network.name}"
    try:
        for path in sorted(network.iterdir(), key=lambda path: (path.name == CONFIG, path.name)):
            if path.name != KEPT_BY or not _is_settled(store, path):
                store.put_file(target, path.name, path)
        done = network.with_name(f".sent-{uuid.uuid4().hex}")
        network.rename(done)  # nobody must find half of it
    except (StoreError, OSError) as error:
        if not network.exists():
            return False
        raise StoreError(f"can't send the network {network}: {error}") from error
    shutil.rmtree(done, ignore_errors=True)
    return True


def _is_settled(store: Store, marker: Path) -> bool:
    """Whether the store keeps the network for good, so that its marker must not be replaced."""
    passing = marker.read_text(encoding="utf-8").strip() in (BEST, NEED, NEED_BEST)
    return passing and is_for_good(store, marker.parent.name)


class Outbox:
    """Hands a worker's records over: first to this node's spool, then to the store.

    While the store is unreachable, even from the start, records stay in the spool, and `flush`
    sends them later. patience: seconds during which each store operation is retried.
    """

    def __init__(self, location: str, cache_dir: Path, patience: float = 0.0) -> None:
        self.cache_dir, self.patience = cache_dir, patience
        self.location = open_files(location).location
        self.spool = Spool(cache_dir, self.location)
        self.store: Store | None = None  # None: unreachable
        self.refusal: str | None = None  # why the store last refused
        try:
            self.store = Store(self.location, patience=patience)
        except StoreError as error:
            self.refusal = str(error)

    def find(self, table: str, name: str) -> list[dict[str, Any]] | None:
        """Returns the rows of a record, from the store or the spool, after sending what waits in
        the spool. `refusal` says why it could not be sent; None if the store has the record."""
        waiting = self.spool.find(table, name)
        rows = None
        if self.store is not None:
            self.refusal = None
            if waiting is not None:
                flush(self.store, self.cache_dir)
            try:
                rows = self.store.find(table, name)
            except StoreError as error:
                self.refusal = str(error)
        if rows is None and waiting is not None:
            self.refusal = self.refusal or f"the store {self.location} did not take it"
            return waiting.to_list()
        return rows

    def send(self, *records: Record, network: str = "") -> bool:
        """Sends the waiting network of the trial `network` (default: of the last record), then the
        records in order. Returns False if they have to wait in the spool; `refusal` says why.
        Raises StoreError if neither store nor spool takes them: then they are lost."""
        spooled = [self.spool.put(record) for record in records]
        name = network or records[-1].name
        try:
            self.store = self.store or Store(self.location, patience=self.patience)
            send_network(self.store, self.spool.root / WEIGHTS / name)  # if there is one
            for record in records:
                self.store.put(record.table, record.name, record.rows)
        except StoreError as error:
            self.refusal = str(error)
            if all(spooled):
                return False
            raise StoreError(
                f"the record of {name} is lost: neither the store nor this node's spool "
                f"{self.spool.root} could save it. {error}"
            ) from error
        self.refusal = None
        for record in records:
            self.spool.drop(record)
        flush(self.store, self.cache_dir, older_than=_OTHERS_SECONDS)  # what earlier tries left
        return True

    def delete(self, folder: str, name: str) -> None:
        """Deletes a file of the store, if possible; a leftover is harmless."""
        with contextlib.suppress(StoreError):
            if self.store is not None:
                self.store.delete(folder, name)
