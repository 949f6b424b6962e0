"""Compaction and repair of a store: nothing is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.service import run
from lp_sweep.storage import parquet, upkeep
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact, examine, put_pack, set_aside
from tests.support.everyday import few
from tests.support.fake_records import FakeSweep
from tests.support.program import sweep
from tests.support.stores import cell, everything, newer, predictions, trial


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
    return len(store.singles(table)), len(store.packs(table))


def rows_of(store: Store) -> dict[str, list[dict[str, Any]]]:
    return {t: sorted(store.read_all(t).rows.to_pylist(), key=repr) for t in TABLES}


# -- what it does


def test_a_store_says_the_same_before_and_after(location: str) -> None:
    fake = FakeSweep(location)
    fake.curve({k: 92.0 - k / 10 for k in range(4)})
    fake.profile([0.9, 0.8, 0.7])
    for row in fake.cells[:3]:
        fake.predictions(row["trial_id"], [True, False, True])
    for k in (3, 5):
        fake.cell(k=k, seed=7, state="failed")
    store = fake.publish()
    before, names = rows_of(store), {table: store.names(table) for table in TABLES}
    asked = ("FROM cells ORDER BY cell", "FROM trials ORDER BY trial_id")
    views = ("cells", "trials")
    answers = [open_views(store, only=views).query(sql).to_pylist() for sql in asked]
    done = compact(store)
    # one profile is not worth a pack, and one trial has no row of predictions
    assert done == (4 + 2 + 3, 4 + 1 + 2 + 4, 4 + 1)
    for again in (store, Store(store.location)):
        assert rows_of(again) == before
        assert {table: again.names(table) for table in TABLES} == names
        for table, columns in (("trials", ["last", "kept_layers"]), ("sweeps", ["k"])):
            some, every = again.read_all(table, columns=columns).rows, again.read_all(table).rows
            assert {*some.column_names} == {*columns, every.column_names[0]}
            assert some == every.select(some.column_names)
        catalog = open_views(again, only=views)
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
    monkeypatch.setattr(upkeep, "PACK_BYTES", 10 * size + size // 2)
    compact(store)
    assert files(store) == (0, 4)
    made = [store.content(path) for path in store.packs("trials")]
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
    assert set(store.singles("trials")) == {*("t1-empty", "copy of t1-00000", "t1-torn", "t1-zero")}
    assert store.files.read("trials/notes.txt") == b"mine"
    assert sorted(store.read_all("trials").rows["trial_id"].to_pylist()) == ["t1-00000", "t1-00001"]


def test_what_is_measured_again_counts_after_a_compaction(store: Store) -> None:
    """A trial is never done again, but a deployment may be."""

    def put(answer: float) -> None:
        for name in ("t1-a", "t1-b", "d1-a", "d1-b"):
            store.put("predictions", name, [predictions(name)[0] | {"prediction": answer}])

    put(0.0)
    compact(store)
    put(1.0)
    compact(store)
    for packed in (False, True):  # as a published store has them
        rows = store.read_all("predictions", ["d1-a", "d1-b"]).rows
        assert rows["prediction"].to_pylist() == [1.0 + packed] * 2
        put_pack(store, "predictions", rows)
        put(2.0)


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


# -- raced with


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

        return look if name in ("list", "read", "open") else action


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
@pytest.mark.parametrize("look", few(LOOKS, 2))
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


# -- doctor names what is not as it should be, and `--fix` puts it right without deleting data


@pytest.fixture
def whole(store: Store) -> Store:
    """With a record of each kind, and nothing wrong."""
    for name in ("t1-a", "t1-b"):
        store.put("predictions", name, predictions(name))
        store.put("trials", name, [trial(name)])
    for name in ("t1-none", "t1-x", "t1-y", "t1-z", "t1-torn"):
        store.put("predictions", name, [])
    store.put("profiles", "p1-a", [{"profile_id": "p1-a"}])
    store.put("attempts", "t1-c.0af", [{"attempt_id": "t1-c.0af", "trial_id": "t1-c"}])
    store.put("sweeps", "demo", [cell()])
    store.put("sweeps", "empty", [])
    store.put_text("sweeps", "demo.yaml", "name: demo\n")
    store.put_text("runs", "r1.json", "{}")
    return store


def test_a_store_in_order(whole: Store) -> None:
    assert examine(whole) == []
    compact(whole)
    before = everything(whole)
    assert examine(whole) == []
    set_aside(whole, [])
    assert everything(whole) == before


BAD: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "a-copy": ("trials/copy.parquet", bytes, "its name is not that of its content, t1-a"),
    "cut-pack": ("trials/packs/0af.parquet", lambda good: good[:-99], "not a whole Parquet file"),
}


@pytest.mark.parametrize(("path", "change", "reason"), BAD.values(), ids=BAD.keys())
def test_what_is_no_record_is_named_and_moved(
    whole: Store, path: str, change: Callable[[bytes], bytes], reason: str
) -> None:
    bad = change(whole.files.read("trials/t1-a.parquet"))
    whole.files.write(path, bad)
    before = everything(whole)
    (finding,) = examine(whole)
    assert finding.location == whole.files.where(path)
    assert reason in finding.reason
    assert everything(whole) == before, "to look changes nothing"
    set_aside(whole, [finding])
    assert examine(whole) == []
    del before[path]
    assert everything(whole) == before | {f"set-aside/{path}": bad}
    whole.files.write(path, b"two")  # what was set aside before is kept
    set_aside(whole, examine(whole))
    assert {bad, b"two"} <= {*everything(whole).values()}


def test_a_file_of_a_newer_version_is_named_and_never_moved(whole: Store) -> None:
    good = whole.files.read("trials/t1-a.parquet")
    for path in ("trials/t1-x.parquet", "trials/packs/0af.parquet"):
        whole.files.write(path, newer(good))
    before = everything(whole)
    findings = examine(whole)
    assert [f.newer for f in findings] == [True, True]
    assert all("newer lp-sweep" in f.reason for f in findings)
    set_aside(whole, findings)
    assert everything(whole) == before


def test_a_record_that_was_mended_meanwhile_stays(whole: Store) -> None:
    whole.files.write("trials/t1-x.parquet", b"torn")
    whole.files.write("trials/t1-y.parquet", b"torn")
    findings = examine(whole)
    whole.put("trials", "t1-x", [trial("t1-x")])  # a run did the work again
    whole.delete("trials", "t1-y.parquet")
    set_aside(whole, findings)
    assert whole.read("trials", "t1-x")
    assert examine(whole) == []


def test_what_is_wrong_is_said_with_the_next_step(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    store.put("sweeps", "demo", [cell(trial_id="t1-a", kept_layers=[1, 2])])
    store.put("predictions", "t1-a", [])
    store.write("trials/t1-a.parquet", b"torn")
    for words, code, next_step in (
        ([], 1, "lp-sweep doctor --fix --store"),
        (["--fix"], 0, "the next run does their work again"),
        ([], 1, "Copy it back from a backup, or run the sweep file again"),
    ):
        done = sweep("doctor", *words, "--store", "store", cwd=tmp_path)
        assert (done.returncode, next_step in done.stdout) == (code, True), done
    store.put("trials", "t1-a", [trial("t1-a")])
    assert sweep("doctor", "--store", "store", cwd=tmp_path).stdout.endswith("is in order\n")
