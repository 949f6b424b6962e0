"""Environment variables of the libraries underneath; those of options: test_options.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.hubworld import World, served
from tests.support.program import python

TOKEN = "Zq-a-token-of-the-hub"


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
from lp_sweep.orchestrator.inputs.checks import count_gpus
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
