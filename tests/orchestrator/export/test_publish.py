"""What others get: results by `lp-sweep publish`, read with their own libraries, and exported
folders at the hub."""

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
from tests.support.toyworld import save_model

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


def test_a_folder_is_a_data_set_without_persons_and_machines(store: Store, tmp_path: Path) -> None:
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


def test_delta_without_its_package(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "find_spec", lambda name: None)
    with pytest.raises(LpSweepError, match=r"deltalake.*pip install 'lp-sweep\[delta\]'"):
        publish(store, f"delta:{tmp_path / 'lake'}")


def test_a_store_without_results_is_not_published(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path / "store")
    fake.cell(k=0)
    with pytest.raises(LpSweepError, match="nothing to publish"):
        publish(fake.publish(), str(tmp_path / "results"))
    assert not (tmp_path / "results").exists()


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


# -- an exported folder goes to the hub only on request; over real HTTP, on loopback

REPO = "me/smaller"
PROGRAM = """
import sys
from pathlib import Path
from lp_sweep.orchestrator.export.folder import check_may_push, push
from lp_sweep.storage.errors import LpSweepError
try:
    if sys.argv[1] == "check":
        check_may_push("me/smaller", offline=False)
    else:
        print(push(Path("folder"), "me/smaller", private=sys.argv[1] == "private"))
except LpSweepError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
AWAY = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": "http://127.0.0.1:9"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    hub = Hub()
    hub.token = TOKEN
    (tmp_path / "folder" / "onnx").mkdir(parents=True)
    (tmp_path / "folder" / "README.md").write_text("---\nlicense: mit\n---\n# It\n")
    (tmp_path / "folder" / "model.safetensors").write_bytes(bytes(range(256)))
    (tmp_path / "folder" / "onnx" / "model.onnx").write_bytes(b"a graph")
    with serve(hub):
        yield World(tmp_path, hub)


def sent(world: World) -> dict[str, bytes]:
    commit = world.hub.resolve("model", REPO, "main")
    assert commit is not None
    return world.hub.commits["model", REPO][commit]


@pytest.mark.parametrize("how", ["private", pytest.param("public", marks=pytest.mark.slow)])
def test_one_commit_holds_the_whole_folder(world: World, how: str) -> None:
    done = world.python("-c", PROGRAM, how, env={"HF_TOKEN": TOKEN})
    assert done.stdout.strip() == f"{world.hub.url}/{REPO}"
    assert set(sent(world)) == {"README.md", "model.safetensors", "onnx/model.onnx"}
    assert sent(world)["model.safetensors"] == bytes(range(256))
    assert world.hub.private == {REPO: how == "private"}
    assert TOKEN not in done.stdout + done.stderr


def test_a_hub_that_refuses_or_is_away_is_one_sentence(world: World) -> None:
    """Nothing but the sending is lost."""
    done = world.python("-c", PROGRAM, "public", env={"HF_TOKEN": TOKEN[::-1]}, code=1)
    assert "PreflightError: the hub refused me/smaller: 401" in done.stderr
    assert "Set HF_TOKEN" in done.stderr
    assert TOKEN[::-1] not in done.stderr
    assert not world.hub.commits
    done = world.python("-c", PROGRAM, "public", env=AWAY, code=1)
    assert "Traceback" not in done.stderr
    assert "PreflightError: can't send me/smaller to the hub: " in done.stderr
    assert f"The folder is whole; send it with `hf upload {REPO} folder`." in done.stderr


@pytest.mark.parametrize(
    ("env", "role", "said"),
    [
        pytest.param({"HF_TOKEN": TOKEN}, "write", "", id="may write"),
        pytest.param({"HF_TOKEN": TOKEN}, "read", "may only read. Set HF_TOKEN", id="may read"),
        pytest.param({}, "write", "there is no token. Set HF_TOKEN", id="no token"),
        pytest.param(
            {"HF_TOKEN": TOKEN[::-1]}, "write", "401. Set HF_TOKEN", id="?", marks=pytest.mark.slow
        ),
        pytest.param(AWAY, "write", "can't be reached", id="away", marks=pytest.mark.slow),
    ],
)
def test_who_may_not_write_hears_it_before_the_work(
    world: World, env: dict[str, str], role: str, said: str
) -> None:
    world.hub.role = role
    done = world.python("-c", PROGRAM, "check", env=env, code=int(bool(said)))
    assert said in done.stderr
    assert (done.stderr == "") == (not said)
    assert TOKEN not in done.stderr


@pytest.mark.slow
def test_the_command_sends_what_it_made(world: World) -> None:
    save_model(world.folder / "model")
    arguments = ("./model", "--strategy", "top", "--k", "2", "--out", "out")
    command = ("-m", "lp_sweep.orchestrator.cli", "prune", *arguments)
    env = {"HF_TOKEN": TOKEN}
    world.python(*command, env=env)
    assert world.hub.requests == [], "without the flag nothing is asked"
    done = world.python(*command, "--force", "--push-to-hub", REPO, env=env)
    assert f"sent to {world.hub.url}/{REPO}" in done.stderr
    assert set(sent(world)) == {path.name for path in (world.folder / "out").iterdir()}
    offline = {"HF_HUB_OFFLINE": "1"}
    refused = world.python(*command, "--force", "--push-to-hub", REPO, env=offline, code=2)
    assert "HF_HUB_OFFLINE is set, so nothing goes to the hub" in refused.stderr
