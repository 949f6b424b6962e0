"""A store that goes away or is full: a finished trial waits on its node, and arrives."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.spool import Outbox, Record, Spool, SpoolResult, flush
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker import run as running
from tests.support.fake_records import FakeSweep, trial_record
from tests.support.plain_jobs import execute
from tests.support.stores import fill_disk
from tests.support.toyworld import jobs

SHORT = ("recipe.epochs=1", "recipe.limit_train=32")


def job_of(world: Path, tmp_path: Path, *overrides: str, **settings: Any) -> dict[str, Any]:
    return {**jobs(world, "k=2", *SHORT, *overrides, cache=tmp_path / "cache")[0], **settings}


def waiting(job: dict[str, Any], store: Store) -> list[str]:
    """The files in the node's spool, as `table/name`."""
    root = Spool(Path(job["cache_dir"]), store.location).root
    return sorted(str(path.relative_to(root)) for path in root.glob("*/*") if path.is_file())


def both_files(job: dict[str, Any]) -> list[str]:
    return [f"predictions/{job['id']}.parquet", f"trials/{job['id']}.parquet"]


def never(*args: Any) -> Any:
    raise AssertionError("it is trained again")


# -- a store that is away


def test_a_record_waits_for_a_store_that_went_away(
    world: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, away = job_of(world, tmp_path), tmp_path / "away"
    train = running.run_trial

    def vanish(*args: Any) -> Any:
        (tmp_path / "store").rename(away)  # while it trains
        return train(*args)

    with monkeypatch.context() as patch:
        patch.setattr(running, "run_trial", vanish)
        answer = execute(job, store.location)
    assert answer["status"] == "spooled"
    assert str(tmp_path / "store") in answer["message"]
    assert answer["last"] > 0
    assert waiting(job, store) == both_files(job)
    assert not (tmp_path / "store").exists()  # no second store begun in its place

    monkeypatch.setattr(running, "run_trial", never)
    assert execute(job, store.location)["status"] == "spooled"  # still away
    away.rename(tmp_path / "store")
    assert flush(store, job["cache_dir"]) == SpoolResult(sent=2, waiting=0)
    assert waiting(job, store) == []
    assert store.names("trials") == store.names("predictions") == {job["id"]}
    assert store.read("trials", job["id"])[0]["last"] == answer["last"]
    assert flush(store, job["cache_dir"]) == SpoolResult(sent=0, waiting=0)


def test_what_the_spool_has_is_sent_and_not_done_again(
    world: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was lost after it had spooled; or the store was away from the start."""
    job = job_of(world, tmp_path)
    (tmp_path / "store").rename(tmp_path / "away")
    first = execute(job, store.location)
    assert first["status"] == "spooled"
    outbox = Outbox(store.location, Path(job["cache_dir"]))
    assert outbox.find("trials", job["id"])
    assert "no store at" in (outbox.refusal or "")
    assert outbox.find("trials", "t1-other") is None
    (tmp_path / "away").rename(tmp_path / "store")
    monkeypatch.setattr(running, "run_trial", never)
    answer = execute(job, store.location)
    assert answer == {key: value for key, value in first.items() if key != "message"} | {
        "status": "done"
    }
    assert store.names("trials") == {job["id"]}
    assert waiting(job, store) == []


def test_with_patience_it_waits_for_the_store(world: Path, tmp_path: Path, store: Store) -> None:
    job = job_of(world, tmp_path, store_patience=60.0)
    (tmp_path / "store").rename(tmp_path / "away")
    back = threading.Timer(0.5, (tmp_path / "away").rename, [tmp_path / "store"])
    back.start()
    assert execute(job, store.location)["status"] == "done"
    back.join()
    assert store.names("trials") == {job["id"]}
    assert waiting(job, store) == []


def test_a_failure_waits_too(world: Path, tmp_path: Path, store: Store) -> None:
    job = job_of(world, tmp_path, "recipe.lr=1e30")
    (tmp_path / "store").rename(tmp_path / "away")
    assert execute(job, store.location)["error_type"] == "diverged"
    (tmp_path / "away").rename(tmp_path / "store")
    assert flush(store, job["cache_dir"]) == SpoolResult(sent=1, waiting=0)
    assert store.read_all("attempts").rows["trial_id"].to_pylist() == [job["id"]]


# -- a worker's outbox


def records(folder: Path, seed: int = 0) -> list[Record]:
    """The predictions and the record of a trial."""
    row = FakeSweep(folder / "unused").cell(k=2, seed=seed)
    answer = {"example": 0, "label": 1.0, "prediction": 1.0, "scores": [0.5]}
    predictions = {"trial_id": row["trial_id"], "split": "validation", **answer}
    return [
        Record("predictions", row["trial_id"], [predictions]),
        Record("trials", row["trial_id"], [trial_record(row, 50.0 + seed)]),
    ]


def fill(folder: Path, store: Store, count: int = 1) -> list[str]:
    """So many trials in the spool of `folder/cache`."""
    spool, names = Spool(folder / "cache", store.location), []
    for seed in range(count):
        made = records(folder, seed)
        assert all(map(spool.put, made))
        names.append(made[0].name)
    return names


def test_the_next_trial_brings_what_waits(tmp_path: Path, store: Store) -> None:
    (name,) = fill(tmp_path, store)
    for path in Spool(tmp_path / "cache", store.location).root.glob("*/*"):
        os.utime(path, (0, 0))  # younger ones may be on their way by their own worker
    mine = records(tmp_path, seed=7)
    assert Outbox(store.location, tmp_path / "cache").send(*mine)
    assert store.names("trials") == {name, mine[0].name}


def test_a_full_store(tmp_path: Path, small_disk: Path) -> None:
    store, mine = Store(small_disk / "store", create=True), records(tmp_path)
    fill_disk(small_disk / "filler")
    outbox = Outbox(store.location, tmp_path / "cache")
    assert not outbox.send(*mine)
    assert "No space left on device" in str(outbox.refusal)
    assert flush(store, tmp_path / "cache") == SpoolResult(sent=0, waiting=2)
    (small_disk / "filler").unlink()
    assert flush(store, tmp_path / "cache") == SpoolResult(sent=2, waiting=0)
    assert store.names("trials") == {mine[0].name}


def test_without_a_spool_the_store_is_tried_all_the_same(tmp_path: Path, store: Store) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "spool").write_text("in the way", encoding="utf-8")
    mine, outbox = records(tmp_path), Outbox(store.location, tmp_path / "cache")
    with pytest.warns(UserWarning, match="can't write to this node's spool"):
        assert outbox.send(*mine)
    assert store.names("trials") == {mine[0].name}
    (tmp_path / "store").rename(tmp_path / "away")
    with (
        pytest.warns(UserWarning, match="can't write to this node's spool"),
        pytest.raises(StoreError, match=f"the record of {mine[0].name} is lost"),
    ):
        outbox.send(*mine)


# -- flush


@pytest.mark.slow
def test_two_processes_may_flush_at_once(tmp_path: Path, store: Store) -> None:
    names = fill(tmp_path, store, 40)
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=flush, args=(store, tmp_path / "cache")) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        assert process.exitcode == 0
    assert store.names("trials") == store.names("predictions") == set(names)
    listing = store.read_all("trials")
    assert not listing.unreadable
    assert sorted(listing.rows["last"].to_pylist()) == [(50 + seed) / 100 for seed in range(40)]
    assert flush(store, tmp_path / "cache") == SpoolResult(0, 0)


def test_a_torn_spool_file_is_set_aside_and_stops_nothing(tmp_path: Path, store: Store) -> None:
    names = fill(tmp_path, store, 3)
    torn = Spool(tmp_path / "cache", store.location).root / "trials" / f"{names[1]}.parquet"
    torn.write_bytes(torn.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="set aside .*: not a whole Parquet file"):
        assert flush(store, tmp_path / "cache") == SpoolResult(sent=5, waiting=0)
    assert store.names("trials") == {names[0], names[2]}
    assert [path.name for path in (torn.parent.parent / "set-aside").iterdir()] == [
        f"trials.{names[1]}.parquet"
    ]


def test_a_record_that_the_store_has_is_not_written_again(tmp_path: Path, store: Store) -> None:
    name, torn = fill(tmp_path, store, 2)
    kept = trial_record(FakeSweep(tmp_path / "unused").cell(k=2, seed=0), 99.0)
    store.put("trials", name, [kept])
    (tmp_path / "store" / "trials" / f"{torn}.parquet").write_bytes(b"PAR1")
    assert flush(store, tmp_path / "cache") == SpoolResult(sent=4, waiting=0)
    assert store.read("trials", name)[0]["last"] == 0.99
    assert store.read("trials", torn)[0]["last"] == 0.51, "a torn one is replaced"


def test_predictions_go_first_and_the_checkpoint_goes(tmp_path: Path, store: Store) -> None:
    """A flush that breaks off leaves no record without its predictions."""
    (name,) = fill(tmp_path, store)
    (tmp_path / "file").write_bytes(b"x")
    store.put_file("checkpoints", f"{name}.safetensors", tmp_path / "file")
    order: list[str] = []
    put = store.put

    def spy(table: str, *rest: Any) -> Any:
        order.append(table)
        return put(table, *rest)

    store.put = spy  # type: ignore[method-assign]
    flush(store, tmp_path / "cache")
    assert order == ["predictions", "trials"]
    assert store.listing("checkpoints") == []


def test_another_store_and_new_files_are_left_alone(tmp_path: Path, store: Store) -> None:
    fill(tmp_path, store)
    other = Store(tmp_path / "other", create=True)
    assert flush(other, tmp_path / "cache") == SpoolResult(sent=0, waiting=0)
    assert flush(store, tmp_path / "cache", older_than=60.0) == SpoolResult(sent=0, waiting=2)
