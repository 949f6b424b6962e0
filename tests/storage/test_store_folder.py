"""A store in a folder under real faults: a full disk, no rights, a mount that goes, SIGKILL."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.store import Store, is_store
from lp_sweep.storage.upkeep import compact
from tests.support.stores import trial

HOSTILE = ["a 0", "a'; echo foo", 'a "b"', "ünï 🙂", "100%", "a%20b", "s3:", "a\\b", "k=v", "a\nb"]


def everything(store: Store) -> set[str]:
    return {path.name for path in Path(store.location).rglob("*") if path.is_file()}


# -- places


def test_hostile_folder_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_text = b"\xff".decode("utf-8", "surrogateescape")
    for name in [*HOSTILE, no_text]:
        store = Store(tmp_path / name, create=True)
        for trial_id in ("t1-a", "t1-b"):
            store.put("trials", trial_id, [trial(trial_id)])
        compact(store)
        assert Store(str(tmp_path / name)).names("trials") == {"t1-a", "t1-b"}
        assert Store(store.location).read("trials", "t1-a")[0]["kept_layers"] == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {*HOSTILE, no_text}
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store("~/store", create=True).location == str(tmp_path / "store")


def test_a_file_in_place_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for ask in (Store, is_store):
        with pytest.raises(StoreError, match=r"'.*file' as a store: it is a file.*folder"):
            ask(tmp_path / "file")
    for place in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreError, match=r"can't (use|make) .*(file.* a store|a store .*file)"):
            Store(place, create=True)


# -- a full disk, a read-only one


def test_a_full_disk_tears_nothing_and_goes_on_after(small_disk: Path) -> None:
    store = Store(small_disk / "store", create=True)
    names: list[str] = []

    def put_many() -> None:
        for i in range(200):
            store.put("trials", f"t1-{i:05d}", [trial(f"t1-{i:05d}", i)])
            names.append(f"t1-{i:05d}")

    with pytest.raises(StoreError, match=r"can't write .*\.parquet: .*No space left") as raised:
        put_many()
    assert 10 < len(names) < 100
    refused = f"t1-{len(names):05d}"
    assert refused in str(raised.value)
    assert everything(store) == {f"{name}.parquet" for name in names}
    assert len(store.read_all("trials").rows) == len(names)
    assert store.find("trials", refused) is None
    with pytest.raises(StoreError, match="No space left"):
        store.put("trials", names[0], [trial(names[0], 99.0)] * 5000)
    assert store.read("trials", names[0])[0]["last"] == 0, "what was there stays"
    with pytest.raises(StoreError, match="No space left"):
        compact(store)
    assert len(store.read_all("trials").rows) == len(names)
    for name in names[-5:]:
        store.delete("trials", f"{name}.parquet")
    store.put("trials", refused, [trial(refused, 1.0)])
    assert store.read("trials", refused)[0]["last"] == 1.0


def test_a_read_only_store_can_be_asked_and_refuses_writes(small_disk: Path) -> None:
    store = Store(small_disk / "store", create=True)
    for name in ("t1-a", "t1-b"):
        store.put("trials", name, [trial(name)])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    again = Store(store.location, create=True)
    assert len(again.read_all("trials").rows) == 2
    for refused in (
        lambda: again.put("trials", "t1-c", [trial("t1-c")]),
        lambda: again.put_text("runs", "x.json", ""),
        lambda: again.delete("trials", "t1-a.parquet"),
        lambda: compact(again),
    ):
        with pytest.raises(StoreError, match="Read-only file system"):
            refused()
    assert again.names("trials") == {"t1-a", "t1-b"}


# -- no rights: as another user, since root may do everything


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """With the rights of a user without any."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_path(tmp_path: Path) -> Iterator[Path]:
    """A folder that every user can reach."""
    changed = [p for p in (tmp_path, *tmp_path.parents) if not p.stat().st_mode & 0o001]
    modes = {path: path.stat().st_mode for path in changed}
    for path in changed:
        path.chmod(modes[path] | 0o055)
    yield tmp_path
    for path, mode in modes.items():
        path.chmod(mode)


def test_a_store_of_somebody_else(open_path: Path) -> None:
    """Its records can be read, but for one and a table; nothing can be written."""
    store = Store(open_path / "store", create=True)
    for name in ("t1-a", "t1-b"):
        store.put("trials", name, [trial(name)])
    Path(store.location, "trials", "t1-a.parquet").chmod(0o600)
    Path(store.location, "profiles").chmod(0o700)
    refused: dict[str, Callable[[], Any]] = {
        "read {}/trials": lambda: store.read("trials", "t1-a"),
        "read {}/profiles": lambda: store.names("profiles"),
        "write {}/trials/t1-c.parquet": lambda: store.put("trials", "t1-c", [trial("t1-c")]),
        "make a store at {}/new": lambda: Store(open_path / "store" / "new", create=True),
    }
    with as_nobody():
        listing = Store(store.location).read_all("trials")
        for what, ask in refused.items():
            said = re.escape(f"can't {what.format(store.location)}: ")
            with pytest.raises(StoreError, match=f"{said}.*Permission denied"):
                ask()
    assert listing.rows["trial_id"].to_pylist() == ["t1-b"]
    assert [item.location for item in listing.unreadable] == [
        store.files.where("trials/t1-a.parquet")
    ]
    assert everything(store) == {"t1-a.parquet", "t1-b.parquet"}


# -- a store that goes away


def test_a_store_that_is_gone_is_an_error_and_never_made_anew(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    store.put("trials", "t1-a", [trial("t1-a")])
    (tmp_path / "store").rename(tmp_path / "away")
    asked: dict[str, Any] = {
        "put": lambda: store.put("trials", "t1-b", [trial("t1-b")]),
        "names": lambda: store.names("trials"),
        "read_all": lambda: store.read_all("trials"),
        "find": lambda: store.find("trials", "t1-a"),
        "read": lambda: store.read("trials", "t1-a"),
        "texts": lambda: store.texts("runs"),
        "compact": lambda: compact(store),
    }
    for ask in asked.values():
        with pytest.raises(StoreError, match="is gone"):
            ask()
    assert not (tmp_path / "store").exists()
    (tmp_path / "store").mkdir()  # the empty mount point of a mount that is away
    for name, ask in asked.items():
        if name not in ("texts",):
            with pytest.raises(StoreError, match="was there and is gone"):
                ask()
    assert list((tmp_path / "store").iterdir()) == []


ASKED_WHILE_AWAY: dict[str, Callable[[Store], Any]] = {
    "put": lambda store: store.put("trials", "t1-b", [trial("t1-b")]) is None,
    "open": lambda store: Store(store.location, patience=15).names("trials") == {"t1-a"},
}


@pytest.mark.parametrize("ask", ASKED_WHILE_AWAY.values(), ids=ASKED_WHILE_AWAY.keys())
def test_a_store_that_comes_back_in_time(tmp_path: Path, ask: Callable[[Store], Any]) -> None:
    store = Store(tmp_path / "store", create=True, patience=15)
    store.put("trials", "t1-a", [trial("t1-a")])
    (tmp_path / "store").rename(tmp_path / "away")
    back = threading.Timer(0.5, (tmp_path / "away").rename, [tmp_path / "store"])
    back.start()
    begun = time.monotonic()
    assert ask(store)
    assert 0.4 < time.monotonic() - begun < 10
    back.join()


def test_patience_ends(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True, patience=0.5)
    (tmp_path / "store").rename(tmp_path / "away")
    begun = time.monotonic()
    with pytest.raises(StoreError, match="is gone"):
        store.asked_once().put("trials", "t1-a", [trial("t1-a")])
    assert time.monotonic() - begun < 0.4
    begun = time.monotonic()
    with pytest.raises(StoreError, match="is gone"):
        store.put("trials", "t1-a", [trial("t1-a")])
    assert 0.4 < time.monotonic() - begun < 4
    with pytest.raises(StoreError, match="no store at"):
        Store(tmp_path / "store", patience=0.3)
    begun = time.monotonic()
    assert Store(tmp_path / "away", patience=60).find("trials", "t1-no") is None
    assert time.monotonic() - begun < 2, "what is not there is not waited for"


def test_a_record_that_was_written_may_be_seen_late(tmp_path: Path) -> None:
    """As NFS shows what another machine wrote."""
    store = Store(tmp_path / "store", create=True, patience=15)
    arrives = threading.Timer(0.5, store.put, ["trials", "t1-a", [trial("t1-a")]])
    arrives.start()
    assert store.read("trials", "t1-a")[0]["trial_id"] == "t1-a"
    arrives.join()
    with pytest.raises(StoreError, match=r"t1-b\.parquet: No such file"):
        Store(tmp_path / "store", patience=0.3).read("trials", "t1-b")


# -- a look while a file is written


def test_half_written_files_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, create=True)
    sync, looked = os.fsync, []

    def look_while_writing(handle: int) -> None:
        sync(handle)
        if not looked:
            looked.append(everything(store))
            assert store.names("trials") == set()
            assert store.read_all("trials").unreadable == []
            assert store.listing("trials") == []

    monkeypatch.setattr(os, "fsync", look_while_writing)
    store.put("trials", "t1-a", [trial("t1-a")])
    assert len(looked[0]) == 1, "the temporary file was there, whole, before the rename"
    assert everything(store) == {"t1-a.parquet"}
