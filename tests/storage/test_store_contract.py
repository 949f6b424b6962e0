"""The promises of a store, the same for a folder and for a bucket of a real S3 server."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lp_sweep.storage import parquet
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store, is_store
from tests.support.fake_records import FakeSweep
from tests.support.stores import cell, everything, newer, place_of, trial

HOSTILE = ["a'; echo foo", "ünï 🙂", "a%20b", "s3:", "k=v", "a?b#c"]
LARGE = 11 * 2**20  # bytes: more than an object store takes in one request


@pytest.fixture(params=["folder", "s3"])
def location(request: pytest.FixtureRequest) -> str:
    return place_of(request)


@pytest.fixture
def store(location: str) -> Store:
    return Store(location, create=True)


# -- the place


def test_a_store_is_made_once_and_found_again(location: str) -> None:
    assert not is_store(location)
    with pytest.raises(StoreError, match=r"no store at .*--store .* makes one.*LP_SWEEP_STORE"):
        Store(location)
    Store(location, create=True).put("trials", "t1-a", [trial("t1-a")])
    assert is_store(location)
    assert Store(location, create=True).names("trials") == {"t1-a"}
    assert Store(Store(location).location).names("trials") == {"t1-a"}


def test_a_store_goes_to_another_process(store: Store) -> None:
    store.put("trials", "t1-a", [trial("t1-a")])
    text = pickle.dumps(Store(store.location, patience=3.0))
    other = pickle.loads(text)
    assert (other.location, other.patience) == (store.location, 3.0)
    assert other.names("trials") == {"t1-a"}
    assert b"testing" not in text, "no credential is in it"


# -- writing


def test_every_table_comes_back(store: Store) -> None:
    for table, schema in TABLES.items():
        key = schema.names[0]
        needed = cell() | {"kept_layers": [1], "last": 0.5, "split": "dev", "example": 0, "cell": 0}
        needed |= {"score": 0.5}
        row = needed | {"trial_id": "t1-a", key: "one"}
        store.put(table, "one", [{name: row.get(name) for name in schema.names}])
        assert store.names(table) == {"one"}
        assert [row[key] for row in store.read(table, "one")] == ["one"]
        listing = store.read_all(table)
        assert listing.rows.schema == schema
        assert (listing.rows.num_rows, listing.unreadable) == (1, [])


def test_a_record_without_a_row_is_named_where_it_must_have_one(store: Store) -> None:
    for table, schema in TABLES.items():
        store.put(table, "none", schema.empty_table())
        named = [problem.reason for problem in store.read_all(table).unreadable]
        may_be_empty = table in ("predictions", "sweeps", "earlier")
        assert named == ([] if may_be_empty else ["a record without a row"])
        assert store.find(table, "none") == ([] if may_be_empty else None)


def test_putting_twice_is_harmless_and_a_wrong_type_leaves_what_was_there(store: Store) -> None:
    store.put("trials", "t1-a", [trial("t1-a")])
    first = store.files.read("trials/t1-a.parquet")
    store.put("trials", "t1-a", [trial("t1-a")])
    assert store.files.read("trials/t1-a.parquet") == first
    store.put("trials", "t1-a", [trial("t1-a", 0.75)])
    with pytest.raises(pa.ArrowException, match="seven"):
        store.put("trials", "t1-a", [{**trial("t1-a"), "seed": "seven"}])
    assert [row["last"] for row in store.read("trials", "t1-a")] == [0.75]
    assert everything(store).keys() == {"trials/t1-a.parquet"}
    [row] = pq.read_table(pa.BufferReader(store.content("trials/t1-a.parquet"))).to_pylist()
    assert row["last"] == 0.75, "any Parquet reader opens it"


# -- names


def test_names_are_of_records_only(store: Store) -> None:
    store.put("trials", "t1-a", [trial("t1-a")])
    for other in ("notes.txt", ".t1-b.parquet.0af.tmp", "._t1-a.parquet", "t1-c.parquet.tmp"):
        store.files.write(f"trials/{other}", b"x")
    assert store.names("trials") == {"t1-a"}
    assert store.read_all("trials").unreadable == []


def test_read_all_of_some_names(store: Store) -> None:
    for name in ("c", "a", "b"):
        store.put("trials", name, [trial(name)])
    assert store.read_all("trials").rows["trial_id"].to_pylist() == ["a", "b", "c"]
    some = store.read_all("trials", ["c", "a", "missing"])
    assert some.rows["trial_id"].to_pylist() == ["a", "c"]
    assert some.unreadable == []
    assert store.read_all("trials", []).rows.num_rows == 0
    assert store.find("trials", "missing") is None
    with pytest.raises(StoreError, match=r"can't read .*missing\.parquet: No such file"):
        store.read("trials", "missing")


def test_hostile_names_of_records(store: Store) -> None:
    for name in HOSTILE:
        store.put("sweeps", name, [cell(name)])
        store.put_text("sweeps", f"{name}.yaml", "x: 1\n")
        assert store.names("sweeps") == {name}
        assert store.find("sweeps", name) == store.read("sweeps", name)
        assert store.read_text("sweeps", f"{name}.yaml") == "x: 1\n"
        store.delete("sweeps", f"{name}.parquet")
        assert store.names("sweeps") == set()


def test_a_name_that_is_a_path_is_refused(store: Store, tmp_path: Path) -> None:
    asked: list[Callable[[str], Any]] = [
        lambda name: store.put("trials", name, [trial("t1-a")]),
        lambda name: store.find("trials", name),
        lambda name: store.put_text("runs", name, "x"),
        lambda name: store.put_file("checkpoints", name, tmp_path),
        lambda name: store.fetch_file("checkpoints", name, tmp_path / "target"),
        lambda name: store.read_text("sweeps", name),
        lambda name: store.delete("runs", name),
    ]
    for name in ("", ".", "..", "../x", "a/b", "a\\b", ".hidden", "a\0b", "/etc/x"):
        for ask in asked:
            with pytest.raises(StoreError, match="Choose a plain name"):
                ask(name)
    for folder in ("../../..", "a/../../..", "..", "/", "", ".", "a//b", "a\\b", "a\0b"):
        with pytest.raises(StoreError, match="can't be a folder of a store"):
            store.listing(f"weights/{folder}")
        with pytest.raises(StoreError, match="can't be a folder of a store"):
            store.delete(f"weights/{folder}", "config.json")
    assert everything(store) == {}


# -- what is missing or unreadable


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Callable[[bytes], bytes]:
    def spoil(content: bytes) -> bytes:
        rows, sink = change(pq.read_table(pa.BufferReader(content))), pa.BufferOutputStream()
        with pq.ParquetWriter(sink, rows.schema) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"lp_sweep.sha256": "0" * 64})
        return parquet.signed(sink.getvalue().to_pybytes())

    return spoil


def text_for_numbers(rows: pa.Table) -> pa.Table:
    index = rows.column_names.index("last")
    return rows.set_column(index, "last", pa.array(["a lot"] * len(rows)))


NOT_WHOLE = "not a whole Parquet file"
SPOILT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "zero-bytes": (lambda b: b"", NOT_WHOLE),
    "torn": (lambda b: b[: len(b) // 2], NOT_WHOLE),
    "a-bit-flipped": (lambda b: b[:200] + bytes([b[200] ^ 1]) + b[201:], NOT_WHOLE),
    "other-types": (rewritten(text_for_numbers), f"{NOT_WHOLE}.*last"),
    "foreign": (rewritten(lambda rows: pa.table({"a": [1]})), "not written by lp-sweep"),
    "other-table": (lambda b: parquet.encode("profiles", [{}]), "one of its trials"),
    "newer": (newer, "newer lp-sweep"),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_what_is_no_record_is_named_and_never_in_the_way(store: Store, kind: str) -> None:
    spoil, reason = SPOILT[kind]
    for name in ("t1-good", "t1-bad"):
        store.put("trials", name, [trial(name)])
    path = "trials/t1-bad.parquet"
    store.write(path, spoil(store.content(path)))
    listing = store.read_all("trials")
    assert listing.rows["trial_id"].to_pylist() == ["t1-good"]
    assert [item.location for item in listing.unreadable] == [store.files.where(path)]
    assert store.find("trials", "t1-bad") is None
    with pytest.raises(StoreError, match=rf"can't read .*t1-bad\.parquet: .*{reason}"):
        store.read("trials", "t1-bad")
    assert ("t1-bad" in store.names("trials")) == (kind != "zero-bytes")
    store.put("trials", "t1-bad", [trial("t1-bad")])  # its work was done again
    assert store.find("trials", "t1-bad") is not None


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(1, id="each byte", marks=pytest.mark.slow),
        pytest.param(43, id="every 43rd"),
    ],
)
def test_every_single_flipped_bit_is_noticed(tmp_path: Path, every: int) -> None:
    """For a record with a value in nearly every column."""
    fake = FakeSweep(tmp_path)
    name = fake.cell(k=3, score=91.25)["trial_id"]
    content = bytearray(fake.store.files.read(f"trials/{name}.parquet"))
    for place in range(0, len(content), every):
        content[place] ^= 1 << place % 8
        with pytest.raises(parquet.NotARecordError):
            parquet.decode(bytes(content), "trials")
        content[place] ^= 1 << place % 8


def test_a_column_that_a_later_version_adds_is_null(store: Store) -> None:
    store.put("trials", "t1-old", [trial("t1-old")])
    path = "trials/t1-old.parquet"
    older = rewritten(lambda rows: rows.drop_columns(["best", "versions"]))
    store.files.write(path, older(store.files.read(path)))
    store.put("trials", "t1-new", [trial("t1-new") | {"best": 0.75}])
    rows = store.read_all("trials").rows
    assert rows.schema == TABLES["trials"]
    assert rows["best"].to_pylist() == [0.75, None]


# -- texts and other files


def test_texts_lie_beside_the_records(store: Store) -> None:
    assert (store.listing("runs"), store.texts("runs"), store.names("runs")) == ([], {}, set())
    store.put_text("runs", "b.json", "")
    store.put_text("runs", "a.json", '{"ü": 1}')
    store.put_text("runs", "c.yaml", "name: ünï\n")
    store.files.write("runs/bad.json", b"\xff{")
    store.files.write("runs/.being-written.tmp", b"x")
    assert store.read_text("runs", "c.yaml") == "name: ünï\n"
    assert store.read_text("runs", "other.yaml") is None
    assert store.names("runs") == set()
    assert store.texts("runs") == {"a.json": '{"ü": 1}', "b.json": "", "bad.json": "\ufffd{"}
    infos = store.listing("runs")
    sizes = [("a.json", 9), ("b.json", 0), ("bad.json", 2), ("c.yaml", 12)]
    assert [(info.name, info.size) for info in infos] == sizes
    assert all(1_700_000_000 < info.modified < time.time() + 60 for info in infos)
    store.delete("runs", "a.json")
    store.delete("runs", "a.json")
    assert set(store.texts("runs")) == {"b.json", "bad.json"}


@pytest.mark.parametrize("size", [0, 5, LARGE], ids=["empty", "small", "large"])
def test_a_file_goes_there_and_comes_back(store: Store, tmp_path: Path, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "it's back"
    with pytest.raises(StoreError, match=r"can't write .*t1-a\.bin: .*No such file"):
        store.put_file("checkpoints", "t1-a.bin", source)
    source.write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    assert not store.fetch_file("checkpoints", "t1-a.bin", target)
    assert not target.exists()
    for _ in range(2):  # also over what is there
        store.put_file("checkpoints", "t1-a.bin", source)
    assert store.fetch_file("checkpoints", "t1-a.bin", target)
    assert target.read_bytes() == source.read_bytes()
    store.write("checkpoints/t1-b.bin", source.read_bytes())
    assert store.content("checkpoints/t1-b.bin") == source.read_bytes()
    assert everything(store).keys() == {"checkpoints/t1-a.bin", "checkpoints/t1-b.bin"}
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "it's back", "store"}


def test_a_file_moves_and_what_is_not_there_does_not(store: Store) -> None:
    store.put_text("runs", "a.json", "x")
    store.files.move("runs/a.json", "set-aside/runs/b.json")
    assert store.files.read("set-aside/runs/b.json") == b"x"
    assert store.listing("runs") == []
    with pytest.raises(FileNotFoundError):
        store.files.move("runs/a.json", "set-aside/runs/b.json")
    assert store.files.read("set-aside/runs/b.json") == b"x"
