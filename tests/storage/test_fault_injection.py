"""In the manner of SQLite's tests: the Nth write, sync, rename or removal fails, or the process
ends there, for every N. After each the store is readable, nothing that it had is lost, and the same
verb again completes it, with the same content as if nothing had happened."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.faultworkers import FAULTS, VERBS

SOURCE = Path(__file__).parents[1] / "support" / "faultdisk.c"


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("disk") / "faultdisk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def tried(library: Path, folder: Path, verb: str, fault: str, step: int) -> dict[str, Any]:
    place = {"LD_PRELOAD": str(library), "FAULT_FOLDER": str(folder / "try")}
    asked = [sys.executable, "-m", "tests.support.faultworkers", verb, folder, fault, str(step)]
    done = subprocess.run(asked, env=os.environ | place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


EVERY = itertools.product(VERBS, FAULTS)


@pytest.mark.parametrize(
    ("verb", "fault", "step"),
    [("record", "killed", 14), *(pytest.param(*of, 1, marks=pytest.mark.slow) for of in EVERY)],
)
def test_changes_of_a_verb(
    faulty_disk: Path, tmp_path: Path, verb: str, fault: str, step: int
) -> None:
    told = tried(faulty_disk, tmp_path, verb, fault, step)
    assert told["wrong"] == []
    assert told["changes"] > 15
    assert told["tried"] == len(range(0, told["changes"], step)) > 2
