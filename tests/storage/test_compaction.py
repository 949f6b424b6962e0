"""Compaction merges single files into packs and loses and doubles nothing, whoever is killed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.service import run
from lp_sweep.storage import packs, parquet
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.packs import compact
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store
from tests.support.everyday import few
from tests.support.fake_records import FakeSweep
from tests.support.stores import newer, start, trial


@pytest.fixture
def store(location: str) -> Store:
    return Store(location, create=True)


def fill(store: Store, number: int, prefix: str = "") -> list[str]:
    names = [f"t1-{prefix}{i:05d}" for i in range(number)]
    for i, name in enumerate(names):
        store.put("trials", name, [trial(name, i)])
    return names


def files(store: Store, table: str = "trials") -> tuple[int, int]:
    """How many single files and packs."""
    contents = store.contents(table)
    return len(contents.singles), len(contents.packs)


def rows_of(store: Store) -> dict[str, list[dict[str, Any]]]:
    return {t: sorted(store.read_all(t).rows.to_pylist(), key=repr) for t in TABLES}


# -- what it does


def test_a_store_says_the_same_before_and_after(location: str) -> None:
    fake = FakeSweep(location)
    fake.curve({k: 92.0 - k / 10 for k in range(0, 12)})
    fake.profile([0.9, 0.8, 0.7])
    for cell in fake.cells[:3]:
        fake.predictions(cell["trial_id"], [True, False, True])
    for k in (3, 5):
        fake.cell(k=k, seed=7, state="failed")
    store = fake.publish()
    before, names = rows_of(store), {table: store.names(table) for table in TABLES}
    asked = ("FROM cells ORDER BY cell", "FROM trials ORDER BY trial_id")
    answers = [open_views(store).query(sql).to_pylist() for sql in asked]
    done = compact(store)
    # one profile is not worth a pack, and 9 trials have no row of predictions
    assert done == (12 + 2 + 3, 12 + 1 + 2 + 12, 4 + 9)
    for again in (store, Store(store.location)):
        assert rows_of(again) == before
        assert {table: again.names(table) for table in TABLES} == names
        catalog = open_views(again)
        assert answers == [catalog.query(sql).to_pylist() for sql in asked]
        assert catalog.unreadable == []
    one = fake.cells[1]["trial_id"]
    assert store.find("trials", one) == store.read("trials", one)
    answered = [(r["trial_id"], r["example"]) for r in store.read("predictions", one)]
    assert answered == [(one, 0), (one, 1), (one, 2)]
    assert store.read_all("trials", [one, "t1-no"]).rows["trial_id"].to_pylist() == [one]
    assert store.find("trials", "t1-no") is None
    with pytest.raises(StoreError, match="No such file"):
        store.read("trials", "t1-no")


def test_packs_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = fill(store, 40)
    size = len(parquet.encode("trials", [trial("t1-00000", 0)]))
    monkeypatch.setattr(packs, "PACK_BYTES", 10 * size + size // 2)
    compact(store)
    assert files(store) == (0, 4)
    made = [store.content(path) for path in store.contents("trials").packs]
    assert [len(parquet.decode(content, "trials")) for content in made] == [10] * 4
    assert compact(store) == (0, 4, 4), "packs are not written again"
    assert store.names("trials") == set(names)


def test_the_last_run_on_a_store_compacts_many_files(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 3)
    run.compact_many(store)
    assert files(store) == (3, 0), "few files stay as they are"
    monkeypatch.setattr(run, "MANY_FILES", 3)
    with Presence(store, "demo", lambda: Progress(0, 0, 1)).announced():
        run.compact_many(store)
        assert files(store) == (3, 0), "another run is at work"
    run.compact_many(store)
    assert files(store) == (0, 1)


def test_a_record_that_no_pack_may_take_stays(store: Store) -> None:
    fill(store, 2)
    store.put("trials", "t1-empty", TABLES["trials"].empty_table())
    store.put("trials", "copy of t1-00000", [trial("t1-00000")])
    store.files.write("trials/t1-torn.parquet", b"PAR1 half")
    store.files.write("trials/t1-zero.parquet", b"")
    store.files.write("trials/notes.txt", b"mine")
    bad = {"trials/packs/torn.parquet": b"PAR1 half"}
    bad["trials/packs/newer.parquet"] = newer(store.content("trials/t1-00000.parquet"))
    for path, content in bad.items():
        store.files.write(path, content)
    assert compact(store).records == 2
    assert {path: store.files.read(path) for path in bad} == bad
    assert set(store.contents("trials").singles) == {
        *("t1-empty", "copy of t1-00000", "t1-torn", "t1-zero")
    }
    assert store.files.read("trials/notes.txt") == b"mine"
    assert sorted(store.read_all("trials").rows["trial_id"].to_pylist()) == ["t1-00000", "t1-00001"]


# -- stopped, together, or on damaged packs


@pytest.mark.parametrize("twice", ["single files", "pack"])
def test_what_is_there_twice_counts_once(store: Store, twice: str) -> None:
    """A compactor was killed before it deleted, or two made a pack of the same records."""
    names = fill(store, 6)
    before = rows_of(store)
    singles = {path: store.files.read(path) for path in [f"trials/{n}.parquet" for n in names]}
    compact(store)
    for path, content in list(singles.items())[: 6 if twice == "pack" else 4]:
        store.files.write(path, content)
    if twice == "pack":
        compact(store)
    assert files(store) == ((0, 2) if twice == "pack" else (4, 1))
    assert rows_of(store) == before
    assert store.names("trials") == set(names)
    compact(store)
    assert files(store) == (0, 2)
    assert rows_of(store) == before


def test_some_columns_are_those_of_all(store: Store) -> None:
    """Columns are read from single files and from packs."""
    wanted = ["seconds_total", "last", "kept_layers"]
    names = fill(store, 50)

    def check(asked: list[str] | None = None) -> None:
        some, every = (
            Store(store.location).read_all("trials", asked, columns) for columns in (wanted, None)
        )
        assert some.rows.column_names == ["trial_id", "kept_layers", "last", "seconds_total"]
        assert some.rows == every.rows.select(some.rows.column_names)

    check()
    compact(store)
    fill(store, 3, prefix="single")
    check()
    check(names[:2])


def test_a_torn_pack_costs_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names = fill(store, 4)
    write = type(store.files).write
    monkeypatch.setattr(
        type(store.files), "write", lambda self, path, content: write(self, path, content[:-9])
    )
    assert compact(store).records == 0
    monkeypatch.undo()
    assert len(store.read_all("trials").rows) == len(names)
    assert files(store) == (4, 1)


# -- killed, raced with


def check_all_there(store: Store, names: set[str]) -> int:
    """Checks that each acknowledged record is there once and whole; returns their number."""
    assert names <= store.names("trials")
    listing = store.read_all("trials")
    assert listing.unreadable == []
    found = listing.rows["trial_id"].to_pylist()
    assert len(found) == len(set(found)), "doubled"
    assert names <= set(found), "lost"
    values = dict(zip(found, listing.rows["last"].to_pylist(), strict=True))
    assert all(value == float(name[-5:]) for name, value in values.items())
    split = store.read_all("predictions").rows
    assert len(split) == 20 * len(set(split["trial_id"].to_pylist()))
    assert names <= set(split["trial_id"].to_pylist())
    return len(found)


@pytest.mark.slow
def test_a_compactor_killed_over_and_over_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL 25 times while one process writes, two others compact, and this one asks."""
    store = Store(tmp_path / "store", create=True)
    draw = random.Random(3)
    writer = start("write", store.location, "w", "1500")
    partner = start("compact", store.location)
    killed = asked = 0
    try:
        while writer.poll() is None or killed < 25:
            victim = start("compact", store.location)
            assert victim.stdout.readline() == "ready\n"
            until = time.monotonic() + draw.uniform(0.02, 0.7)
            while time.monotonic() < until:
                before = store.names("trials")
                asked += 1
                assert check_all_there(store, before) >= len(before)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            killed += 1
    finally:
        partner.kill()
        partner.wait()
        writer.kill()
    written = set(writer.stdout.read().split())
    assert len(written) == 1500
    assert asked >= killed
    assert check_all_there(Store(store.location), written) == 1500
    compact(store)
    assert check_all_there(Store(store.location), written) == 1500
    assert files(store)[0] == 0


class Interrupted:
    """Files that run a whole compaction during one of the looks at them. A listing then shows
    what was there before and is there still: systems promise no more."""

    def __init__(self, store: Store, moment: int) -> None:
        self._store, self.left = store, moment
        self._lock = threading.Lock()  # files are read by several threads

    def __getattr__(self, name: str) -> Any:
        action = getattr(self._store.files, name)

        def look(*arguments: Any) -> Any:
            with self._lock:
                self.left -= 1
                if self.left != -1:
                    return action(*arguments)
                before = action(*arguments) if name == "list" else None
                compact(self._store)
                after = action(*arguments)
                return after if before is None else [item for item in before if item in after]

        return look if name in ("list", "read", "open", "size") else action


LOOKS: dict[str, Callable[[Store, list[str]], bool]] = {
    "names": lambda store, names: store.names("trials") == set(names),
    "read-all": lambda store, names: (
        store.read_all("trials").rows["trial_id"].to_pylist() == sorted(names)
    ),
    "read-some": lambda store, names: (
        store.read_all("trials", names[::2]).rows["trial_id"].to_pylist() == sorted(names[::2])
    ),
    "find-a-single-one": lambda store, names: store.find("trials", names[-1]) is not None,
    "find-a-packed-one": lambda store, names: store.find("trials", names[0]) is not None,
}


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param("", id="no-pack-before", marks=pytest.mark.slow),
        pytest.param("ab", id="two-packs-before"),
    ],
)
@pytest.mark.parametrize("look", few(LOOKS, 3))
def test_a_compaction_at_any_moment_of_a_look(tmp_path: Path, look: str, packed: str) -> None:
    """Single files go into a pack, at every moment in turn."""
    moment = 0
    while True:
        store = Store(tmp_path / str(moment), create=True)
        names = []
        for prefix in packed:
            names += fill(store, 2, prefix)
            compact(store)
        names += fill(store, 3, "c")
        interrupted = Interrupted(store, moment)
        reader = Store(store.location)
        reader.files = interrupted  # type: ignore[assignment]
        assert LOOKS[look](reader, names), f"at look {moment}"
        if interrupted.left >= 0:
            break  # it was done before that moment came
        assert files(store) == (0, len(packed) + 1)
        moment += 1
    assert moment >= 1
