"""How far a trial is, from its worker to whoever asks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lp_sweep.storage import underway
from lp_sweep.storage.store import Store
from lp_sweep.storage.underway import FOLDER, Looks, Teller, Underway, forget
from tests.support.faults import wait_for


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "EVERY_SECONDS", 0.0)


def test_what_is_told_is_found_and_gone_at_the_end(store: Store) -> None:
    teller = Teller(store, "t1-a")
    teller(10, 40, lambda: 0.5)
    wait_for(lambda: bool(store.texts(FOLDER)), "the first write")
    teller._writing.join()
    teller(20, 40, lambda: math.nan)
    looks = Looks(store)
    wait_for(lambda: looks.of(["t1-a", "t1-b"]).get("t1-a", (0,))[0] == 20, "the second step")
    [found] = looks.of(["t1-a", "t1-b"]).values()
    assert (found.steps, found.loss) == (40, None), "no number"
    assert found.seconds_left >= 0
    teller.close()
    assert store.texts(FOLDER) == {}
    assert looks.of(["t1-a"]) == {}


def test_the_time_left_is_that_of_this_try(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that continues from a checkpoint has not done all its steps just now."""
    clock = iter([100.0, 110.0, 110.0])
    monkeypatch.setattr(underway.time, "monotonic", lambda: next(clock, 110.0))
    teller = Teller(None, "t1-a")
    teller._store = store
    for step in (90, 100):  # ten steps in ten seconds
        teller(step, 130, lambda: 1.0)
        teller._writing.join()
    assert Looks(store).of(["t1-a"]) == {"t1-a": Underway(100, 130, 1.0, 30.0)}
    teller.close()


def test_a_short_trial_writes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(underway, "EVERY_SECONDS", 3600.0)
    teller = Teller(store, "t1-a")
    for step in range(100):
        teller(step, 100, lambda: pytest.fail("the host waited for the device"))
    teller.close()
    assert store.texts(FOLDER) == {}


def test_a_store_that_is_away_keeps_no_training(store: Store, tmp_path: Path) -> None:
    (tmp_path / "store" / FOLDER).write_text("a file in the place of the folder")
    for place in (store, None):
        teller = Teller(place, "t1-a")
        teller(10, 40, lambda: 0.5)
        teller.close()
    assert Looks(store).of(["t1-a"]) == {}


def test_what_is_none_of_ours_is_left_out(store: Store) -> None:
    numbers = ((5, 1, 1), (1, 2, "1e999"))
    texts = [
        f'{{"step": {a}, "steps": {b}, "loss": 1, "seconds_left": {c}}}' for a, b, c in numbers
    ]
    for text in ["[]", "{", '{"step": 1}', *texts, "[" * 100_000]:
        store.put_text(FOLDER, "t1-a.json", text)
        assert Looks(store).of(["t1-a"]) == {}, text[:80]


def test_what_killed_workers_left_is_deleted(store: Store) -> None:
    store.put_text(FOLDER, "t1-a.json", "{}")
    forget(store)
    assert store.texts(FOLDER) == {}
