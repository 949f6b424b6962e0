"""Whether two places are one store: a file that it alone has, for another machine to look for."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from lp_sweep.storage.runs import FOLDER
from lp_sweep.storage.store import Store


@contextmanager
def probe(store: Store) -> Iterator[str]:
    """A file of a new name, which holds that name, is in the store while inside: gives it. Raises
    StoreError where it can't be written or taken away."""
    name = f"probe-{uuid.uuid4().hex}.txt"
    store.put_text(FOLDER, name, name)
    try:
        yield name
    finally:
        store.delete(FOLDER, name)


def has_probe(store: Store, name: str) -> bool:
    """Whether it is there, and whole. Raises StoreError."""
    return store.read_text(FOLDER, name) == name
