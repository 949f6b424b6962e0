"""Branches to commits, and the manifest that keeps them: file handling, without a hub."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.pins import (
    FileEntry,
    Manifest,
    Pin,
    PinnedRepo,
    Pins,
    read_manifest,
    write_manifest,
)
from lp_sweep.storage.errors import PreflightError

A, B = "a" * 40, "b" * 40


def held(repo_id: str, commit: str = A, **rest: object) -> PinnedRepo:
    files = {"model.safetensors": FileEntry(bytes=3, sha256="0" * 64)}
    return PinnedRepo.model_validate(
        {"id": repo_id, "asked": "main", "commit": commit, "files": files} | rest
    )


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def known_to_cache(cache: Path, revision: str, text: str) -> None:
    path = cache / "models--x--y" / "refs" / revision
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_order_of_what_is_believed(cache: Path) -> None:
    manifest = Manifest(models=(held("x/y", A),))
    assert Pins(offline=True).find("model", "x/y", None) == Pin("main", "--offline is set")
    known_to_cache(cache, "main", B)
    assert Pins(offline=True).find("model", "x/y", None) == Pin(B)
    assert Pins(manifest, offline=True).find("model", "x/y", None) == Pin(A)
    assert Pins(manifest, offline=True).find("model", "x/y", "main") == Pin(A)
    assert Pins(manifest, offline=True).find("model", "x/y", "c" * 40) == Pin("c" * 40)
    assert Pins(manifest, offline=True).find("dataset", "x/y", None).revision == "main"


def test_without_an_answer_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a plan of twelve models waits twelve times for a network that drops packets."""
    asked = []

    def silent(kind: str, repo_id: str, revision: str) -> str:
        asked.append(repo_id)
        raise hub.HubRefusal("the hub did not answer (ConnectTimeout)", reached=False)

    monkeypatch.setattr(hub, "newest_commit", silent)
    pins = Pins()
    for name in ("a/a", "b/b", "c/c"):
        assert pins.find("model", name, None).why_not == "the hub did not answer (ConnectTimeout)"
    assert asked == ["a/a"]


def test_a_hub_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_SECONDS", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert "did not answer (ReadTimeout" in str(Pins().find("model", "x/y", None).why_not)


@pytest.mark.parametrize(
    "revision", ["../../../secret", "/etc/passwd", "a\0b", "v" * 300, "no such"]
)
def test_a_revision_that_names_no_commit(cache: Path, revision: str) -> None:
    known_to_cache(cache, "main", A)
    (cache / "secret").write_text(f"of another kind, not {B}")
    assert hub.cached_commit("model", "x/y", revision) is None


# -- the manifest


def test_a_manifest_is_what_was_written_and_the_newer_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "sweep.manifest.json"
    manifest = Manifest(
        models=(held("x/y"),), datasets=(held("d", config="c"),), local={"./m": "h"}
    )
    assert write_manifest(path, manifest)
    assert read_manifest(path) == manifest
    assert not write_manifest(path, manifest)  # it says so already
    assert [item.name for item in tmp_path.iterdir()] == [path.name]

    old = Manifest(models=(held("x", A), held("y", A)))
    merged = old.merged_with(Manifest(models=(held("x", B),)))
    assert [(m.id, m.commit) for m in merged.models] == [("x", B), ("y", A)]


def changed(**change: object) -> bytes:
    entry = held("x").model_dump(mode="json", exclude_none=True) | change
    return json.dumps({"lp_sweep_manifest": 1, "models": [entry]}).encode()


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (changed(commit="main"), "models.0.commit"),
        (changed(files={"x": {"bytes": -1, "sha256": "0" * 64}}), "models.0.files"),
        (changed(more=1), "models.0.more"),
        *((content, "") for content in (b"", b"[]", b"\xff\xfe", b'{"lp_sweep_manifest": 2}')),
    ],
)
def test_a_manifest_that_can_not_be_read(tmp_path: Path, content: bytes, place: str) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(PreflightError, match=rf"can't read the manifest .*{place}.*prefetch"):
        read_manifest(path)


def test_a_manifest_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"can't write the manifest .*--manifest"):
        write_manifest(tmp_path / "none" / "m.json", Manifest())
    (tmp_path / "folder").mkdir()
    with pytest.raises(PreflightError, match="can't write the manifest"):
        write_manifest(tmp_path / "folder", Manifest())
    assert list((tmp_path / "folder").iterdir()) == []
