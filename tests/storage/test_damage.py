"""No damage to a file's bytes makes a store give rows that were never written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from lp_sweep.storage import parquet
from lp_sweep.storage.parquet import NotARecordError
from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact
from tests.support.fake_records import FakeSweep
from tests.support.fuzzing import run
from tests.support.stores import trial


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A record with a value in nearly every column."""
    fake = FakeSweep(tmp_path_factory.mktemp("store"))
    name = fake.cell(k=3, score=91.25)["trial_id"]
    return fake.store.files.read(f"trials/{name}.parquet")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str, bytes]:
    """A store with nothing but a pack of 40 trials."""
    store = Store(tmp_path_factory.mktemp("packed"), create=True)
    for i in range(40):
        store.put("trials", f"t1-{i:05d}", [trial(f"t1-{i:05d}", i)])
    compact(store)
    (path,) = store.packs("trials")
    return store, path, store.files.read(path)


def flipped(content: bytes, place: int, mask: int, length: int) -> bytes:
    start = place % len(content)
    part = bytes(byte ^ mask for byte in content[start : start + length])
    return content[:start] + part + content[start + length :]


def without(content: bytes, place: int) -> bytes:
    return content[:place] + content[place + 1 :]


DAMAGE = st.one_of(
    st.builds(
        lambda place, mask, length: lambda content: flipped(content, place, mask, length),
        st.integers(0, 2**20),
        st.integers(1, 255),
        st.sampled_from([1, 1, 1, 2, 64, 512]),
    ),
    st.integers(0, 2**20).map(lambda n: lambda content: content[: n % len(content)]),
    st.integers(0, 2**20).map(lambda n: lambda content: without(content, n % len(content))),
    st.binary(min_size=1, max_size=40).map(lambda more: lambda content: content + more),
)


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(1, id="each byte", marks=pytest.mark.slow),
        pytest.param(43, id="every 43rd"),
    ],
)
def test_every_single_flipped_bit_is_noticed(record: bytes, every: int) -> None:
    for place in range(0, len(record), every):
        with pytest.raises(NotARecordError):
            parquet.decode(flipped(record, place, 1 << place % 8, 1), "trials")


@pytest.mark.parametrize(
    "examples",
    [pytest.param(40, id="everyday"), pytest.param(1000, id="long", marks=pytest.mark.slow)],
)
def test_a_damaged_pack_invents_no_row(pack: tuple[Store, str, bytes], examples: int) -> None:
    store, path, content = pack
    whole = parquet.decode(content, "trials").to_pylist()

    def law(change: Callable[[bytes], bytes]) -> None:
        store.files.write(path, change(content))
        fresh = Store(store.location)
        listing = fresh.read_all("trials")
        assert all(row in whole for row in listing.rows.to_pylist())
        assert all("\n" not in item.reason for item in listing.unreadable)
        assert listing.unreadable or listing.rows.to_pylist() == whole
        assert fresh.find("trials", "t1-00017") in (None, [whole[17]])
        fresh.names("trials")

    run(examples, law, change=DAMAGE)
