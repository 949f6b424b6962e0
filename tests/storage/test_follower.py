"""The picture of a store: what it says, and that a look reads only what is new."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path

import pytest

from lp_sweep.orchestrator.service.store import sweep_states
from lp_sweep.orchestrator.watch import follower as follower_module
from lp_sweep.orchestrator.watch.follower import Follower
from lp_sweep.orchestrator.watch.picture import Picture, Waiting, picture_json
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.packs import compact
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.store import Store
from tests.support.fake_records import STARTED, FakeSweep


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0, 6: 88.0})
    fake.cell(k=0, score=91.0, seed=43)
    fake.cell(k=6, seed=43)
    fake.cell(k=8, state="failed")
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    fake.publish()
    return fake


def look(follower: Follower, name: str | None = None) -> Picture:
    picture = follower.look(name)
    assert picture is not None
    return picture


def means(picture: Picture) -> dict[tuple[str, int], float | None]:
    return {(c.strategy, p.k): p.mean for c in picture.curves for p in c.points}


def test_it_says_what_status_says(location: str) -> None:
    fake = FakeSweep(location)
    fake.curve({0: 90.0, 6: 88.0})
    fake.cell(k=8, state="failed")
    fake.cell(k=9)
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    picture = look(Follower(fake.publish()))
    assert {"sweep": "demo", **picture.counts} == sweep_states(fake.store).sweeps[0]
    assert (picture.done, picture.failed, picture.left, picture.total) == (2, 1, 1, 4)
    assert picture.failures == {"out_of_memory": 1}
    assert picture.waiting == (Waiting(model="bert", task="SST-2", pieces=1),)
    scores = {("top", 0): 90.0, ("top", 6): 88.0, ("top", 8): None, ("top", 9): None}
    assert means(picture) == scores
    assert picture.elapsed is None
    assert picture.eta.seconds is None
    json.dumps(picture_json(picture), allow_nan=False)


def test_hours_are_those_of_records_and_of_failed_tries(fake: FakeSweep) -> None:
    records = fake.store.read_all("trials").rows["seconds_total"].to_pylist()
    row = fake.cells[-2]
    tried = {"attempt_id": f"{row['trial_id']}.1", "trial_id": row["trial_id"], "final": False}
    times = {"started_at": STARTED, "ended_at": STARTED + dt.timedelta(seconds=90)}
    fake.store.put("attempts", tried["attempt_id"], [tried | times])
    lost = {**tried, "attempt_id": f"{row['trial_id']}.2", "ended_at": STARTED}  # by the driver
    fake.store.put("attempts", lost["attempt_id"], [lost])
    used = look(Follower(fake.store)).slot_hours
    assert used == pytest.approx((sum(records) + 90) / 3600)


@pytest.fixture
def opened(fake: FakeSweep, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was read."""
    read, counts = fake.store.files.read, Counter[str]()

    def counting(path: str) -> bytes:
        counts[path] += 1
        return read(path)

    monkeypatch.setattr(fake.store.files, "read", counting)
    return counts


def test_a_look_opens_only_what_is_new(fake: FakeSweep, opened: Counter[str]) -> None:
    follower = Follower(fake.store)
    look(follower)
    assert sum(path.startswith("trials/") for path in opened) == 3
    opened.clear()
    look(follower)
    assert not opened
    row = fake.cell(k=9, score=80.0, seed=44)
    look(follower)  # a record whose cell nobody has listed yet
    assert not opened
    fake.publish()
    assert means(look(follower))["top", 9] == 80.0
    assert opened == {"sweeps/demo.parquet": 1, f"trials/{row['trial_id']}.parquet": 1}


def test_a_large_store_is_read_in_parts(fake: FakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_module, "AT_ONCE", 2)
    follower = Follower(fake.store)
    first, second = look(follower), look(follower)
    assert (first.done, first.unread) == (3, 1)  # counts are right at once
    assert (second.done, second.unread) == (3, 0)
    assert sum(p.n for p in first.curves[0].points) == 2
    assert sum(p.n for p in second.curves[0].points) == 3


def test_compaction_changes_nothing(fake: FakeSweep, opened: Counter[str]) -> None:
    follower = Follower(fake.store)
    before = look(follower)
    compact(fake.store)
    opened.clear()
    after = look(follower)
    assert not opened
    for part in ("curves", "counts", "failures"):
        assert getattr(after, part) == getattr(before, part)
    assert look(Follower(fake.store)).curves == before.curves


def test_a_torn_record_is_not_done_until_it_is_whole(fake: FakeSweep, opened: Counter[str]) -> None:
    path = Path(fake.store.location, "trials", f"{fake.cells[0]['trial_id']}.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    follower = Follower(fake.store)
    assert look(follower).done == 2
    opened.clear()
    assert (look(follower).done, look(follower).unread) == (2, 0)
    assert not opened, "what can't be read is not tried at each look"
    path.write_bytes(whole)
    assert look(follower).done == 3


def test_a_record_that_is_gone_is_not_done_any_more(fake: FakeSweep) -> None:
    follower = Follower(fake.store)
    look(follower)
    fake.store.delete("trials", f"{fake.cells[1]['trial_id']}.parquet")
    picture = look(follower)
    assert picture.done == 2
    assert means(picture)["top", 6] is None
    assert picture.slot_hours == pytest.approx(look(Follower(fake.store)).slot_hours)


def test_a_run_shows_its_slots_and_when_it_ends(fake: FakeSweep) -> None:
    progress = Progress(3, 0, 2, 3, 3600.0, 1800.0, 7200.0)
    presence = Presence(fake.store, "demo", lambda: progress)
    with presence.announced():
        presence.claim(fake.cells[3]["trial_id"])
        presence.claim("p1-unknown")
        presence.claim(fake.cells[0]["trial_id"])  # has ended, which is announced 15 s later
        picture = look(Follower(fake.store))
    assert [slot.work for slot in picture.slots] == [
        "p1-unknown",
        "bert, layers 1-6 of 12, SST-2, seed 43",
        "",
    ]
    assert all(slot.seconds is not None and slot.seconds < 60 for slot in picture.running)
    assert picture.waiting == ()  # the one that was left is at work
    assert picture.elapsed is not None
    assert picture.eta.seconds == pytest.approx(3600, abs=60)
    assert picture.eta.low == pytest.approx(1800, abs=60)
    assert picture.eta.high == pytest.approx(7200, abs=60)


def test_which_sweep_is_shown(fake: FakeSweep) -> None:
    other = FakeSweep(fake.store.location, "other")
    other.cell(k=0)
    other.publish()
    follower = Follower(fake.store)
    assert look(follower, "demo").sweep == "demo"
    assert look(follower).sweep == "other", "the newest"
    assert look(follower).sweeps == ("demo", "other")
    with Presence(fake.store, "demo", lambda: Progress(0, 0, 1)).announced():
        assert look(follower).sweep == "demo", "the one at work"
    with pytest.raises(SpecError, match=r"no sweep named 'nope' in .*It has: demo, other"):
        follower.look("nope")


def test_a_store_without_a_readable_sweep(tmp_path: Path, fake: FakeSweep) -> None:
    assert Follower(Store(tmp_path / "empty", create=True)).look() is None
    Path(fake.store.location, "sweeps", "demo.parquet").write_bytes(b"PAR1")
    picture = look(Follower(fake.store))
    assert "sweeps/demo.parquet can't be read" in picture.notes[0]
    assert picture.total == 0
