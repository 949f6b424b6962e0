"""`lp-sweep publish`: what others get of a store, read with their own libraries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest

from lp_sweep.orchestrator.export import publish as publishing
from lp_sweep.orchestrator.export.publish import publish
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.hubserver import Hub, serve
from tests.support.hubworld import World

SECRET = "hunter2-hunter2"
TOKEN = "hf_" + "a1" * 16


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One model of a folder, one of the hub; a command, a host and a traceback that stay here."""
    private = {"command": f"lp-sweep run --token {SECRET}", "host": SECRET}
    fake = FakeSweep(tmp_path / "store")
    for k, score in ((0, 92.0), (4, 91.0)):
        fake.cell(k=k, score=score, model=f"/home/{SECRET}/bert", **private)
    of_own = f"direct distill logits of /home/{SECRET}/bert"
    fake.cell(k=8, state="failed", model=f"/home/{SECRET}/bert", procedure=of_own)
    fingerprint = f"hub:org/small@{'0' * 40}"
    fake.cell(k=0, score=80.0, model="org/small", model_fingerprint=fingerprint, **private)
    return fake.publish()


def test_a_folder_is_a_data_set(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "results"
    done = publish(store, str(out))
    assert (done.to, done.cells, done.trials) == (str(out), 4, 3)
    cache = str(tmp_path / "cache")
    cells = datasets.load_dataset(str(out), split="train", cache_dir=cache)
    assert [(row["model"], row["k"], row["score"]) for row in cells if row["state"] == "done"] == [
        ("bert", 0, 92.0),
        ("bert", 4, 91.0),
        ("org/small", 0, 80.0),
    ]
    assert cells["change"][1] == -1
    assert set(cells["procedure"]) == {"direct", "direct distill logits of bert"}
    trials = datasets.load_dataset(str(out), "trials", split="train", cache_dir=cache)
    assert set(trials["trial_id"]) == {i for i in cells["trial_id"] if i} - {
        row["trial_id"] for row in cells if row["state"] == "failed"
    }
    assert trials["epoch_metrics"][0]


def test_nothing_of_a_person_or_a_machine_is_in_it(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "results"
    publish(store, str(out))
    told = [*out.rglob("*.parquet")]
    assert len(told) == 2
    content = "".join(str(pq.read_table(path).to_pydict()) for path in told)
    content += "".join(p.read_text() for p in out.rglob("*") if p.suffix in (".md", ".json"))
    assert SECRET not in content
    assert "no room" not in content, "of an error its type alone"
    assert "out_of_memory" in content
    columns = {name for path in told for name in pq.read_schema(path).names}
    assert columns & {"command", "host", "spec", "versions", "overrides", "message"} == set()


def test_one_sweep_of_a_store(store: Store, tmp_path: Path) -> None:
    other = FakeSweep(Path(store.location), name="other")
    other.cell(k=0, score=50.0, task="RTE")
    other.publish()
    assert publish(store, str(tmp_path / "results"), sweep="other").cells == 1
    with pytest.raises(LpSweepError, match=r"results exists.*--to.*--force"):
        publish(store, str(tmp_path / "results"))
    assert publish(store, str(tmp_path / "results"), force=True).cells == 5


def test_a_wrong_place(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(publishing, "find_spec", lambda name: None)
    for to, options, message in (
        ("s3://bucket/prefix", {}, r"--to s3://bucket/prefix: give hf://datasets/USER/NAME"),
        ("hf://datasets/me", {}, r"hf://datasets/USER/NAME"),
        ("hf://datasets/me/x", {"offline": True}, r"--to me/x: --offline"),
        ("here", {"private": True}, r"--private"),
        ("delta:lake", {}, r"deltalake.*pip install 'lp-sweep\[delta\]'"),
    ):
        with pytest.raises(LpSweepError, match=message):
            publish(store, to, **options)


def test_a_store_without_results_is_not_published(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path / "store")
    fake.cell(k=0)
    with pytest.raises(LpSweepError, match="nothing to publish"):
        publish(fake.publish(), str(tmp_path / "results"))
    assert not (tmp_path / "results").exists()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    hub = Hub()
    hub.token = TOKEN
    with serve(hub):
        yield World(tmp_path, hub)


@pytest.mark.slow
def test_the_hub_gets_it_in_one_commit(store: Store, world: World) -> None:
    words = ("publish", "--to", "hf://datasets/me/results", "--store", "store", "--private")
    command = ("-m", "lp_sweep.orchestrator.cli", *words, "--json")
    told = json.loads(world.python(*command, env={"HF_TOKEN": TOKEN}).stdout)
    assert told == {"to": f"{world.hub.url}/datasets/me/results", "cells": 4, "trials": 3}
    (commit,) = world.hub.commits["dataset", "me/results"].values()
    names = {"README.md", "data/cells.parquet", "data/trials.parquet", "lp_sweep.json"}
    assert commit.keys() == names
    assert b'load_dataset("me/results"' in commit["README.md"]
    assert world.hub.private == {"me/results": True}
    refused = world.python(*command, env={"HF_TOKEN": TOKEN[::-1]}, code=4)
    assert "--to me/results: the hub refused the token" in refused.stderr
    assert store.names("trials")


def test_delta_keeps_versions(store: Store, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="pip install 'lp-sweep[delta]'")
    for _ in range(2):
        assert publish(store, f"delta:{tmp_path / 'lake'}").trials == 3
    table = deltalake.DeltaTable(tmp_path / "lake" / "cells")
    assert table.version() == 1
    rows = table.to_pyarrow_table() if hasattr(table, "to_pyarrow_table") else None
    assert rows is not None
    assert rows.num_rows == 4
    assert (tmp_path / "lake" / "trials" / "_delta_log").is_dir()
