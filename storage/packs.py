"""Compaction: merges single-record files into packs, while runs write and others read.

It can be killed at any moment, and two can run at once, without losing or doubling a record:

- a pack is published and read back before the files that are in it are deleted;
- readers count each identifier once, and look for new packs if a file has disappeared;
- a pack is never changed or deleted.

Damaged, misnamed and senseless files are left alone: `doctor` names them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from lp_sweep.storage import parquet
from lp_sweep.storage.files import FileInfo
from lp_sweep.storage.parquet import SUFFIX
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import THREADS

PACKED = ("trials", "profiles", "predictions", "teacher_logits", "attempts")
# Of single files, about 1,000 trials: all of a pack are trained again if the pack is damaged.
PACK_BYTES = 16 * 2**20
_LARGE_FILE = 4 * 2**20  # bytes; such a file stays as it is


class Compaction(NamedTuple):
    """The records moved from single files into packs, and the number of files."""

    records: int
    files_before: int
    files_after: int


def compact(store: Store) -> Compaction:
    """Merges what can be merged. Raises StoreError if the store can't be read or written."""
    before = 0
    merged: list[int] = []  # records of each new pack
    for table in PACKED:
        contents = store.contents(table)
        before += len(contents.singles) + len(contents.packs)
        merged += (_pack(store, table, names) for names in _batches(contents.singles))
    records = sum(merged)
    return Compaction(records, before, before - records + sum(map(bool, merged)))


def _batches(singles: Mapping[str, FileInfo]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for name, info in sorted(singles.items()):
        if not 0 < info.size <= _LARGE_FILE:
            continue
        if size + info.size > PACK_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += info.size
    yield batch


def _pack(store: Store, table: str, names: list[str]) -> int:
    """Returns the number of files that a new pack has taken the place of."""
    rows = store.read_all(table, names).rows  # without files that contradict each other: evidence
    ids = rows[parquet.id_column(table)].unique().to_pylist()
    if len(ids) < 2:
        return 0
    path = f"{table}/{parquet.PACKS}/{uuid.uuid4().hex}{SUFFIX}"
    content = parquet.encode_pack(table, rows.combine_chunks())
    store.write(path, content)
    if store.content(path) != content:  # delete nothing; `doctor` names the pack
        return 0
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda name: store.delete(table, f"{name}{SUFFIX}"), ids))
    return len(ids)
