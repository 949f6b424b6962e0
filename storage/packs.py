"""Compaction: merges single-record files into a few packs, while runs write and others read.

It can be killed at any moment, and two can run at once, without losing or doubling a record:

- a pack is published and read back before the files that are in it are deleted;
- readers count each identifier once, and look again if a file has disappeared;
- a pack is deleted only after the same compactor has merged it into another, never because another
  pack seems to hold the same rows.

Damaged, misnamed and senseless files are left alone: `doctor` names them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from lp_sweep.storage import parquet
from lp_sweep.storage.parquet import SUFFIX, NotARecordError
from lp_sweep.storage.sense import senseless
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import THREADS, Contents, Gathered

PACKED = ("trials", "profiles", "predictions", "teacher_logits", "attempts")
PACK_BYTES = 64 * 2**20  # of rows in memory; on disk a fifth of it or less
_LARGE_FILE = 8 * 2**20  # bytes on disk: such a file stays as it is
_SLICE = 256  # files read at a time
# Younger packs are not merged again: a reader whose listing missed one must find it in the next.
SETTLE_SECONDS = 60.0


class Compacted(NamedTuple):
    """The records moved from single files into packs, and the number of files."""

    records: int
    files_before: int
    files_after: int


class _Piece(NamedTuple):
    """The rows of a file to be merged."""

    path: str
    rows: pa.Table
    is_pack: bool


def compact(store: Store, *, settle: float = SETTLE_SECONDS) -> Compacted:
    """Merges what can be merged. Raises StoreError if the store can't be read or written."""
    before = _count_files(store)
    records = sum(_compact_table(store, table, settle) for table in PACKED)
    return Compacted(records, before, _count_files(store))


def _count_files(store: Store) -> int:
    contents = [store.contents(table) for table in PACKED]
    return sum(len(item.singles) + len(item.packs) for item in contents)


def _compact_table(store: Store, table: str, settle: float) -> int:
    contents = store.contents(table)
    records = _drop_packed(store, table, contents)
    pieces = _pieces(store, table, contents, settle)
    for batch in _batches(pieces):
        if len(batch) > 1:
            records += _merge(store, table, batch)
    return records


def _drop_packed(store: Store, table: str, contents: Contents) -> int:
    """Deletes the single files that a killed compactor left next to their pack."""
    dropped: set[str] = set()
    try:
        packs = store.pack_ids(table, contents)
    except FileNotFoundError:  # another compactor is running; a record in two packs counts once
        return 0
    for path, ids in packs.items():
        both = sorted((ids & contents.singles.keys()) - dropped)
        if both and _is_sound(store, table, path):
            told = store.read_all(table, both, ()).unreadable
            both = sorted({*both} - {item.record for item in told})  # no evidence of two scores
            _delete(store, [f"{table}/{name}{SUFFIX}" for name in both])
            dropped.update(both)
    for name in dropped:
        del contents.singles[name]
    return len(dropped)


def _is_sound(store: Store, table: str, path: str) -> bool:
    try:
        found = store.pack_rows(table, path)
        return found.problem is None and not senseless(table, found.rows)
    except (FileNotFoundError, NotARecordError):
        return False


def _pieces(store: Store, table: str, contents: Contents, settle: float) -> Iterator[_Piece]:
    """The packs that are not full, then the single files, by name."""
    for path, info in contents.packs.items():
        if time.time() - info.modified >= settle:
            yield from _pack_piece(store, table, path)
    names = sorted(n for n, info in contents.singles.items() if 0 < info.size <= _LARGE_FILE)
    for start in range(0, len(names), _SLICE):
        with ThreadPoolExecutor(THREADS) as pool:
            read = pool.map(
                lambda name: _single_piece(store, table, name), names[start : start + _SLICE]
            )
            yield from (piece for piece in read if piece is not None)


def _pack_piece(store: Store, table: str, path: str) -> Iterator[_Piece]:
    try:
        size = partial(parquet.raw_bytes, store.files, path, table)
        if store.perform(f"read {path}", size) < PACK_BYTES // 2:
            found = store.pack_rows(table, path)
            if found.problem is None and not senseless(table, found.rows):
                yield _Piece(path, found.rows, True)
    except (FileNotFoundError, NotARecordError):  # merged by another compactor, or damaged
        return


def _single_piece(store: Store, table: str, name: str) -> _Piece | None:
    path = f"{table}/{name}{SUFFIX}"
    try:
        rows = parquet.decode_record(store.content(path), table, name)
    except (FileNotFoundError, NotARecordError):
        return None
    return _Piece(path, rows, False) if len(rows) and not senseless(table, rows) else None


def _batches(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    size = 0
    for piece in pieces:
        if batch and size + piece.rows.nbytes > PACK_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.rows.nbytes
    yield batch


def _merge(store: Store, table: str, batch: list[_Piece]) -> int:
    path = f"{table}/{parquet.PACKS}/{uuid.uuid4().hex}{SUFFIX}"
    gathered = Gathered(table)  # drops repeats: two compactors may have packed the same
    for piece in batch:
        gathered.add(piece.rows)
    merged = gathered.listing(sort=False)
    if merged.unreadable:  # files that contradict each other are evidence
        return 0
    content = parquet.encode_pack(table, merged.rows.combine_chunks())
    store.write(path, content)
    try:
        if store.content(path) != content:  # delete nothing; `doctor` names the pack
            return 0
    except FileNotFoundError:  # already merged into another, by a compactor that does not settle
        return 0
    _delete(store, [piece.path for piece in batch])
    return sum(not piece.is_pack for piece in batch)


def _delete(store: Store, paths: list[str]) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(store.remove, paths))
