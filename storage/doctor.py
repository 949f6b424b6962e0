"""Finds problems in a store's files, and fixes them without deleting data.

`examine` only reads. `fix` moves files that are not records to `set-aside/<table>/`, where nothing
reads them. It deletes only what interrupted writes left, such as incomplete networks, and the
checkpoints of finished trials. A file of a newer lp-sweep is named and never touched.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, NamedTuple

import pyarrow as pa

from lp_sweep.storage import parquet, runs
from lp_sweep.storage.files import NOT_A_FILE, SET_ASIDE, FileInfo
from lp_sweep.storage.lost import lost
from lp_sweep.storage.networks import CONFIG, NEED, NEED_BEST, WEIGHTS, kept_by
from lp_sweep.storage.parquet import SUFFIX, MisnamedError, NotARecordError
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.sense import senseless, without
from lp_sweep.storage.store import Store, is_file_name
from lp_sweep.storage.tablefiles import THREADS, Unreadable, record_name

CHECKPOINTS = "checkpoints"
_OTHER_FOLDERS = (CHECKPOINTS, runs.FOLDER, "underway", WEIGHTS)
_STALE_SECONDS = 3600.0
_DAY = 86_400.0  # seconds; sending a network never takes so long
_TEXTS = {"sweeps": (".yaml",)}  # files of a table's folder that are not records

Action = Literal["set aside", "delete", "split", "salvage", "leave", "restore"]
_REMEDIES: dict[Action, str] = {
    "set aside": "--fix moves it to set-aside/",
    "delete": "--fix deletes it",
    "split": "--fix stores its records under their own names and moves the file to set-aside/",
    "salvage": "--fix stores the readable rows in a new pack and moves the file to set-aside/",
    "leave": "--fix leaves it as it is",
    "restore": "--fix can't bring it back",
}


class Finding(NamedTuple):
    """A problem with one file, and what `fix` does about it."""

    location: str
    reason: str
    remedy: str
    path: str  # below the store's location
    action: Action
    records: tuple[str, ...] = ()  # of the file, if not the whole file is meant


def examine(store: Store) -> list[Finding]:
    """Reads every record once. Raises StoreError if the store can't be read."""
    found: list[Finding] = []
    for table in TABLES:
        found += _examine_table(store, table)
    for folder in _OTHER_FOLDERS:
        found += _stale(store, folder)
    for trial in sorted(store.folders(WEIGHTS)):
        found += _look_at_network(store, f"{WEIGHTS}/{trial}")
    contradictory = [item for item in store.read_all("trials", None, ()).unreadable if item.record]
    found += [*_of_files(store, contradictory), *_of_files(store, lost(store))]
    return found + _killed_runs(store) + _orphans(store)


def _killed_runs(store: Store) -> list[Finding]:
    observer = runs.Observer(store)
    observer.living()
    reason = "left by a run that was killed"
    names = sorted(observer.killed)
    return [_finding(store, f"{runs.FOLDER}/{name}", reason, "delete") for name in names]


def _examine_table(store: Store, table: str) -> Iterator[Finding]:
    for folder in (table, f"{table}/{parquet.PACKS}"):
        yield from _stale(store, folder)
        infos = store.listing(folder, others=True)
        with ThreadPoolExecutor(THREADS) as pool:
            looks = pool.map(partial(_look, store, folder), infos)
            yield from (finding for finding in looks if finding is not None)


def _finding(store: Store, path: str, reason: str, action: Action) -> Finding:
    return Finding(store.files.where(path), reason, _REMEDIES[action], path, action)


def _stale(store: Store, folder: str) -> list[Finding]:
    """The files that interrupted writes left."""
    oldest = time.time() - _STALE_SECONDS
    infos = store.perform(f"list {folder}", lambda: store.files.list(folder))
    return [
        _finding(store, f"{folder}/{info.name}", "left by a write that was stopped", "delete")
        for info in sorted(infos)
        if info.name.startswith(".") and info.name.endswith(".tmp") and info.modified < oldest
    ]


def _look_at_network(store: Store, folder: str) -> list[Finding]:
    """The files of a network that was not completely sent or deleted, or is no longer needed."""
    infos = store.listing(folder)
    whole = any(info.name == CONFIG for info in infos)
    half = [] if whole or any(_is_young(info) for info in infos) else infos
    reason = f"part of a network without its {CONFIG}"
    halves = [_finding(store, f"{folder}/{info.name}", reason, "delete") for info in half]
    return _stale(store, folder) + halves + (_idle(store, folder, infos) if whole else [])


def _idle(store: Store, folder: str, infos: Sequence[FileInfo]) -> list[Finding]:
    """A network that is still kept for trials that continue from it."""
    if any(_is_young(info) for info in infos):
        return []
    if kept_by(store, folder.removeprefix(f"{WEIGHTS}/")) not in (NEED, NEED_BEST):
        return []
    reason = (
        "kept for over a day for trials that go on from it and are not done, have failed, or are "
        "no longer asked for"
    )
    return [_finding(store, folder, reason, "leave")]


def _is_young(info: FileInfo) -> bool:
    return info.modified > time.time() - _DAY


def _look(store: Store, folder: str, info: FileInfo) -> Finding | None:
    """The problem with a file of a table; None if there is none, or no such file."""
    table, _, packs = folder.partition("/")
    path = f"{folder}/{info.name}"
    name = record_name(info.name)
    if info.size == NOT_A_FILE:
        reason = f"{info.kind}, not a file"
        return None if name is None else _finding(store, path, reason, "set aside")
    if name is None:
        if not packs and info.name.endswith(_TEXTS.get(table, ())) and table in _TEXTS:
            return None
        return _finding(store, path, "not a file of lp-sweep", "set aside")
    if info.size == 0:
        return _finding(store, path, "empty", "set aside")
    try:
        if packs:
            return _look_at_pack(store, path, table)
        return _look_at_record(store, path, table, name)
    except FileNotFoundError:
        return None
    except NotARecordError as error:
        return _finding(store, path, str(error), "leave" if error.newer else "set aside")


def _look_at_pack(store: Store, path: str, table: str) -> Finding | None:
    found = store.pack_rows(table, path)
    bad = senseless(table, found.rows)
    problems = [found.problem] if found.problem is not None else []
    problems += [f"{name}: {why}" for name, why in bad.items()]
    if not problems:
        return None
    left = len(without(found.rows, bad))
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    reason = "; ".join(problems[:3]) + more
    return _finding(store, path, reason, "salvage" if left else "set aside")


def _look_at_record(store: Store, path: str, table: str, name: str) -> Finding | None:
    try:
        bad = senseless(table, parquet.decode_record(store.content(path), table, name))
    except MisnamedError as error:
        return _finding(store, path, str(error), "split")
    return _finding(store, path, "; ".join(bad.values()), "set aside") if bad else None


def _ids(rows: pa.Table, table: str) -> list[str | None]:
    ids: list[str | None] = rows[parquet.id_column(table)].unique().to_pylist()
    return ids


def _orphans(store: Store) -> list[Finding]:
    names = [info.name for info in store.listing(CHECKPOINTS)]
    if not names:
        return []
    rows = store.read_all("trials", {name.partition(".")[0] for name in names}).rows
    finished = set(_ids(rows, "trials"))
    return [
        _finding(store, f"{CHECKPOINTS}/{name}", "the checkpoint of a finished trial", "delete")
        for name in names
        if name.partition(".")[0] in finished
    ]


def fix(store: Store, findings: list[Finding]) -> None:
    """Applies each finding's remedy, unless the file has been repaired or deleted meanwhile.

    Raises StoreError if the store can't be written; it can be run again.
    """
    for finding in findings:
        folder, _, file_name = finding.path.rpartition("/")
        if finding.action == "delete":
            store.remove(finding.path)
        elif finding.action not in ("leave", "restore"):
            size = store.perform(f"read {folder}", partial(store.files.size, finding.path))
            info = FileInfo(file_name, size or 0, 0.0)
            now = finding if finding.records else _look(store, folder, info)
            if size is not None and now is not None:
                _repair(store, now, folder.partition("/")[0])


def set_aside(store: Store, files: Iterable[Unreadable]) -> None:
    """Does for files that a reader could not read what `fix` does. Raises StoreError."""
    fix(store, _of_files(store, files))


def _of_files(store: Store, files: Iterable[Unreadable]) -> list[Finding]:
    found: dict[str, Finding] = {}
    for item in files:
        path = item.location.removeprefix(store.files.where("")).lstrip("/")
        packed = item.record and f"/{parquet.PACKS}/" in path
        action: Action = "restore" if item.lost else "salvage" if packed else "set aside"
        finding = _finding(store, path, item.reason, action)
        records = (*found.get(path, finding).records, *filter(None, [item.record]))
        found[path] = finding._replace(records=records)
    return [*found.values()]


def _repair(store: Store, finding: Finding, table: str) -> None:
    if finding.action == "split":
        rows = parquet.decode(store.content(finding.path), table)
        for name in _ids(rows, table):
            if name and is_file_name(name) and store.find(table, name) is None:
                store.put(table, name, parquet.only(rows, table, [name]))
    if finding.action == "salvage":
        rows = store.pack_rows(table, finding.path).rows
        rows = without(rows, {*senseless(table, rows), *finding.records})
        pack = f"{table}/{parquet.PACKS}/{uuid.uuid4().hex}{SUFFIX}"
        if len(rows):
            store.write(pack, parquet.encode_pack(table, rows))
    if finding.action != "leave":
        _set_aside(store, finding.path)


def _set_aside(store: Store, path: str) -> None:
    target = f"{SET_ASIDE}/{path}"
    if store.perform(f"look at {target}", lambda: store.files.size(target)) is not None:
        target = f"{target}.{uuid.uuid4().hex[:8]}"
    try:
        store.perform(f"move {path}", lambda: store.files.move(path, target))
    except FileNotFoundError:  # another doctor moved it
        return
