"""Environment variables: in place of an option, and for the libraries underneath."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.fake_records import FakeSweep
from tests.support.hubworld import World, served
from tests.support.program import python, sweep
from tests.support.sweepfiles import make_inputs

TOKEN = "Zq-a-token-of-the-hub"


# -- in place of options


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0, 4: 89.5})
    fake.curve({4: 70.0}, strategy="bottom")
    fake.publish()
    return tmp_path


def test_a_variable_is_as_good_as_its_option(store: Path) -> None:
    """Several values have blanks between them; an empty variable is none."""
    words = "table tasks --store store --strategy top --strategy bottom --json --sweep demo"
    given = sweep(*words.split(), cwd=store)
    env = {
        "LP_SWEEP_STORE": "store",
        "LP_SWEEP_STRATEGY": "top bottom",
        "LP_SWEEP_JSON": "1",
        "LP_SWEEP_SWEEP": "demo",
        "LP_SWEEP_FORMAT": "",
    }
    assert sweep("table", "tasks", cwd=store, env=env) == given
    assert (given.returncode, given.stderr) == (0, "")
    assert {row["strategy"] for row in json.loads(given.stdout)} == {"top", "bottom"}
    assert sweep("table", "tasks", "--store", "nowhere", cwd=store, env=env).returncode == 4


def test_what_would_be_a_trap_has_no_variable(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    assert sweep("init", "sweep.yaml", cwd=tmp_path, env={"LP_SWEEP_FORCE": "1"}).returncode == 2
    env = {"LP_SWEEP_FORMAT": "markdown", "LP_SWEEP_STORE": ""}
    assert sweep("plan", "--data-dir", "glue", cwd=tmp_path, env=env).returncode == 0


# -- Hugging Face


@pytest.fixture
def online(tmp_path: Path) -> Iterator[World]:
    with served(tmp_path) as world:
        yield world


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


# -- Ray and CUDA


_DEVICES = """
import json, torch
from lp_sweep.orchestrator.inputs.room import count_gpus
from lp_sweep.trials.device import pick_device
print(json.dumps([pick_device().type, torch.cuda.device_count(), count_gpus()]))
"""


def devices(visible: str) -> list[object]:
    done = python(_DEVICES, cwd=Path.cwd(), CUDA_VISIBLE_DEVICES=visible)
    return list(json.loads(done.stdout))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_trial_uses_the_gpus_that_are_shown() -> None:
    assert devices("0") == ["cuda", 1, 1]
    assert devices("") == ["cpu", 0, 0]
