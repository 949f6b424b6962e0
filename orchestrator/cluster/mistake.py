"""One thing that is wrong with a cluster file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lp_sweep.storage.printable import shown


class Mistake(NamedTuple):
    """`where` is the path of keys; `name` is what the user may have mistyped of `allowed`."""

    where: str
    what: str
    name: str = ""
    allowed: tuple[str, ...] = ()


def unknown_keys(where: str, keys: Iterable[object], allowed: Iterable[str]) -> Iterator[Mistake]:
    known = tuple(sorted(allowed))
    for key in keys:
        if key not in known:
            yield Mistake(where, f"unknown key {shown(key)}.", str(key), known)
