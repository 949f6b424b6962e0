"""A sweep without a network: fetched from a real hub server on loopback, which is then gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.support.hubserver import serve
from tests.support.hubworld import (
    DATASET,
    GUARD,
    MODEL,
    UNWANTED,
    World,
    dataset_files,
    model_files,
    served,
)
from tests.support.toyworld import save_data


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> World:
    """After `lp-sweep prefetch`; the hub is gone."""
    with served(tmp_path_factory.mktemp("fetched 'with' spaces")) as world:
        world.run("prefetch")
    return world


@pytest.fixture
def away(fetched: World, tmp_path: Path) -> World:
    """A copy of it, as on a machine without a network, to be broken."""
    return fetched.copy(tmp_path / "away")


@pytest.fixture
def online(tmp_path: Path) -> Iterator[World]:
    """Nothing is fetched yet, and the hub answers."""
    with served(tmp_path) as world:
        yield world


def commits(world: World) -> tuple[str, str]:
    branches = world.hub.branches
    return branches["model", MODEL]["main"], branches["dataset", DATASET]["main"]


# -- prefetch


def test_the_manifest_says_what_was_fetched(fetched: World) -> None:
    """And nothing pickled or needless was."""
    commit, dataset_commit = commits(fetched)
    [model], [dataset] = fetched.manifest["models"], fetched.manifest["datasets"]
    assert (model["id"], model["asked"], model["commit"]) == (MODEL, "main", commit)
    assert (dataset["id"], dataset["asked"], dataset["commit"]) == (DATASET, "main", dataset_commit)
    sent = fetched.hub.commits["model", MODEL][commit]
    assert {name: entry["bytes"] for name, entry in model["files"].items()} == {
        name: len(data) for name, data in sent.items() if name not in UNWANTED
    }
    parts = {"README.md", "plain/train-0.parquet", "plain/validation-0.parquet"}
    assert set(dataset["files"]) == parts
    downloads = set(fetched.hub.downloads())
    assert "model.safetensors" in downloads
    assert not downloads & {Path(name).name for name in UNWANTED if name != "README.md"}
    assert not [path for path in fetched.home.rglob("*.bin") if path.is_file()]


@pytest.mark.slow
def test_prune_loads_a_model_by_its_hub_name(online: World) -> None:
    """Its weights, and nothing pickled or needless; then it is in the cache."""
    program = f"import lp_sweep; print(lp_sweep.prune({MODEL!r}, keep=[1]).config)"
    for _ in range(2):
        assert '"num_hidden_layers": 1,' in online.python("-c", program).stdout
    downloads = [Path(name).name for name in online.hub.downloads()]
    assert downloads.count("model.safetensors") == 1
    assert not set(downloads) & {Path(name).name for name in UNWANTED}


@pytest.mark.slow
def test_a_connection_that_breaks_is_resumed(online: World) -> None:
    """One that stays broken ends the command, and the next one fetches the rest alone."""
    files = model_files(online.folder / "large")
    # with a tensor that no classifier loads: so large that it comes in several chunks
    tensors = load(files["model.safetensors"])
    tensors["cls.predictions.padding"] = np.zeros(6 * 2**20, np.float32)
    files["model.safetensors"] = bytes(save(tensors, metadata={"format": "pt"}))
    model = online.hub.push("model", MODEL, files)
    once = dict.fromkeys(("model.safetensors", "plain/train-0.parquet", "config.json"), 1)
    online.hub.cut.update(once | {"tokenizer.json": 100})
    told = online.run("prefetch", code=4, env={"HF_HUB_DOWNLOAD_TIMEOUT": "2"}).stderr
    assert "tokenizer.json can't be fetched" in told
    assert "run `lp-sweep prefetch` again: whole files are kept" in told
    assert set(+online.hub.cut) == {"tokenizer.json"}
    online.hub.cut.clear()
    before = len(online.hub.downloads())
    online.run("prefetch")
    assert "model.safetensors" not in online.hub.downloads()[before:]
    assert online.hub.ranges == ["model.safetensors"]  # small files are asked for from the start
    assert (online.snapshot(model) / "model.safetensors").read_bytes() == files["model.safetensors"]
    online.trial_ids("--offline")


@pytest.mark.slow
def test_fetching_again_repairs_a_torn_cache_and_fetches_nothing_whole(online: World) -> None:
    online.run("prefetch")
    model, _ = commits(online)
    for path in (online.snapshot(model) / "model.safetensors", online.arrow("train")):
        cut_short(path)
    assert "should have" in online.run("run", code=4).stderr
    online.run("prefetch")
    assert online.trial()["told"]["status"] == "done"
    manifest = online.folder / "sweep.manifest.json"
    before, sent = manifest.stat().st_mtime_ns, len(online.hub.downloads())
    assert not json.loads(online.run("prefetch", "--json").stdout)["changed"]
    assert manifest.stat().st_mtime_ns == before
    assert len(online.hub.downloads()) == sent


@pytest.mark.slow
def test_what_can_not_be_fetched(online: World) -> None:
    whole = model_files(online.folder / "c")
    for name, lacks in (("pickled", "model.safetensors"), ("mute", "tokenizer.json")):
        part = {key: data for key, data in whole.items() if key != lacks}
        online.hub.push("model", f"toy/{name}", part)
    for override, code, message in (
        ("model=toy/none", 2, "the hub has no model 'toy/none'"),
        ("models=[{id: toy/bert, revision: v9}]", 2, "the hub has no revision 'v9'"),
        ("model=toy/pickled", 4, "no model.safetensors at that commit, and pickled weights"),
        ("model=toy/mute", 4, "no tokenizer vocabulary"),
    ):
        assert message in online.run("prefetch", override, code=code).stderr
        assert not (online.folder / "sweep.manifest.json").exists()


# -- pinned revisions


@pytest.mark.slow
def test_the_manifest_holds_its_commit_when_the_branch_moves(online: World) -> None:
    """Without one, what the hub once said is kept in the cache."""
    depth = f"models=[{{id: {MODEL}, layers: 4}}]"  # else it is looked up at the hub each time
    first = online.trial_ids(depth)
    online.hub.push("model", MODEL, model_files(online.folder / "b", depth=4, layer_norm_eps=0.2))
    assert online.trial_ids(depth) == first == online.trial_ids(depth, "--offline")
    online.run("prefetch")
    before = online.trial_ids()
    online.hub.push("model", MODEL, model_files(online.folder / "new", depth=4, layer_norm_eps=0.1))
    ref = online.home / "hub" / "models--toy--bert" / "refs" / "main"
    ref.write_text(commits(online)[0], encoding="utf-8")  # as any other tool on the machine does
    assert online.trial_ids() == before
    online.run("prefetch")
    after = online.trial_ids()
    assert not after & before
    online.hub.push("dataset", DATASET, dataset_files(seed=7))
    assert online.trial_ids() == after
    online.run("prefetch")
    assert not online.trial_ids() & after


@pytest.mark.slow
def test_a_known_model_is_planned_without_hub_and_cache(fetched: World, tmp_path: Path) -> None:
    world = World(tmp_path, fetched.hub)
    world.write()
    save_data(tmp_path)
    local = "tasks=[{name: mood, train: train.csv, dev: dev.csv, text: text}]"
    arguments = ("model=bert-base-cased", local)
    plan = json.loads(world.run("plan", *arguments, "--json").stdout)
    assert plan["totals"]["cells"] == 2
    assert any("is not pinned to a commit yet (the hub did not answer" in n for n in plan["notes"])
    told = world.run("run", *arguments, code=4).stderr
    assert "model 'bert-base-cased': 'main' is not pinned to a commit" in told
    assert not (world.folder / "lp-sweep-store").exists()


# -- offline


@pytest.mark.slow
def test_a_trial_runs_from_the_cache_and_asks_nobody(away: World) -> None:
    """No hub, and connections to anything but loopback are refused and written down."""
    (away.folder / "guard").mkdir()
    (away.folder / "guard" / "sitecustomize.py").write_text(GUARD, encoding="utf-8")
    log = away.folder / "sockets"
    guarded = {"PYTHONPATH": str(away.folder / "guard"), "SOCKET_LOG": str(log)}
    guarded["HF_ENDPOINT"] = "https://huggingface.co"
    told = away.trial(guarded)
    assert told["told"]["status"] == "done"
    assert told["record"]["model_revision"] == commits(away)[0]
    assert told["heavy"] == []  # of plan and preflight
    assert not log.exists()
    away.run("plan", "model=bert-base-cased", "task=rte", env=guarded)  # and that it would tell
    assert "huggingface.co" in log.read_text(encoding="utf-8")


@pytest.mark.ray
@pytest.mark.slow
def test_a_whole_run_from_the_cache(away: World) -> None:
    done = away.run("run", "--offline")
    assert "complete: 2 done in this run" in done.stderr
    assert "nothing was missing" in away.run("run", "--offline").stderr


def cut_short(path: Path) -> None:
    path = path.resolve()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_everything_that_is_missing_is_one_message(away: World) -> None:
    model, _ = commits(away)
    for name in ("model.safetensors", "tokenizer.json"):
        (away.snapshot(model) / name).unlink()
    shutil.rmtree(away.home / "datasets")
    (away.folder / "sweep.manifest.json").unlink()
    told = away.run("run", "--offline", code=4).stderr
    assert "model.safetensors is missing" in told
    assert f"{DATASET}@" in told
    assert "Next: `lp-sweep prefetch sweep.yaml` on a machine with a network" in told
    assert str(away.home) in told


@pytest.mark.slow
def test_a_sweep_that_outgrew_its_manifest(away: World) -> None:
    away.write(name="grown")
    text = (away.folder / "sweep.yaml").read_text(encoding="utf-8")
    text = text.replace("- toy/bert\n", "- toy/bert\n- {id: bert-base-cased}\n")
    (away.folder / "sweep.yaml").write_text(text, encoding="utf-8")
    told = away.run("run", "--offline", code=4).stderr
    assert "model 'bert-base-cased' (main) is not in the manifest" in told
    assert MODEL not in told
    with serve(away.hub):
        plan = json.loads(away.run("plan", "--json").stdout)  # no error while there is a network
    assert plan["totals"]["cells"] == 4


# -- variables of Hugging Face; those of options: test_options.py

TOKEN = "Zq-a-token-of-the-hub"


@pytest.mark.slow
def test_the_token_reaches_the_hub_and_nothing_else(online: World) -> None:
    """Its own home, where all that was fetched is; no file has the token, no record, no log."""
    elsewhere = online.folder / "another home"
    env = {"HF_TOKEN": TOKEN, "HF_HOME": str(elsewhere)}
    told = online.run("prefetch", env=env)
    assert online.hub.authorizations == {f"Bearer {TOKEN}"}
    assert list(elsewhere.rglob("model.safetensors"))
    assert not online.home.exists()
    done = online.trial(env)
    assert done["told"]["status"] == "done"
    assert (online.folder / "store" / "trials").is_dir()
    files = [path for path in online.folder.rglob("*") if path.is_file()]
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []
    assert TOKEN not in told.stdout + told.stderr + str(done)


def test_offline_by_the_hubs_own_variable(online: World) -> None:
    told = online.run("prefetch", code=2, env={"HF_HUB_OFFLINE": "1"}).stderr
    assert "HF_HUB_OFFLINE is set: the hub is not asked" in told
    assert online.hub.requests == []
