"""The networks that work of a run goes on from, or is compared with: which of them are needed, come
or will not come, what is kept back for them, and who is still to use them.

Pure bookkeeping over a plan. Networks go by the trials that they are of; knows no store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lp_sweep.orchestrator.engine.blocked import Blocked
from lp_sweep.orchestrator.plan.plan import Plan


class Waited(NamedTuple):
    """The work that was kept back for a network that will not come."""

    hopeless: list[str]  # it would have gone on from it
    compared: list[str]  # with it, and worth having all the same


class Networks:
    """Of one run. A plan says what is needed; a newer one is to be followed."""

    def __init__(self, plan: Plan) -> None:
        self.blocked = Blocked()
        self._plan = plan
        self._needed: set[str] = set()
        self._coming: set[str] = set()  # begun as needed: they come to the store
        self._came: set[str] = set()  # to the store, in this run
        self._gone: set[str] = set()  # will not come in this run
        self._again: set[str] = set()  # done before, and to be done again for their networks
        self._users: dict[str, set[str]] = {}  # a network -> the work that is still to use it

    def follow(self, plan: Plan) -> None:
        self._plan, self._needed = plan, plan.needed_networks()

    def needed(self, id_: str) -> bool:
        """Whether other work needs the network of this."""
        return id_ in self._needed

    def lacking(self, id_: str) -> set[str]:
        """Without the network that it is only compared with a trial is worth having all the same:
        that one it does not wait for in vain."""
        start = self._start(id_)
        absent = self._plan.needs(id_) - self._plan.known.networks - self._came
        return {need for need in absent if need == start or need not in self._gone}

    def keep_back(self, id_: str, seconds: float) -> bool:
        """Whether the work, which takes so long, lacks a network and has to wait for it."""
        lacking = self.lacking(id_)
        if lacking:
            self.blocked.add(id_, lacking, seconds)
        return bool(lacking)

    def begun(self, id_: str) -> None:
        """The work is done somewhere, with its network if that is needed by now."""
        if id_ in self._needed:
            self._coming.add(id_)

    def succeeded(self, id_: str) -> list[str]:
        """What can begin now: the work that waited for this network alone; or the piece itself
        once more, where it was begun before anything needed its network."""
        self._again.discard(id_)
        if id_ in self._coming:
            self._came.add(id_)
            return self.blocked.came(id_)
        return self.once_more(id_) if id_ in self.blocked.needs() else []

    def once_more(self, id_: str) -> list[str]:
        """The piece, done without the network that is needed now; nothing, if that was said."""
        if id_ in self._again:
            return []
        self._again.add(id_)
        return [id_]

    def lost(self, id_: str) -> Waited:
        """It will not come in this run."""
        self._gone.add(id_)
        waited = self.blocked.lost(id_)
        return Waited(
            [other for other in waited if self._start(other) == id_],
            [other for other in waited if self._start(other) != id_],
        )

    def may_come(self, ids: Iterable[str]) -> None:
        """After all: the work is tried again."""
        self._gone.difference_update(ids)

    def add_user(self, id_: str) -> None:
        """Work that is to be done, of the networks that it needs."""
        for need in self._plan.needs(id_):
            self._users.setdefault(need, set()).add(id_)

    def idle_after(self, id_: str) -> list[str]:
        """Of the networks that a piece has used: those that nothing will use any more."""
        used = [need for need in self._plan.needs(id_) if id_ in self._users.get(need, ())]
        for need in used:
            self._users[need].discard(id_)
        idle = [need for need in used if not self._users[need]]
        to_come = idle and any(cell.state == "deferred" for cell in self._plan.cells)
        return [] if to_come else idle

    def _start(self, id_: str) -> str | None:
        return self._plan.trials[id_].start if id_ in self._plan.trials else None
