"""`doctor` names what is not as it should be, and `fix` puts it right without deleting data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lp_sweep.orchestrator.watch.states import sweep_states
from lp_sweep.storage import parquet
from lp_sweep.storage.doctor import examine, set_aside
from lp_sweep.storage.packs import compact
from lp_sweep.storage.schema import TABLES, TRIALS
from lp_sweep.storage.store import Store
from tests.support.program import sweep
from tests.support.stores import cell, newer, predictions, trial


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
    compact(store)
    before = whole_store(store)
    assert examine(store) == []
    set_aside(store, [])
    assert whole_store(store) == before


BAD: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "a-copy": ("trials/copy.parquet", bytes, "its name is not that of its content, t1-a"),
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
    assert whole_store(store) == before, "to look changes nothing"
    set_aside(store, [finding])
    assert examine(store) == []
    del before[path]
    assert whole_store(store) == before | {f"set-aside/{path}": bad}


def test_a_file_set_aside_before_is_kept_too(store: Store) -> None:
    for content in (b"one", b"two"):
        store.files.write("trials/t1-x.parquet", content)
        set_aside(store, examine(store))
    kept = [i.name for i in store.files.list("set-aside/trials")]
    assert {store.files.read(f"set-aside/trials/{name}") for name in kept} == {b"one", b"two"}


def test_a_file_of_a_newer_version_is_named_and_never_moved(store: Store) -> None:
    good = store.files.read("trials/t1-a.parquet")
    for path in ("trials/t1-x.parquet", "trials/packs/0af.parquet"):
        store.files.write(path, newer(good))
    before = whole_store(store)
    findings = examine(store)
    assert [f.newer for f in findings] == [True, True]
    assert all("newer lp-sweep" in f.reason for f in findings)
    set_aside(store, findings)
    assert whole_store(store) == before


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


def test_a_record_that_was_mended_meanwhile_stays(store: Store) -> None:
    store.files.write("trials/t1-x.parquet", b"torn")
    store.files.write("trials/t1-y.parquet", b"torn")
    findings = examine(store)
    store.put("trials", "t1-x", [trial("t1-x")])  # a run did the work again
    store.delete("trials", "t1-y.parquet")
    set_aside(store, findings)
    assert store.read("trials", "t1-x")
    assert examine(store) == []


def test_the_rest_of_a_pack_with_a_record_that_can_not_be_true_moves(store: Store) -> None:
    store.put("predictions", "t1-c", [])
    rows = pa.Table.from_pylist([trial("t1-c"), trial("t1-b") | {"kept_layers": None}], TRIALS)
    path = "trials/packs/0af.parquet"
    store.write(path, parquet.encode_pack("trials", rows))
    (finding,) = examine(store)
    assert finding.reason == "t1-b: it has no kept_layers"
    set_aside(store, [finding])
    assert examine(store) == []
    assert store.names("trials") == {"t1-a", "t1-b", "t1-c"}
    assert len(store.contents("trials").packs) == 1
    assert store.files.size(f"set-aside/{path}")


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
