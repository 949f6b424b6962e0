"""Where a record comes from: code, libraries, driver, command, and a spec that gives its name."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lp_sweep.storage.store import Store
from lp_sweep.trials.device import device_name
from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.specs import trial_spec_from_canonical
from lp_sweep.trials.worker import provenance
from tests.support.plain_jobs import done
from tests.support.toyworld import jobs, save_world

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build  (dvs)\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
)


def test_the_driver_of_the_gpu(tmp_path: Path) -> None:
    """As the kernel module says."""
    file = tmp_path / "version"
    for text, expected in ((OPEN, "570.86.10"), (CLOSED, "535.104.05"), ("", None)):
        file.write_text(text, encoding="utf-8")
        assert provenance.nvidia_driver(file) == expected
    assert provenance.nvidia_driver(tmp_path / "none") is None


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


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654 96-Core Processor"),
        ("AMD EPYC", "AMD EPYC (family 25, model 17)"),
    ],
)
def test_a_processor_without_a_number_is_told_from_another(
    model: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: {model}\n\n"
    second = told.replace("17", "18")
    monkeypatch.setattr(Path, "read_text", lambda path: told + second)
    assert device_name(torch.device("cpu")) == expected


def test_the_commit_that_pip_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for noted, expected in (
        ('{"vcs_info": {"commit_id": "abc"}}', "abc"),
        ('{"url": "file:///x.whl", "archive_info": {}}', None),
        ("not JSON", None),
        (None, None),  # from an index
    ):
        installed = SimpleNamespace(read_text=lambda name, noted=noted: noted)
        monkeypatch.setattr(metadata, "distribution", lambda name, one=installed: one)
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


def test_a_record_says_it_all(tmp_path: Path, store: Store) -> None:
    world = save_world(tmp_path, seeds=[7])
    command = "lp-sweep run sweep.yaml --token REMOVED"
    job = jobs(world, "k=2", "recipe.epochs=1", "recipe.weight_decay=1")[0] | {"command": command}
    record = done(store, job)
    assert trial_id(trial_spec_from_canonical(record["spec"])) == record["trial_id"] == job["id"]
    assert record["identity_version"] == 1
    assert json.loads(record["spec"])["task"] == {"text_columns": ["text"]}
    assert record["command"] == command
    versions = dict(record["versions"])
    assert {"lp_sweep", "code", "python", "platform", "torch", "transformers"} <= set(versions)
    assert versions["code"] == provenance.code_digest(Path(__file__).parents[3])
    assert record["data_fingerprint"].startswith("sha256:")
    assert record["device_name"]
    assert record["host"]
    for column in ("micro_batch", "out_of_memory_retries", "resumed_from_step"):
        assert record[column] == {"micro_batch": 16}.get(column, 0)
