"""A sweep whose store is full, away for a while, or refuses requests: nothing is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lp_sweep.storage.store import Store
from tests.support.faults import assert_equal, sweep, wait_for
from tests.support.program import run as command_line
from tests.support.s3proxy import breaking_proxy
from tests.support.s3server import BUCKET, Server, running_server
from tests.support.stores import fill_disk, mounted
from tests.support.toyworld import RECIPE, save_world

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    save_world(
        folder,
        seeds=[1, 2],
        strategies=[{"name": "top", "k": [0, 1, 2, 3]}],
        recipe=RECIPE | {"epochs": 2},
    )
    with sweep(folder, "sweep.yaml", "--store", "undisturbed") as run:
        assert run.wait() == 0, run.text()
    return folder


def finished(store: Path) -> set[str]:
    return {path.name for path in store.glob("trials/t*.parquet")}


def test_a_store_that_goes_away_for_a_while(world: Path, tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    with sweep(world, "sweep.yaml", "--store", store, LP_SWEEP_STORE_PATIENCE="120") as run:
        wait_for(lambda: len(finished(store)) >= 2, f"two records: {run.text()}")
        store.rename(away)
        with pytest.raises(subprocess.TimeoutExpired):
            run.process.wait(6)
        away.rename(store)
        assert run.wait() == 0, run.text()
    assert "Traceback (most" not in run.text()
    assert_equal(Store(store), Store(world / "undisturbed"))


def test_a_full_disk_stops_the_run_and_what_was_trained_waits(world: Path, tmp_path: Path) -> None:
    """The disk is full after two records; finished trials wait in the node's spool, and the next
    run brings them to the store without training them again."""
    disk = tmp_path / "disk"
    with mounted(disk, "220m"):  # little more than what a run wants to see free
        store, filler = disk / "store", disk / "filler"
        with sweep(world, "sweep.yaml", "--store", store, LP_SWEEP_STORE_PATIENCE="2") as run:
            wait_for(lambda: len(finished(store)) >= 2, f"two records: {run.text()}")
            fill_disk(filler)
            assert run.wait() == 3, run.text()
        assert "No space left on device" in run.text()
        assert "Fix the store, then go on: lp-sweep run sweep.yaml" in run.text()
        assert "Traceback (most" not in run.text()
        before = finished(store)
        assert Store(store).read_all("trials").unreadable == []
        waiting = list((world / "cache" / "spool").glob("*/trials/t*.parquet"))
        assert waiting
        filler.unlink()
        with sweep(world, "sweep.yaml", "--store", store) as run:
            assert run.wait() == 0, run.text()
        trained = len(finished(world / "undisturbed")) - len(before) - len(waiting)
        told = f"{trained} done in this run" if trained else "nothing was missing"
        assert told in run.text()
        assert not list((world / "cache" / "spool").glob("*/trials/t*.parquet"))
        assert_equal(Store(store), Store(world / "undisturbed"))


def test_a_sweep_on_object_storage(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real S3 server on loopback: run, killed, gone on, status, SQL, compacted, SQL again."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key-of-the-test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    server = Server(tmp_path / "server.txt")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    store = f"s3://{BUCKET}/sweeps/mine"
    try:
        with sweep(world, "sweep.yaml", "--store", store) as run:
            wait_for(lambda: run.text().count("] done ") >= 2, f"two records: {run.text()}")
            run.kill()
        with sweep(world, "sweep.yaml", "--store", store) as run:
            assert run.wait() == 0, run.text()
        assert "secret-of-the-test" not in run.text()
        assert_equal(Store(store), Store(world / "undisturbed"))

        def ask(*arguments: str) -> str:
            return command_line(*arguments, "--store", store, cwd=tmp_path).stdout

        sql = "SELECT count(*) AS n, round(sum(last), 6) AS total FROM trials"
        before = ask("query", sql, "--json")
        assert "files before" in ask("compact")
        assert ask("query", sql, "--json") == before
        assert ask("doctor").strip() == f"{store} is in order"
        with sweep(world, "sweep.yaml", "--store", store) as run:
            assert run.wait() == 0, run.text()
        assert "nothing was missing" in run.text()
    finally:
        server.kill()


def test_a_sweep_through_a_server_that_breaks_every_fifth_request(
    world: Path, tmp_path: Path
) -> None:
    with (
        running_server(tmp_path / "server.txt") as server,
        breaking_proxy(server.endpoint) as (host, breaking),
    ):
        there = f"s3://{BUCKET}/sweeps/mine"
        store = f"{there}?endpoint_override={host}&scheme=http"
        with sweep(world, "sweep.yaml", "--store", store, LP_SWEEP_STORE_PATIENCE="120") as run:
            assert run.wait() == 0, run.text()
        assert "Traceback (most" not in run.text()
        assert sum(breaking.counts.values()) - breaking.counts["passed"] > 20
        direct = server.endpoint.removeprefix("http://")
        sound = Store(f"{there}?endpoint_override={direct}&scheme=http")
        assert_equal(sound, Store(world / "undisturbed"))
