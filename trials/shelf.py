"""The last few things that were asked for: what is asked for again is not made again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Shelf(Generic[K, V]):
    """Has `room` for so many; what was asked for least lately goes before something new is made,
    so that the two never need memory at once."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._items: dict[K, V] = {}  # in the order of their last use

    def get(self, key: K, make: Callable[[], V]) -> V:
        """What is there, else what `make` gives. What it raises passes, and nothing is kept."""
        if key in self._items:
            item = self._items.pop(key)
        else:
            self.leave(self._room - 1)
            item = make()
        self._items[key] = item
        return item

    def leave(self, number: int) -> None:
        """Let go of all but the `number` that were used last."""
        while len(self._items) > number:
            del self._items[next(iter(self._items))]

    def drop(self, key: K) -> None:
        self._items.pop(key, None)

    def values(self) -> list[V]:
        """In the order of their last use."""
        return list(self._items.values())
