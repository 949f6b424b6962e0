"""TAB in a real shell's protocol: the program gets the line, and prints what may follow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from lp_sweep.analysis.tables import TABLES
from lp_sweep.orchestrator.options import Format
from lp_sweep.trials.spec.select import STRATEGIES
from tests.support.fake_records import FakeSweep
from tests.support.program import Done, sweep

_CODE = """import sys; sys.argv[0] = 'lp-sweep'
from lp_sweep.orchestrator.cli.__main__ import main
main()"""


def shell(instruction: str, cwd: Path, **variables: str) -> Done:
    return sweep(cwd=cwd, env={"_LP_SWEEP_COMPLETE": instruction, **variables})


def completed(line: str, cwd: Path, **variables: str) -> list[str]:
    """The completions that bash gets for the last word of the line."""
    place = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = shell("complete_bash", cwd, **place, **variables)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores `store` (the sweep demo) and `lp-sweep-store` (nightly)."""
    folder = tmp_path_factory.mktemp("world")
    fake = FakeSweep(folder / "store")
    fake.curve({0: 90.0, 4: 89.5})
    fake.cell(k=10, state="failed")
    fake.publish()
    FakeSweep(folder / "lp-sweep-store", "nightly").publish()
    (folder / "sweep.yaml").touch()  # a file, no store
    return folder


def ids(world: Path, table: str) -> list[str]:
    return sorted(path.name.partition(".")[0] for path in (world / "store" / table).iterdir())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("lp-sweep table --sto", ["--store"]),
        ("lp-sweep table ", TABLES),
        ("lp-sweep table tasks --format ", get_args(Format)),
        ("lp-sweep table tasks --strategy ", STRATEGIES),
        ("lp-sweep export --best --strategy even", ["even-alternate"]),
        ("lp-sweep export --best --store store --task ", ["SST-2"]),
        ("lp-sweep table tasks --store store --sweep ", ["demo"]),
        ("lp-sweep table tasks --sweep ", ["nightly"]),
        ("lp-sweep mirror --to t", ["trackio"]),
        ("lp-sweep table tasks --store s3://none/at-all --sweep ", []),
        ("lp-sweep table tasks --store no-such-store --sweep ", []),
        ("lp-sweep show --store sweep.yaml t", []),
    ],
)
def test_what_is_offered(world: Path, line: str, offered: Iterable[str]) -> None:
    assert sorted(completed(line, world)) == sorted(offered)


def test_identifiers_of_a_store(world: Path) -> None:
    recorded = ids(world, "trials")
    assert completed("lp-sweep show --store store ", world) == recorded
    first = recorded[0][:8]
    assert completed(f"lp-sweep show --store store {first}", world) == [recorded[0]]
    assert completed("lp-sweep logs t", world, LP_SWEEP_STORE="store") == recorded
    assert completed("lp-sweep retry --store store t", world) == ids(world, "attempts")
    assert completed("lp-sweep retry --store store ", world) == []  # files: the shell's own


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_a_script_for_each_shell(tmp_path: Path, name: str) -> None:
    done = shell(f"source_{name}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"complete_{name}" in done.stdout


def test_in_bash_itself(world: Path, tmp_path: Path) -> None:
    """Its script is sourced, and its function called as bash does."""
    launcher = tmp_path / "lp-sweep"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{_CODE}" "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
    script = tmp_path / "completion.bash"
    script.write_text(shell("source_bash", tmp_path).stdout, encoding="utf-8")
    asked = (
        f"source '{script}'; COMP_WORDS=(lp-sweep table min); COMP_CWORD=2\n"
        "function=$(complete -p lp-sweep | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        '$function lp-sweep; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", asked],
        cwd=world,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["min-layers", "min-layers-interval"]
