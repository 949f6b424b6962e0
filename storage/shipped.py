"""Copies of a sweep's local models and data in its store, `inputs/<key>/`, for nodes without them.

The key is a hash of the content, so files are never written twice, and a node fetches them once.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from lp_sweep.storage.store import Store

FOLDER = "inputs"
_LIST = "complete.txt"  # names the others, and is written last: all are there when it is


def ship(store: Store, fingerprint: str, files: Mapping[str, Path]) -> bool:
    """Copies files to the store; `files`: by their name there. Returns False if the store has them
    already. Raises StoreError."""
    where, names = f"{FOLDER}/{_key(fingerprint)}", "\n".join([fingerprint, *sorted(files)])
    if store.read_text(where, _LIST) == names:
        return False
    for name, path in files.items():
        store.put_file(where, name, path)
    store.put_text(where, _LIST, names)
    return True


def fetch(store: Store, fingerprint: str, cache_dir: Path) -> Path | None:
    """Returns a local folder with these files; None if the store does not have them. Raises
    StoreError, and OSError if this node's disk is full."""
    folder = cache_dir / FOLDER / _key(fingerprint)
    if folder.is_dir():
        return folder
    where = f"{FOLDER}/{folder.name}"
    names = (store.read_text(where, _LIST) or "").splitlines()[1:]
    if not names:
        return None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # the slots of a node start together
        if folder.is_dir():
            return folder
        coming = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        try:
            if not all(store.fetch_file(where, name, coming / name) for name in names):
                return None
            coming.rename(folder)
        finally:
            shutil.rmtree(coming, ignore_errors=True)
    return folder


def _key(fingerprint: str) -> str:
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:32]
