"""What a store promises, on real Parquet files."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lp_sweep.storage import store as store_module
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES
from lp_sweep.storage.store import Store

ROW: dict[str, Any] = {"trial_id": "t1-a", "model": "bert", "kept_layers": [1, 2], "last": 0.5}
HOSTILE = ["a 0", "a'; echo foo", 'a "b"', "ünï 🙂", "100%", "a%20b", "s3:", "a\\b", "k=v", "a\nb"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", create=True)


def everything(store: Store) -> set[str]:
    return {path.name for path in store.root.rglob("*") if path.is_file()}


# -- writing


@pytest.mark.parametrize("table", TABLES)
def test_every_table_comes_back(store: Store, table: str) -> None:
    key = TABLES[table].names[0]
    store.put(table, "one", [{key: "x"}])
    store.put(table, "two", TABLES[table].empty_table())
    assert store.names(table) == {"one", "two"}
    assert store.has(table, "one")
    assert not store.has(table, "three")
    assert [row[key] for row in store.read(table, "one")] == ["x"]
    assert store.read(table, "two") == []
    listing = store.read_all(table)
    assert listing.rows.schema == TABLES[table]
    assert listing.rows.num_rows == 1
    assert listing.unreadable == []


def test_putting_twice_is_harmless(store: Store) -> None:
    first = store.put("trials", "t1-a", [ROW]).read_bytes()
    assert store.put("trials", "t1-a", [ROW]).read_bytes() == first
    store.put("trials", "t1-a", [{**ROW, "last": 0.75}])
    assert [row["last"] for row in store.read("trials", "t1-a")] == [0.75]
    assert everything(store) == {"t1-a.parquet"}


def test_a_failing_write_leaves_what_was_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("trials", "t1-a", [ROW])

    def full(rows: pa.Table, stream: Any, **_: Any) -> None:
        stream.write(b"PAR1 half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.pq, "write_table", full)
    with pytest.raises(StoreError, match=r"can't write .*t1-a\.parquet: .*No space left"):
        store.put("trials", "t1-a", [{**ROW, "last": 0.75}])
    with pytest.raises(StoreError, match="No space left"):
        store.put("trials", "t1-b", [ROW])
    assert store.names("trials") == {"t1-a"}
    assert store.read("trials", "t1-a")[0]["last"] == 0.5
    assert everything(store) == {"t1-a.parquet"}


def test_a_value_of_the_wrong_type_leaves_what_was_there(store: Store) -> None:
    store.put("trials", "t1-a", [ROW])
    with pytest.raises(pa.ArrowException, match="seven"):
        store.put("trials", "t1-a", [{**ROW, "seed": "seven"}])
    assert store.read("trials", "t1-a")[0]["last"] == 0.5
    assert everything(store) == {"t1-a.parquet"}


def test_a_file_half_written_is_never_listed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    write = pq.write_table

    def look_while_writing(rows: pa.Table, stream: Any, **options: Any) -> None:
        write(rows, stream, **options)
        seen.append(store.names("trials"))
        assert len(everything(store)) == 1  # the temporary file is there
        assert store.read_all("trials").unreadable == []

    monkeypatch.setattr(store_module.pq, "write_table", look_while_writing)
    store.put("trials", "t1-a", [ROW])
    assert seen == [set()]


def _put_many(root: str, value: float) -> None:
    store = Store(root)
    for _ in range(40):
        store.put("trials", "t1-a", [{**ROW, "last": value}] * 50)


def test_two_processes_write_one_record_at_once(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_put_many, args=(str(store.root), v)) for v in (0.25, 0.75)]
    store.put("trials", "t1-a", [ROW])
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert len({row["last"] for row in store.read("trials", "t1-a")}) == 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert [row["last"] for row in store.read("trials", "t1-a")] in ([0.25] * 50, [0.75] * 50)
    assert everything(store) == {"t1-a.parquet"}


def test_text_is_published_whole_beside_the_records(store: Store) -> None:
    path = store.put_text("sweeps", "demo.yaml", "name: ünï\n")
    assert path.read_text(encoding="utf-8") == "name: ünï\n"
    assert store.names("sweeps") == set()
    assert everything(store) == {"demo.yaml"}


# -- names


def test_names_are_of_records_only(store: Store) -> None:
    store.put("trials", "t1-a", [ROW])
    for other in ("notes.txt", ".t1-b.parquet.0af.tmp", "._t1-a.parquet", "t1-c.parquet.tmp"):
        (store.root / "trials" / other).write_bytes(b"x")
    assert store.names("trials") == {"t1-a"}
    assert store.read_all("trials").unreadable == []


def test_names_of_a_table_that_is_not_there_yet(tmp_path: Path) -> None:
    assert Store(tmp_path).names("trials") == set()
    assert Store(tmp_path).read_all("trials").rows.num_rows == 0


def test_read_all_of_some_names(store: Store) -> None:
    for name in ("c", "a", "b"):
        store.put("trials", name, [{"trial_id": name}])
    assert store.read_all("trials").rows["trial_id"].to_pylist() == ["a", "b", "c"]
    assert store.read_all("trials", ["c", "a"]).rows["trial_id"].to_pylist() == ["a", "c"]
    assert store.read_all("trials", []).rows.num_rows == 0


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_folder_names(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / name, create=True)
    store.put("trials", "t1-a", [ROW])
    assert Store(str(tmp_path / name)).names("trials") == {"t1-a"}
    assert store.read("trials", "t1-a")[0]["kept_layers"] == [1, 2]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_folder_name_that_is_not_text(tmp_path: Path) -> None:
    folder = tmp_path / b"\xff".decode("utf-8", "surrogateescape")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    store = Store(folder, create=True)
    store.put("trials", "t1-a", [ROW])
    assert store.read_all("trials").rows.num_rows == 1


# -- files that are no records


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def with_metadata(**changes: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        def change(rows: pa.Table) -> pa.Table:
            new = {f"lp_sweep.{key}".encode(): value for key, value in changes.items()}
            return rows.replace_schema_metadata({**rows.schema.metadata, **new})

        rewritten(path, change)

    return spoil


def truncate(share: float) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])

    return spoil


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def text_for_numbers(path: Path) -> None:
    def change(rows: pa.Table) -> pa.Table:
        index = rows.column_names.index("last")
        return rows.set_column(index, "last", pa.array(["a lot"] * len(rows)))

    rewritten(path, change)


SPOILT = [
    pytest.param(truncate(0.0), "not a whole Parquet file", id="zero-bytes"),
    pytest.param(truncate(0.5), "not a whole Parquet file", id="torn"),
    pytest.param(truncate(0.99), "not a whole Parquet file", id="torn-at-the-end"),
    pytest.param(lambda path: path.write_text("a,b\n1,2\n"), "not a whole Parquet", id="text"),
    pytest.param(become_folder, "not a whole Parquet file", id="folder"),
    pytest.param(text_for_numbers, "not a whole Parquet file.*a lot", id="other-types"),
    pytest.param(
        lambda path: pq.write_table(pa.table({"a": [1]}), path), "not written by", id="foreign"
    ),
    pytest.param(with_metadata(table="profiles"), "one of its trials", id="other-table"),
    pytest.param(with_metadata(table="ünï"), "not written by", id="strange-table"),
    pytest.param(with_metadata(schema_version="one"), "not written by", id="strange-version"),
    pytest.param(
        with_metadata(schema_version=str(SCHEMA_VERSION + 1)), "newer lp-sweep", id="newer"
    ),
]


@pytest.mark.parametrize(("spoil", "reason"), SPOILT)
def test_what_is_no_record_is_named_and_set_aside(
    store: Store, spoil: Callable[[Path], None], reason: str
) -> None:
    store.put("trials", "t1-good", [ROW])
    bad = store.put("trials", "t1-bad", [ROW])
    spoil(bad)
    listing = store.read_all("trials")
    assert listing.rows.num_rows == 1
    assert [item.path for item in listing.unreadable] == [bad]
    with pytest.raises(StoreError, match=rf"can't read .*t1-bad\.parquet: .*{reason}"):
        store.read("trials", "t1-bad")


def test_a_missing_record(store: Store) -> None:
    with pytest.raises(StoreError, match=r"can't read .*t1-a\.parquet: .*No such file"):
        store.read("trials", "t1-a")


def test_columns_that_an_older_version_did_not_write_are_null(store: Store) -> None:
    path = store.put("trials", "t1-old", [ROW])
    rewritten(path, lambda rows: rows.drop_columns(["best", "versions"]))
    store.put("trials", "t1-new", [{**ROW, "best": 0.75}])
    rows = store.read_all("trials").rows
    assert rows.schema == TABLES["trials"]
    assert rows["best"].to_pylist() == [0.75, None]
    assert rows["last"].to_pylist() == [0.5, 0.5]


def test_order_and_width_of_an_older_version_do_not_matter(store: Store) -> None:
    path = store.put("trials", "t1-old", [{**ROW, "seed": 7}])

    def older(rows: pa.Table) -> pa.Table:
        index = rows.column_names.index("seed")
        rows = rows.set_column(index, "seed", rows["seed"].cast(pa.int32()))
        return rows.select(list(reversed(rows.column_names))).append_column("gone", [["x"]])

    rewritten(path, older)
    assert store.read("trials", "t1-old")[0]["seed"] == 7
    assert store.read_all("trials").rows.schema == TABLES["trials"]


# -- places


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store at .*/nowhere.*LP_SWEEP_STORE"):
        Store(tmp_path / "nowhere")


def test_a_file_in_place_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="no store at"):
        Store(tmp_path / "file")
    for place in (tmp_path / "file", tmp_path / "file" / "store"):
        with pytest.raises(StoreError, match=r"can't make a store at .*file"):
            Store(place, create=True)


def test_a_file_in_place_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("")
    with pytest.raises(StoreError, match=r"can't write .*trials/t1-a\.parquet"):
        Store(tmp_path).put("trials", "t1-a", [ROW])
    assert Store(tmp_path).names("trials") == set()
