"""Trials in Weights & Biases, offline: what it leaves in its folder, read back."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.mirrors.copying import copy_trials
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind, open_mirror
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.store import Store
from tests.support.mirrorworld import SECRET, mirrored_store, trial_of

wandb = pytest.importorskip("wandb", reason="needs W&B: pip install 'lp-sweep[wandb]'")
pytestmark = pytest.mark.slow  # it starts a process of its own for each run

# the log format of LevelDB, after a header of the same size
_BLOCK, _HEADER, _WHOLE, _LAST = 32768, 7, 1, 4


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in ("WANDB_PROJECT", "WANDB_API_KEY", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # no login of a user
    return mirrored_store(tmp_path / "store")


def copied(store: Store) -> tuple[int, ...]:
    """As a process of its own would: W&B reads the environment once, and has written all files
    when its service has ended."""
    try:
        return copy_trials(store, "demo", open_mirror(MirrorKind.wandb, "demo"))
    finally:
        wandb.teardown()


def records(folder: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("run-*.wandb")
    content, at, data = path.read_bytes(), _HEADER, b""
    while at + _HEADER <= len(content):
        if _BLOCK - at % _BLOCK < _HEADER:  # the rest of a block is empty
            at += _BLOCK - at % _BLOCK
            continue
        _, length, part = struct.unpack_from("<IHB", content, at)
        data += content[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if part in (_WHOLE, _LAST):
            yield Record.FromString(data)
            data = b""


def runs(folder: Path) -> dict[str, list[Any]]:
    """By trial: all that was recorded of it."""
    found = {}
    for path in (folder / "wandb").glob("offline-run-*"):
        told = [*records(path)]
        (run,) = [record.run for record in told if record.HasField("run")][:1]
        found[run.run_id.rpartition("-")[0]] = told
    return found


def test_each_trial_is_a_run(store: Store, tmp_path: Path) -> None:
    assert copied(store) == (3, 1, 0)
    found = runs(tmp_path)
    told = found[trial_of(store, strategy="top", k=4)]
    run = next(record.run for record in told if record.HasField("run"))
    assert (run.project, run.run_group) == ("lp-sweep", "demo")
    assert run.display_name == "bert layers 1-8 of 12 SST-2 seed 42"
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config.items() >= {"model": "bert", "kept_layers": "1-8", "seed": 42}.items()
    history = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in r.history.item}
        for r in told
        if r.HasField("history")
    ]
    assert [row["train/loss"] for row in history] == [0.6, 0.4, 0.3]
    assert [row["_step"] for row in history] == [1, 2, 3]
    summary = {
        item.key: json.loads(item.value_json)
        for r in told
        if r.HasField("summary")
        for item in r.summary.update
    }
    assert summary["last"] == 0.9
    assert [r.exit.exit_code for r in told if r.HasField("exit")] == [0]
    (failed,) = (found[key] for key in found if key.startswith(trial_of(store, k=8)))
    assert [r.exit.exit_code for r in failed if r.HasField("exit")] == [1]
    run = next(record.run for record in failed if record.HasField("run"))
    assert run.notes.startswith("out_of_memory: the device has no room")


def test_nothing_is_written_twice_and_no_secret(store: Store, tmp_path: Path) -> None:
    copied(store)
    before = sorted((tmp_path / "wandb").rglob("*.wandb"))
    assert copied(store) == (0, 0, 3)
    assert sorted((tmp_path / "wandb").rglob("*.wandb")) == before
    files = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


def test_without_a_login_it_says_so_and_asks_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(LpSweepError, match=r"no API key\. Log in with `wandb login`"):
        copied(store)
