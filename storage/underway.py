"""The progress of long trials: a small file for each, `underway/<id>.json`.

The trial's worker writes it every ten seconds and deletes it at the end; that of a killed worker
stays until the next try or run. Nothing depends on it: files that can't be written or read are
skipped.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.printable import clock
from lp_sweep.storage.store import Store

FOLDER = "underway"
EVERY_SECONDS = 10.0  # a shorter trial writes nothing
_LEAVE_SECONDS = 5.0  # for the last write


class Underway(NamedTuple):
    """Optimiser steps done and in total, mean loss of the last steps, and seconds left at the
    present rate."""

    step: int
    steps: int
    loss: float | None  # None if not finite
    seconds_left: float

    @property
    def tenth(self) -> int:
        """That of the steps that it is in: 0 to 10."""
        return 10 * self.step // max(1, self.steps)

    @property
    def text(self) -> str:
        """`step 310 of 1,200, loss 0.431, 9:05 left`"""
        loss = "" if self.loss is None else f"loss {self.loss:.3f}, "
        return f"step {self.step:,} of {self.steps:,}, {loss}{clock(self.seconds_left)} left"


class Teller:
    """Is called after each step of a trial. Never delays the training, even if the store is slow or
    unreachable (None)."""

    def __init__(self, store: Store | None, id_: str) -> None:
        self._store, self._file = store and store.asked_once(), f"{id_}.json"
        self._first: tuple[float, int] | None = None  # time and number of the first step
        self._next = 0.0
        self._writing: threading.Thread | None = None

    def __call__(self, step: int, steps: int, loss: Callable[[], float]) -> None:
        """`loss` is called rarely, since it makes the host wait for the device."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._next = (now, step), now + EVERY_SECONDS
        busy = self._writing is not None and self._writing.is_alive()
        if now < self._next or self._store is None or busy:
            return
        self._next = now + EVERY_SECONDS
        began, first = self._first
        left = (now - began) * (steps - step) / max(1, step - first)
        mean = loss()
        found = Underway(step, steps, mean if math.isfinite(mean) else None, left)
        self._writing = threading.Thread(target=self._write, args=[self._store, found], daemon=True)
        self._writing.start()

    def _write(self, store: Store, found: Underway) -> None:
        with contextlib.suppress(StoreError):
            store.put_text(FOLDER, self._file, json.dumps(found._asdict()))

    def close(self) -> None:
        if self._writing is None or self._store is None:
            return
        self._writing.join(_LEAVE_SECONDS)
        with contextlib.suppress(StoreError):
            self._store.delete(FOLDER, self._file)


class Looks:
    """Reads the progress of trials, every five seconds at most."""

    def __init__(self, store: Store) -> None:
        self._store = store.asked_once()
        self._found: dict[str, Underway] = {}
        self._looked = -math.inf

    def of(self, live: Collection[str]) -> dict[str, Underway]:
        """The known progress of these trials, by identifier."""
        if live and time.monotonic() - self._looked >= EVERY_SECONDS / 2:
            with contextlib.suppress(StoreError):
                texts = self._store.texts(FOLDER)
                named = {name.removesuffix(".json"): _parse(text) for name, text in texts.items()}
                self._found = {id_: found for id_, found in named.items() if found is not None}
            self._looked = time.monotonic()
        return {id_: self._found[id_] for id_ in live if id_ in self._found}


def forget(store: Store) -> None:
    """Deletes the files of killed workers. No run must be active."""
    with contextlib.suppress(StoreError):
        for info in store.listing(FOLDER):
            store.delete(FOLDER, info.name)


def _parse(text: str) -> Underway | None:
    """None for a text that is not ours."""
    try:
        plain = json.loads(text)
        step, steps, loss, left = (plain[name] for name in Underway._fields)
        found = Underway(int(step), int(steps), None if loss is None else float(loss), float(left))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    sound = 0 <= found.step <= found.steps and 0 <= found.seconds_left < math.inf
    return found if sound else None
