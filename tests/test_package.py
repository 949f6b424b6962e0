"""The wheel that a user installs: every room, every data file, and no test."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("storage", "trials", "analysis", "orchestrator", "quickstart")
DATA = {".sql", ".j2", ".css", ".js", ".yaml", ".parquet", ".safetensors", ".json"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a wheel built from what git would commit."""
    out = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(zipfile.ZipFile(next(out.glob("*.whl"))).namelist())


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_and_data_file_is_in_the_wheel(wheel: set[str], room: str) -> None:
    expected = {
        f"lp_sweep/{path.relative_to(ROOT)}"
        for path in (ROOT / room).rglob("*")
        if path.suffix in DATA | {".py"} and "__pycache__" not in path.parts
    }
    assert expected
    assert expected <= wheel, sorted(expected - wheel)


def test_nothing_else_is_in_the_wheel(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert tops == {"lp_sweep", next(top for top in tops if top.endswith(".dist-info"))}
    inside = {name.split("/")[1] for name in wheel if name.startswith("lp_sweep/")}
    assert inside == {*ROOMS, *(path.name for path in (ROOT / "api").glob("*.py"))}


def test_the_command_is_installed(wheel: set[str]) -> None:
    assert any(name.endswith("entry_points.txt") for name in wheel)
