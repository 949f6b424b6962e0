"""Where a record comes from: code, libraries, driver, command, and a spec that gives its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.identity import trial_id
from lp_sweep.storage.specs import trial_spec_from_canonical
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker import provenance
from lp_sweep.trials.worker.run import execute
from tests.support.toyworld import jobs, save_world

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (dvs)\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
)


@pytest.mark.parametrize(
    ("text", "expected"), [(OPEN, "570.86.10"), (CLOSED, "535.104.05")], ids=["open", "closed"]
)
def test_the_driver_as_its_kernel_module_says(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "version").write_text(text, encoding="utf-8")
    assert provenance.nvidia_driver(tmp_path / "version") == expected


def fake_program(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("echo 550.54.15; echo 550.54.15", "550.54.15", id="two GPUs"),
        pytest.param("echo failed >&2; exit 9", None, id="fails"),
    ],
)
def test_the_driver_as_nvidia_smi_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: str | None
) -> None:
    folder = fake_program(tmp_path / "bin", "nvidia-smi", script)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    assert provenance.nvidia_driver(tmp_path / "none") == expected


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_state_of_a_checkout(tmp_path: Path) -> None:
    assert provenance.git_state(tmp_path) is None
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one", encoding="utf-8")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    git(tmp_path, "tag", "-a", "v1", "-m", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.git_state(tmp_path) == commit  # not the tag
    (tmp_path / "file").write_text("two", encoding="utf-8")
    assert provenance.git_state(tmp_path) == f"{commit}-dirty"


def test_without_git_the_state_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "--quiet")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state(tmp_path) is None


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ('{"url": "https://x", "vcs_info": {"vcs": "git", "commit_id": "abc"}}', "abc"),
        ('{"url": "file:///x.whl", "archive_info": {}}', None),
        ("not JSON", None),
        (None, None),
    ],
    ids=["from a repository", "a wheel", "torn", "from an index"],
)
def test_what_pip_noted_down(
    noted: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return noted

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert provenance._installed_commit() == expected


def test_the_digest_is_of_the_code_that_runs(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "a.py").write_text("1", encoding="utf-8")
    one = provenance.code_digest(tmp_path)
    (tmp_path / "trials" / "a.py").write_text("2", encoding="utf-8")
    two = provenance.code_digest(tmp_path)
    (tmp_path / "trials" / "a.py").rename(tmp_path / "trials" / "b.py")
    assert len({one, two, provenance.code_digest(tmp_path)}) == 3
    (tmp_path / "notes.md").write_text("no code", encoding="utf-8")
    assert provenance.code_digest(tmp_path) == provenance.code_digest(tmp_path)


@pytest.mark.slow
def test_a_copy_of_the_folders_alone_knows_its_code(tmp_path: Path) -> None:
    """As a wheel puts them: no checkout around them, and another place."""
    root = Path(__file__).resolve().parents[3]
    target = tmp_path / "site" / "lp_sweep"
    for room in provenance._ROOMS:
        for path in (root / room).rglob("*.py"):
            copied = target / path.relative_to(root)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
    program = (
        "import json; from lp_sweep.trials.worker import provenance; "
        "print(json.dumps([provenance.__file__, provenance.versions()]))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path[:0] = {[str(target.parent), *sys.path]}; {program}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    file, versions = json.loads(done.stdout)
    assert file.startswith(str(target))
    assert versions["code"] == provenance.code_digest(root)
    assert "git" not in versions
    assert versions["torch"] == metadata.version("torch")


def test_a_record_says_it_all(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    world = save_world(tmp_path, seeds=[7])
    command = "lp-sweep run sweep.yaml --token REMOVED"
    job = jobs(world, "k=2", "recipe.epochs=1", "recipe.weight_decay=1")[0] | {"command": command}
    execute(job, store.location)
    record: dict[str, Any] = store.read("trials", job["id"])[0]
    assert trial_id(trial_spec_from_canonical(record["spec"])) == record["trial_id"] == job["id"]
    assert record["identity_version"] == 1
    assert json.loads(record["spec"])["task"] == {"text_columns": ["text"]}
    assert record["command"] == command
    versions = dict(record["versions"])
    assert {"lp_sweep", "code", "python", "platform", "torch", "transformers"} <= set(versions)
    assert len(versions["code"]) == 12
    assert record["data_fingerprint"].startswith("sha256:")
    assert record["device_name"]
    assert record["host"]
    for column in ("micro_batch", "out_of_memory_retries", "resumed_from_step"):
        assert record[column] == {"micro_batch": 16}.get(column, 0)
