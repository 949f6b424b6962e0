"""Keeps a store in order, while runs write and others read: merges records into packs, names what
is lost or can't be read, and sets unreadable files aside.

Each can be killed at any moment, and two can run at once, without losing or doubling a record:

- a pack is published and read back before the files that are in it are deleted;
- readers count each identifier once, and look for new packs if a file has disappeared;
- a pack is never changed, nor deleted: it moves to `set-aside/<table>/`, where nothing reads it,
  like any file that is not a record. A file of a newer lp-sweep is named and never touched.
"""

from __future__ import annotations

import re
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage import parquet
from lp_sweep.storage.files import SET_ASIDE, FileInfo
from lp_sweep.storage.parquet import PACKS, SUFFIX
from lp_sweep.storage.runs import Observer
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.sense import senseless, without
from lp_sweep.storage.store import Store
from lp_sweep.storage.tablefiles import THREADS, Unreadable

PACKED = ("trials", "profiles", "predictions", "teacher_logits", "attempts")
# Of single files, about 1,000 trials: all of a pack are trained again if the pack is damaged.
PACK_BYTES = 16 * 2**20
_LARGE_FILE = 4 * 2**20  # bytes; such a file stays as it is

_ID = re.compile(r"[tp][0-9]+-\w+")
_NAMED = ("sweeps", "trials", "predictions", "profiles")
_BACKUP = "Copy it back from a backup, or run the sweep file again: `lp-sweep run`"
_LISTED = f"{_BACKUP} lists its cells, and keeps what is finished"
_BARE = (
    "Scores count without them, but no comparison of examples does. Copy them back from a backup, "
    "or move these records out of trials/ and run the sweep file again"
)


# -- packs


class Compaction(NamedTuple):
    """The records moved from single files into packs, and the number of files."""

    records: int
    files_before: int
    files_after: int


def compact(store: Store) -> Compaction:
    """Merges what can be merged. Raises StoreError if the store can't be read or written.

    Damaged, misnamed and senseless files are left alone: `examine` names them."""
    before = 0
    merged: list[int] = []  # records of each new pack
    for table in PACKED:
        singles = store.singles(table)
        if table == "predictions":
            singles = {name: info for name, info in singles.items() if not _may_change(name)}
        before += len(singles) + len(store.packs(table))
        merged += (_pack(store, table, names) for names in _batches(singles))
    records = sum(merged)
    return Compaction(records, before, before - records + sum(map(bool, merged)))


def _may_change(name: str) -> bool:
    """Whether these are the answers of a deployment: `measure --again` replaces them, and a pack
    would go on to say what they were before."""
    return name.startswith("d")


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
    ids = rows.column(0).unique().to_pylist()
    if len(ids) < 2 or not put_pack(store, table, rows.combine_chunks()):
        return 0
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda name: store.delete(table, f"{name}{SUFFIX}"), ids))
    return len(ids)


def put_pack(store: Store, table: str, rows: pa.Table) -> bool:
    """Writes a new pack of all rows of some records, and returns whether it arrived whole: if not,
    `examine` names it."""
    path = f"{table}/{PACKS}/{uuid.uuid4().hex}{SUFFIX}"
    order = pc.sort_indices(rows, sort_keys=[(rows.column_names[0], "ascending")])  # stable
    content = parquet.encode(table, rows.take(order))
    store.write(path, content)
    return store.content(path) == content


# -- what is lost


def lost(store: Store) -> list[Unreadable]:
    """The missing files, each with the next step. Raises StoreError.

    What is there shows what is lost, as after a copy of a part of a store. A finished trial has
    predictions, which are written first; a trial belongs to a sweep; a cell names the measurement
    that chose its layers. That takes names and a few columns of cells, so that every command that
    reads a store can ask.
    """
    with ThreadPoolExecutor(len(_NAMED)) as pool:
        sweeps, *names = pool.map(store.names, _NAMED)
    # a copy under another name is no record
    trials, predictions, profiles = ({*filter(_ID.fullmatch, found)} for found in names)
    found = {
        f"sweeps/{info.name[:-5]}.parquet": f"the cells of this sweep are missing. {_LISTED}"
        for info in store.listing("sweeps")
        if info.name.endswith(".yaml") and info.name[:-5] not in sweeps
        if trials | profiles  # else a run that writes them next was killed, or starts just now
    }
    if not sweeps and (orphans := trials | profiles):
        records = f"the store's {len(orphans)} trials and measurements"
        found["sweeps"] = f"no sweep lists {records}. {_LISTED}"
    cells = store.read_all("sweeps", columns=("dropped_layers", "trial_id", "profile_id")).rows
    asked = {*cells["trial_id"].to_pylist()} if sweeps else predictions
    gone = asked & (predictions - trials)
    if gone:  # not those whose record is being written
        gone -= {id_ for run in Observer(store).living() for id_ in run.held}
    # a strategy drops no layer at K=0, also before it is measured
    number = pc.list_value_length(cells["dropped_layers"])
    chosen = cells.filter(pc.greater(number, 0))["profile_id"]
    unmeasured = {*chosen.to_pylist()} - profiles - {None}
    for table, ids, what, then in (
        ("trials", gone, "trials whose record is gone", f"{_BACKUP} trains again"),
        ("profiles", unmeasured, "measurements that are gone", f"{_BACKUP} measures again"),
        ("predictions", trials - predictions, "finished trials without predictions", _BARE),
    ):
        if ids:
            found[table] = f"{what}: {len(ids)}, such as {min(ids)}. {then}"
        elif store.files.is_folder and sweeps and table not in store.folders():
            found[table] = f"the folder is missing. {_BACKUP} makes what it needs again"
    return [Unreadable(store.files.where(path), why, lost=True) for path, why in found.items()]


# -- what can't be read


def examine(store: Store) -> list[Unreadable]:
    """Reads every record once. Raises StoreError if the store can't be read."""
    unreadable = [item for table in TABLES for item in store.read_all(table, None, ()).unreadable]
    return [*unreadable, *lost(store)]


def set_aside(store: Store, files: Collection[Unreadable]) -> None:
    """Moves files that can't be read, except those that were repaired or deleted meanwhile, as by
    another run. Of a pack with records that can't be true, the others move to a new pack.

    Raises StoreError if the store can't be written; it can be run again.
    """
    asked = {(item.location, item.record) for item in files if not item.lost}
    for table in TABLES:
        where = store.files.where(table)
        if not any(location.startswith(f"{where}/") for location, _ in asked):
            continue
        bad: dict[str, set[str]] = defaultdict(set)
        for item in store.read_all(table, None, ()).unreadable:
            if (item.location, item.record) in asked and not item.newer:
                bad[table + item.location.removeprefix(where)].add(item.record)
        for path, records in bad.items():
            try:
                _move_aside(store, table, path, records - {""})
            except FileNotFoundError:  # another process moved it
                continue


def _move_aside(store: Store, table: str, path: str, records: set[str]) -> None:
    if records and path.startswith(f"{table}/{PACKS}/"):
        rows = parquet.decode(store.content(path), table)
        sound = without(rows, {*senseless(table, rows), *records})
        if len(sound) and not put_pack(store, table, sound):
            return
    folder, _, name = f"{SET_ASIDE}/{path}".rpartition("/")
    if any(info.name == name for info in store.listing(folder)):
        name = f"{name}.{uuid.uuid4().hex[:8]}"
    store.move(path, f"{folder}/{name}")
