"""Exported folders at the hub, on request alone; over real HTTP, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hubserver import Hub, serve
from tests.support.hubworld import World
from tests.support.toyworld import save_model

TOKEN = "hf_" + "a1" * 16
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
    assert "PreflightError: can't send me/smaller to the hub: it refused: 401" in done.stderr
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
        pytest.param({"HF_TOKEN": TOKEN}, "write", "", id="may write", marks=pytest.mark.slow),
        pytest.param({"HF_TOKEN": TOKEN}, "read", "may only read. Set HF_TOKEN", id="may read"),
        pytest.param({}, "write", "no token. Set HF_TOKEN", id="no token", marks=pytest.mark.slow),
        pytest.param(
            {"HF_TOKEN": TOKEN[::-1]}, "write", "401. Set HF_TOKEN", id="?", marks=pytest.mark.slow
        ),
        pytest.param(AWAY, "write", "can't ask the hub: ", id="away", marks=pytest.mark.slow),
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
