"""Work that waits for the networks of other work. Pure bookkeeping; knows no store and no plan."""

from __future__ import annotations

from collections.abc import Iterable, KeysView


class Blocked:
    """Both ways, so that 100,000 waiting pieces cost nothing while others end."""

    def __init__(self) -> None:
        self._waits: dict[str, set[str]] = {}  # work -> the networks that it still waits for
        self._seconds: dict[str, float] = {}  # that the work will take
        self._waited_for: dict[str, dict[str, None]] = {}  # a network -> the work that waits

    def __len__(self) -> int:
        return len(self._waits)

    def seconds(self) -> float:
        """That all of it will take."""
        return sum(self._seconds.values())

    def add(self, id_: str, needs: Iterable[str], seconds: float) -> None:
        self._waits[id_], self._seconds[id_] = set(needs), seconds
        for need in self._waits[id_]:
            self._waited_for.setdefault(need, {})[id_] = None

    def needs(self) -> KeysView[str]:
        """All that is waited for."""
        return self._waited_for.keys()

    def came(self, need: str) -> list[str]:
        """A network is there: the work that waited for nothing else, and does not any more."""
        free = []
        for id_ in self._waited_for.pop(need, {}):
            self._waits[id_].discard(need)
            if not self._waits[id_]:
                del self._waits[id_], self._seconds[id_]
                free.append(id_)
        return free

    def lost(self, need: str) -> list[str]:
        """A network will not come: the work that waited for it, and does not any more."""
        hopeless = list(self._waited_for.pop(need, {}))
        for id_ in hopeless:
            del self._seconds[id_]
            for other in self._waits.pop(id_) - {need}:
                del self._waited_for[other][id_]
                if not self._waited_for[other]:
                    del self._waited_for[other]
        return hopeless
