"""The kept networks of a store, `weights/<trial_id>/`, and which of them are deleted.

`keep: best` keeps one network of each group of trials that differ only in the seed: the best of
those that the store has, since there is none of a trial that ran without `keep`. A network that
other trials continue from stays until they are done. What `keep: all` kept is never deleted here.
A text next to the weights says which of these applies. Loads no network.

Every function that takes a store raises StoreError if it can't be read or written.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.identity import content_hash

WEIGHTS = "weights"
GRAPH = Path("onnx", "model.onnx")  # in a network's folder, where servers look for it
SUMS = "SHA256SUMS"  # checksums of a kept or exported network's files, for `sha256sum -c`
CONFIG = "config.json"  # is written last: the network is complete when it is there
KEPT_BY = "kept-by.txt"  # one of the texts below; a network without it is never deleted
BEST, ALL = "best", "all"
NEED = "need"  # until the trials that continue from it are done: see `release`
NEED_BEST = "need, best"  # the same, and `best` after that
_PASSING = (BEST, NEED, NEED_BEST)

_OF_GROUP = ("trial_id", "spec", "seed", "last")
_ROWS_READ = 500  # records at a time, to bound memory


class _Rank(NamedTuple):
    """A record's group, and its place there: by score, then by lower seed."""

    group: bytes
    score: float
    minus_seed: int
    trial_id: str


# by the store's location: trial -> its rank, if it has a group. A worker reads each record only
# once, since records never change
_KNOWN: dict[str, dict[str, _Rank | None]] = defaultdict(dict)


def is_best(store: Store, record: dict[str, Any]) -> bool:
    """Whether the store has no better network of the same group."""
    own = _rank(record)
    if own is None:
        return True
    _look(store)
    better = (other for other in _siblings(store, own) if other > own)
    return not any(has_network(store, other.trial_id) for other in better)


def settle(store: Store, record: dict[str, Any], *, look: bool = True) -> None:
    """Deletes the networks of the record's group that `best` kept, except the best one. Of trials
    that end together, the last sees all records.

    look: whether to read records that are new since `is_best`.
    """
    own = _rank(record)
    if own is None:
        return
    if look:
        _look(store)
    ranked = sorted(_siblings(store, own), reverse=True)
    kept = (rank for rank, each in enumerate(ranked) if has_network(store, each.trial_id))
    # a better one may be on its way to the store
    for other in ranked[next(kept, len(ranked)) + 1 :]:
        if kept_by(store, other.trial_id) == BEST:
            delete_network(store, other.trial_id)


def _siblings(store: Store, own: _Rank) -> set[_Rank]:
    """The known records of a group, and its own one."""
    known = _KNOWN[store.location].values()
    return {rank for rank in known if rank and rank.group == own.group} | {own}


def kept_by(store: Store, trial: str) -> str | None:
    """The content of KEPT_BY; None if there is none."""
    text = store.read_text(f"{WEIGHTS}/{trial}", KEPT_BY)
    return None if text is None else text.strip()


def has_network(store: Store, trial: str) -> bool:
    """Whether the store has the trial's complete network."""
    return any(item.name == CONFIG for item in store.listing(f"{WEIGHTS}/{trial}"))


def fetch_network(store: Store, trial: str, folder: Path) -> bool:
    """Copies the trial's network into an existing folder. Returns False if the store does not have
    it, or deletes it meanwhile."""
    if not has_network(store, trial):
        return False
    where = f"{WEIGHTS}/{trial}"
    names = [item.name for item in store.listing(where)]
    return all(store.fetch_file(where, name, folder / name) for name in names)


def fetch_graph(store: Store, trial: str, folder: Path, version: int) -> bool:
    """Copies the kept graph of the trial's network to `folder`, which has the finished network and
    nothing else. Returns False if the store has none, that of other files, or one that another
    `version` of the code wrote."""
    where, target = f"{WEIGHTS}/{trial}/{GRAPH.parent}", folder / GRAPH
    target.parent.mkdir(exist_ok=True)
    with suppress(StoreError):  # it can be written again
        sums = store.read_text(where, SUMS)
        fetched = sums is not None and store.fetch_file(where, GRAPH.name, target)
        if fetched and sums == _graph_sums(folder, version):
            return True
    target.unlink(missing_ok=True)
    return False


def keep_graph(store: Store, trial: str, folder: Path, version: int) -> None:
    """Keeps the graph of a kept network with it, and last its version and the checksums of all
    files of `folder`: it is the graph of these alone. A store that does not take it is no
    failure."""
    where = f"{WEIGHTS}/{trial}/{GRAPH.parent}"
    with suppress(StoreError):  # read-only, or full
        if has_network(store, trial):
            store.delete(where, SUMS)
            store.put_file(where, GRAPH.name, folder / GRAPH)
            store.put_text(where, SUMS, _graph_sums(folder, version))


def _graph_sums(folder: Path, version: int) -> str:
    return f"# graph version {version}\n{_sums(folder)}"


def is_for_good(store: Store, trial: str) -> bool:
    """Whether the store has the trial's network and never deletes it."""
    by = kept_by(store, trial)
    return by not in _PASSING if by is not None else has_network(store, trial)


def keep_for_good(store: Store, trial: str) -> None:
    """Keeps a network that is there because of `best` or a need."""
    if kept_by(store, trial) in _PASSING:
        store.put_text(f"{WEIGHTS}/{trial}", KEPT_BY, f"{ALL}\n")


def keep_while_needed(store: Store, trial: str) -> None:
    """Protects a network that `best` kept until `release`."""
    if kept_by(store, trial) == BEST:
        store.put_text(f"{WEIGHTS}/{trial}", KEPT_BY, f"{NEED_BEST}\n")


def release(store: Store, record: dict[str, Any], *, keep_best: bool) -> None:
    """Deletes a network that no trial continues from any more, unless `best` keeps it."""
    trial = record["trial_id"]
    by = kept_by(store, trial)
    if by not in (NEED, NEED_BEST):
        return
    if by == NEED_BEST or (keep_best and is_best(store, record)):
        store.put_text(f"{WEIGHTS}/{trial}", KEPT_BY, f"{BEST}\n")
        settle(store, record)
    else:
        delete_network(store, trial)


def delete_network(store: Store, trial: str) -> None:
    """Deletes CONFIG first, so that the rest no longer counts as a network, and KEPT_BY last, so
    that an interrupted deletion can be continued."""
    where = f"{WEIGHTS}/{trial}"
    folders = (where, f"{where}/{GRAPH.parent}")
    files = [(item.name, folder) for folder in folders for item in store.listing(folder)]
    for name, folder in sorted(files, key=lambda file: (file[0] != CONFIG, file[0] == KEPT_BY)):
        store.delete(folder, name)


def _look(store: Store) -> None:
    """Reads the new records."""
    known = _KNOWN[store.location]
    new = sorted(store.names("trials") - known.keys())
    for start in range(0, len(new), _ROWS_READ):
        rows = store.read_all("trials", new[start : start + _ROWS_READ]).rows
        known |= {row["trial_id"]: _rank(row) for row in rows.select(_OF_GROUP).to_pylist()}


def _rank(row: dict[str, Any]) -> _Rank | None:
    """None for a record that can't be compared: without a score, or not ours."""
    trial, spec, seed, score = (row[name] for name in _OF_GROUP)
    if None in (trial, spec, seed, score) or math.isnan(score):
        return None
    try:
        group = content_hash(json.loads(spec) | {"seed": None})[:32]
        return _Rank(bytes.fromhex(group), score, -seed, trial)
    except (ValueError, TypeError, RecursionError):  # not ours
        return None


# -- checksums: they catch corruption even when no prediction changes


def write_sums(folder: Path) -> None:
    """Writes the checksums of all files below `folder` to SUMS, sorted by name."""
    (folder / SUMS).write_text(_sums(folder), encoding="utf-8")


def changed_files(folder: Path) -> list[str]:
    """The names of missing files and of files with a wrong checksum; [] if there is no SUMS."""
    told = _told_sums(folder)
    return [name for name, digest in told.items() if _digest(folder / name) != digest]


def lacks_files(folder: Path) -> bool:
    return not all((folder / name).is_file() for name in _told_sums(folder))


def _told_sums(folder: Path) -> dict[str, str]:
    """The names of a network's files, and their checksums as SUMS tells them; {} without it."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    told = (line.partition("  ") for line in path.read_text(encoding="utf-8").splitlines())
    return {name: digest for digest, _, name in told}


def _sums(folder: Path) -> str:
    return "".join(f"{_digest(folder / name)}  {name}\n" for name in _names(folder))


def _names(folder: Path) -> list[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths if path.as_posix() != SUMS)


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None
