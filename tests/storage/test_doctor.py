"""`doctor` names what is not as it should be, and `fix` puts it right without deleting data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lp_sweep.orchestrator.watch.states import sweep_states
from lp_sweep.storage import doctor, parquet
from lp_sweep.storage.doctor import examine, fix
from lp_sweep.storage.packs import compact
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store
from tests.support.stores import newer
from tests.support.storeworkers import cell, predictions, trial


@pytest.fixture
def store(location: str) -> Store:
    """With a record of each kind, and nothing wrong."""
    store = Store(location, create=True)
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


def whole_store(store: Store) -> dict[str, bytes]:
    folders = [*TABLES, *(f"{table}/packs" for table in TABLES), "runs", "checkpoints"]
    folders += [f"set-aside/{folder}" for folder in folders]
    return {
        path: store.files.read(path)
        for folder in folders
        for path in [f"{folder}/{info.name}" for info in store.files.list(folder)]
    }


def test_a_store_in_order(store: Store) -> None:
    assert examine(store) == []
    compact(store, settle=0)
    before = whole_store(store)
    assert examine(store) == []
    fix(store, [])
    assert whole_store(store) == before


def test_what_a_killed_run_left(store: Store) -> None:
    """On this machine it is known at once, on another one after an hour."""
    killed = Presence(store, "demo", lambda: Progress(0, 0, 1))
    elsewhere = Presence(store, "demo", lambda: Progress(0, 0, 1))
    killed._me = killed._me._replace(pid=2**22 + 1)  # no such process
    elsewhere._me = elsewhere._me._replace(machine="another machine")
    killed._write()
    elsewhere._write()
    findings = examine(store)
    assert [finding.path for finding in findings] == [f"runs/{killed._me.run_id}.json"]
    fix(store, findings)
    assert examine(store) == []
    assert len(store.listing("runs")) == 2


BAD = {
    "zero-bytes": ("trials/t1-x.parquet", lambda good: b"", "empty"),
    "of-another-table": ("profiles/p1-x.parquet", lambda good: good, "not written by lp-sweep"),
    "foreign": ("trials/demo.yaml", lambda good: b"a: 1", "not a file of lp-sweep"),
    "without-a-row": (
        "trials/t1-x.parquet",
        lambda good: parquet.encode("trials", []),
        "a record without a row",
    ),
    "cut-pack": ("trials/packs/0af.parquet", lambda good: good[:-99], "not a whole Parquet file"),
}


@pytest.mark.parametrize(("path", "change", "reason"), BAD.values(), ids=BAD.keys())
def test_what_is_no_record_is_named_and_moved(
    store: Store, path: str, change: Callable[[bytes], bytes], reason: str
) -> None:
    bad = change(store.files.read("trials/t1-a.parquet"))
    store.files.write(path, bad)
    before = whole_store(store)
    (finding,) = examine(store)
    assert finding.location == store.files.where(path)
    assert reason in finding.reason
    assert finding.remedy == "--fix moves it to set-aside/"
    assert whole_store(store) == before, "to look changes nothing"
    fix(store, [finding])
    assert examine(store) == []
    del before[path]
    assert whole_store(store) == before | {f"set-aside/{path}": bad}


def test_a_file_set_aside_before_is_kept_too(store: Store) -> None:
    for content in (b"one", b"two"):
        store.files.write("trials/t1-x.parquet", content)
        fix(store, examine(store))
    kept = [i.name for i in store.files.list("set-aside/trials")]
    assert {store.files.read(f"set-aside/trials/{name}") for name in kept} == {b"one", b"two"}


def test_a_file_of_a_newer_version_is_named_and_never_moved(store: Store) -> None:
    good = store.files.read("trials/t1-a.parquet")
    for path in ("trials/t1-x.parquet", "trials/packs/0af.parquet"):
        store.files.write(path, newer(good))
    before = whole_store(store)
    findings = examine(store)
    assert [f.remedy for f in findings] == ["--fix leaves it as it is"] * 2
    assert all("newer lp-sweep" in f.reason for f in findings)
    fix(store, findings)
    assert whole_store(store) == before


def test_a_copy_is_moved_and_what_only_it_has_gets_its_name(store: Store) -> None:
    store.put("trials", "copy", [trial("t1-b", 0.125), trial("t1-y"), trial("t1-z")])
    (named,) = store.read_all("trials").unreadable
    (finding,) = examine(store)
    assert finding.reason == named.reason == "its name is not that of its content, t1-b, t1-y, t1-z"
    fix(store, [finding])
    assert store.names("trials") == {"t1-a", "t1-b", "t1-y", "t1-z"}
    assert store.read("trials", "t1-b")[0]["last"] == 0.5, "what was there stays"
    assert len(store.read_all("trials").rows) == 4
    assert examine(store) == []


def test_status_counts_what_can_be_read_and_names_the_rest(store: Store) -> None:
    ids = [f"t1-{name}" for name in "abd"]
    cells = [cell(number=i, trial_id=id_, kept_layers=[1, 2]) for i, id_ in enumerate(ids)]
    store.put("predictions", "t1-d", [])
    store.put("sweeps", "demo", cells)
    content = bytearray(store.content("trials/t1-b.parquet"))
    content[len(content) // 3] ^= 1  # its end is whole
    store.write("trials/t1-b.parquet", bytes(content))
    store.put("trials", "t1-d", [trial("t1-a")])
    states = sweep_states(store, "demo")
    (demo,) = states.sweeps
    assert (demo["trials_done"], demo["trials_pending"]) == (1, 2)
    assert [item.location.rpartition("/")[2] for item in states.unreadable] == [
        "t1-b.parquet",
        "t1-d.parquet",
    ]


def test_a_damaged_pack_is_salvaged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 5)
    for i in range(40):
        store.put("predictions", f"t1-{i:05d}", [])
        store.put("trials", f"t1-{i:05d}", [trial(f"t1-{i:05d}", i)])
    compact(store, settle=0)
    (path,) = store.contents("trials").packs
    content = bytearray(store.files.read(path))
    content[5000:5040] = b"\xaa" * 40
    store.files.write(path, bytes(content))
    kept = store.read_all("trials").rows
    assert 30 < len(kept) < 42
    (finding,) = examine(store)
    assert "rows can't be read" in finding.reason
    fix(store, [finding])
    assert examine(Store(store.location)) == []
    assert Store(store.location).read_all("trials").rows == kept
    assert store.files.read(f"set-aside/{path}") == bytes(content)


def test_a_record_that_was_mended_meanwhile_stays(store: Store) -> None:
    store.files.write("trials/t1-x.parquet", b"torn")
    store.files.write("trials/t1-y.parquet", b"torn")
    findings = examine(store)
    store.put("trials", "t1-x", [trial("t1-x")])  # a run did the work again
    store.delete("trials", "t1-y.parquet")
    fix(store, findings)
    assert store.read("trials", "t1-x")
    assert examine(store) == []


def test_checkpoints_of_finished_trials_go(store: Store) -> None:
    compact(store, settle=0)
    for name in ("t1-a", "t1-c", "t1-torn"):
        store.put_text("checkpoints", f"{name}.safetensors", "state")
    store.files.write("trials/t1-torn.parquet", b"torn")
    _, finding = examine(store)
    assert finding.location.endswith("t1-a.safetensors")
    assert finding.remedy == "--fix deletes it"
    fix(store, [finding])
    left = [info.name for info in store.listing("checkpoints")]
    assert left == ["t1-c.safetensors", "t1-torn.safetensors"]


def test_what_a_stopped_write_left_is_deleted_after_an_hour(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    for table in ("trials", "trials/packs", "checkpoints"):
        (tmp_path / table).mkdir(exist_ok=True)
        for name in (".old.tmp", ".young.tmp", ".DS_Store", "._t1-a.parquet"):
            (tmp_path / table / name).write_bytes(b"x")
            if "young" not in name:
                two_hours_ago = time.time() - 7200
                os.utime(tmp_path / table / name, (two_hours_ago, two_hours_ago))
    findings = examine(store)
    assert [Path(f.location).name for f in findings] == [".old.tmp"] * 3
    fix(store, findings)
    assert len([path for path in tmp_path.rglob(".*") if path.is_file()]) == 9


def test_networks_of_before_today(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves are deleted; whole ones that nothing came to use are named."""
    for path in ("t1-half/a", "t1-half/kept-by.txt", "t1-whole/a", "t1-whole/config.json"):
        store.files.write(f"weights/{path}", b"{}")
    for trial_id, by in (("t1-a", "need"), ("t1-b", "need, best"), ("t1-c", "best")):
        store.files.write(f"weights/{trial_id}/config.json", b"{}")
        store.files.write(f"weights/{trial_id}/kept-by.txt", by.encode())
    assert examine(store) == []
    monkeypatch.setattr(doctor, "_DAY", -60.0)
    found = examine(store)
    needed = ["weights/t1-a", "weights/t1-b"]
    halves = ["weights/t1-half/a", "weights/t1-half/kept-by.txt"]
    assert [finding.path for finding in found] == needed + halves
    assert "for trials that go on from it" in found[0].reason
    fix(store, found)
    assert [finding.path for finding in examine(store)] == needed
    assert len(store.listing("weights/t1-whole")) == 2
