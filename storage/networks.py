"""The kept networks of a store, `weights/<trial_id>/`: whose they are, and which of them go.

`keep: best` keeps one of each group of trials that differ in nothing but the seed. What other
trials go on from stays until they are done. What `keep: all` kept is never deleted here: a text
beside the weights tells them apart. Loads no network.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.storage.identity import content_hash
from lp_sweep.storage.store import Store

WEIGHTS = "weights"
SUMS = "SHA256SUMS"  # of every file of a kept or exported network, as `sha256sum -c` reads it
CONFIG = "config.json"  # the last file of a kept network: its presence means complete
KEPT_BY = "kept-by.txt"  # one of the texts below; a network without it stays
BEST, ALL = "best", "all"
NEED = "need"  # until the trials that go on from it are done: see `release`
NEED_BEST = "need, best"  # the same, and then it is a `best` again
_PASSING = (BEST, NEED, NEED_BEST)

_ROWS_READ = 500  # records at once: bounds what a large store's take of memory


class Sibling(NamedTuple):
    """One record of a group. The best has the highest score; of equals, the lowest seed."""

    score: float
    minus_seed: int
    trial_id: str


class _Known:
    """The fields that decide, of the records read so far: records never change, so a worker, which
    does many trials, reads each once."""

    def __init__(self) -> None:
        self.trials: set[str] = set()
        self.groups: dict[bytes, set[Sibling]] = defaultdict(set)

    def add(self, row: dict[str, Any]) -> None:
        self.trials.add(row["trial_id"])
        group = _group(row)
        if group is not None:
            self.groups[group].add(_sibling(row))


_KNOWN: dict[str, _Known] = defaultdict(_Known)  # by the store's location


def is_best(store: Store, record: dict[str, Any]) -> bool:
    """Whether no stored record of its group is better. Raises StoreError."""
    group = _group(record)
    if group is None:
        return True
    _look(store)
    own = _sibling(record)
    return max(_KNOWN[store.location].groups.get(group, set()) | {own}) == own


def settle(store: Store, record: dict[str, Any], *, look: bool = True) -> None:
    """Keeps only the best record's network, of those of its group that a `best` kept. The last of
    several trials that end at once sees them all.

    `look`: whether other records may have come since `is_best` was asked. Raises StoreError.
    """
    group = _group(record)
    if group is None:
        return
    if look:
        _look(store)
    siblings = _KNOWN[store.location].groups.get(group, set()) | {_sibling(record)}
    for sibling in sorted(siblings - {max(siblings)}):
        if kept_by(store, sibling.trial_id) == BEST:
            delete_network(store, sibling.trial_id)


def kept_by(store: Store, trial: str) -> str | None:
    """The content of KEPT_BY; None where there is no such file. Raises StoreError."""
    text = store.read_text(f"{WEIGHTS}/{trial}", KEPT_BY)
    return None if text is None else text.strip()


def has_network(store: Store, trial: str) -> bool:
    """Whether a complete network of the trial is there. Raises StoreError."""
    return any(item.name == CONFIG for item in store.listing(f"{WEIGHTS}/{trial}"))


def fetch_network(store: Store, trial: str, folder: Path) -> bool:
    """Copy it into `folder`, which exists. False: it is not there, or not all of it any more.
    Raises StoreError."""
    if not has_network(store, trial):
        return False
    where = f"{WEIGHTS}/{trial}"
    names = [item.name for item in store.listing(where)]
    return all(store.fetch_file(where, name, folder / name) for name in names)


def is_for_good(store: Store, trial: str) -> bool:
    """Whether there is a network that no `best` may take for its own. Raises StoreError."""
    by = kept_by(store, trial)
    return by not in _PASSING if by is not None else has_network(store, trial)


def keep_for_good(store: Store, trial: str) -> None:
    """A network that a `best` or a need kept stays from now on. Raises StoreError."""
    if kept_by(store, trial) in _PASSING:
        store.put_text(f"{WEIGHTS}/{trial}", KEPT_BY, f"{ALL}\n")


def keep_while_needed(store: Store, trial: str) -> None:
    """A network that a `best` kept is not deleted before `release`. Raises StoreError."""
    if kept_by(store, trial) == BEST:
        store.put_text(f"{WEIGHTS}/{trial}", KEPT_BY, f"{NEED_BEST}\n")


def release(store: Store, record: dict[str, Any], *, keep_best: bool) -> None:
    """Nothing goes on from it any more, so it goes, unless a `best` would keep it. Raises
    StoreError."""
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
    """The config first: without it the rest counts as nothing. Whose it was last: what a stopped
    deletion leaves can be deleted by the next. Raises StoreError."""
    names = [item.name for item in store.listing(f"{WEIGHTS}/{trial}")]
    for name in sorted(names, key=lambda name: (name != CONFIG, name == KEPT_BY, name)):
        store.delete(f"{WEIGHTS}/{trial}", name)


def _look(store: Store) -> None:
    """Read the records that are new."""
    known = _KNOWN[store.location]
    new = sorted(store.names("trials") - known.trials)
    for start in range(0, len(new), _ROWS_READ):
        rows = store.read_all("trials", new[start : start + _ROWS_READ]).rows
        for row in rows.select(["trial_id", "spec", "seed", "last"]).to_pylist():
            known.add(row)


def _sibling(row: dict[str, Any]) -> Sibling:
    return Sibling(row["last"], -row["seed"], row["trial_id"])


def _group(row: dict[str, Any]) -> bytes | None:
    """A hash of what siblings share; None for a record that can't be compared: of before records
    had their spec, or not ours."""
    names = ("trial_id", "spec", "seed", "last")
    if any(row[name] is None for name in names) or row["last"] != row["last"]:  # not a number
        return None
    try:
        return bytes.fromhex(content_hash(json.loads(row["spec"]) | {"seed": None}))[:16]
    except (ValueError, TypeError, RecursionError):  # whoever wrote it
        return None


# -- checksums: they find a byte that changed later, even when no prediction changes


def write_sums(folder: Path) -> None:
    """Lists all files below `folder` in SUMS, in the order of their names."""
    lines = [f"{_digest(folder / name)}  {name}\n" for name in _names(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def changed_files(folder: Path) -> list[str]:
    """The files that are not what the folder's sums say, or are gone; none where it has no sums."""
    path = folder / SUMS
    if not path.is_file():
        return []
    told = (line.partition("  ") for line in path.read_text(encoding="utf-8").splitlines())
    return [name for digest, _, name in told if _digest(folder / name) != digest]


def _names(folder: Path) -> list[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in paths if path.as_posix() != SUMS)


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None
