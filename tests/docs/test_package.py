"""What `make dist` makes: a wheel with every room, every data file, and no test; that it works, in
an empty environment and from any folder; and that it is the same each time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("storage", "trials", "analysis", "orchestrator", "quickstart")
DATA = {".sql", ".csv", ".j2", ".css", ".js", ".yaml", ".parquet", ".safetensors", ".json"}
PINS = ROOT / "constraints.txt"


def test_every_folder_with_code_is_a_package_of_the_wheel() -> None:
    """A package that is not listed can be imported here, but is missing from the wheel."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setup = listed["tool"]["setuptools"]
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
    }
    assert {f"lp_sweep.{folder}" for folder in folders} <= set(setup["packages"])


def committed() -> list[str]:
    """The files that git has, or would take."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [name for name in names.split("\0") if name and (ROOT / name).is_file()]


def made(folder: Path) -> Path:
    """Where `make dist` has put the wheel and the source archive of a copy in this folder."""
    for name in committed():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    make = ["make", "dist", "--old-file=setup", f"BIN={Path(sys.executable).parent}"]
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(
        make, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "dist"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return next(made(tmp_path_factory.mktemp("source")).glob("*.whl"))


@pytest.mark.slow
def test_who_makes_it_again_gets_the_same_bytes(built: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        again = made(tmp_path)
    finally:
        os.umask(before)
    files = sorted(path.name for path in again.iterdir())
    assert [name.rpartition(".")[2] for name in files] == ["whl", "gz"]
    for name in files:
        assert (again / name).read_bytes() == (built.parent / name).read_bytes()


def test_the_version_is_in_one_place() -> None:
    """And the changelog has a heading for it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    here = re.escape(project["version"])
    named = re.compile(rf"(?i)(lp.sweep\S{{0,3}}|version\W*)\b{here}\b")
    files = [path for place in ("*", "docs/*.md", "examples/*") for path in ROOT.glob(place)]
    files += [path for room in (*ROOMS, "api") for path in (ROOT / room).rglob("*.py")]
    texts = {path: path.read_bytes().decode(errors="replace") for path in files if path.is_file()}
    assert [path.name for path, text in texts.items() if named.search(text)] == ["pyproject.toml"]
    assert re.search(rf"^## {here}\b", texts[ROOT / "CHANGELOG.md"], re.MULTILINE)


@pytest.mark.slow
def test_the_wheel_has_every_module_and_data_file_and_nothing_else(built: Path) -> None:
    content = zipfile.ZipFile(built)
    names = set(content.namelist())
    for room in ROOMS:
        expected = {
            f"lp_sweep/{path.relative_to(ROOT)}"
            for path in (ROOT / room).rglob("*")
            if path.suffix in DATA | {".py"} and "__pycache__" not in path.parts
        }
        assert expected, room
        assert expected <= names, sorted(expected - names)
    inside = {name.split("/")[1] for name in names if name.startswith("lp_sweep/")}
    assert inside == {*ROOMS, "py.typed", *(path.name for path in (ROOT / "api").glob("*.py"))}
    (info,) = {name.split("/")[0] for name in names} - {"lp_sweep"}
    assert f"{info}/entry_points.txt" in names
    metadata = content.read(f"{info}/METADATA").decode()
    for extra in ("cluster", "mlflow", "wandb", "trackio"):
        assert f"Provides-Extra: {extra}\n" in metadata


# -- installed


def call(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Without what this test's own environment has of Python and lp-sweep."""
    ours = ("PYTHON", "LP_SWEEP_", "RAY_", "VIRTUAL_ENV")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=clean | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def by_pip(wheel: Path, folder: Path) -> Path:
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    pip = (folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", PINS)
    call(*pip, "torch", cwd=folder)  # first, as `make setup`
    call(*pip, wheel, cwd=folder)
    return folder / "venv" / "bin" / "lp-sweep"


def by_uv(wheel: Path, folder: Path) -> Path:
    uv = tool("uv", folder)
    places = {
        "UV_TOOL_DIR": str(folder / "tools"),
        "UV_TOOL_BIN_DIR": str(folder / "bin"),
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_FIND_LINKS": configured("find-links"),
        "UV_INDEX": configured("extra-index-url"),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # as pip: the best of all indices
    }
    options = ("--python", sys.executable, "--constraints", PINS)
    call(uv, "tool", "install", *options, wheel, cwd=folder, **places)
    return folder / "bin" / "lp-sweep"


def tool(name: str, folder: Path) -> Path:
    """In an environment of its own."""
    call(sys.executable, "-m", "venv", folder / name, cwd=folder)
    call(folder / name / "bin" / "python", "-m", "pip", "install", "--quiet", name, cwd=folder)
    return folder / name / "bin" / name


def configured(setting: str) -> str:
    """A setting of pip: where the user's own registry is."""
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{setting}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return " ".join(found)


@pytest.fixture
def somewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder that is gone afterwards: an environment takes 1.5 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("install", [by_pip, by_uv])
def test_it_works_where_nothing_else_is(
    built: Path, somewhere: Path, install: Callable[[Path, Path], Path]
) -> None:
    """Needs a registry, as `make setup` does."""
    command = install(built, somewhere)
    here = somewhere / "an empty folder"
    here.mkdir()
    places = {"LP_SWEEP_CACHE_DIR": str(somewhere / "tokens"), "OMP_NUM_THREADS": "1"}
    told = call(command, "--version", cwd=here, **places)
    assert told.stdout == f"lp-sweep {version('lp-sweep')}\n"
    small = ("task=toy-sentiment", "seed=1", "strategy=top", "k=0,4")  # of no speed
    short = ("recipe.epochs=1", "recipe.limit_train=64")
    done = call(command, "run", "quickstart", *small, *short, cwd=here, **places)
    assert "complete: 2 done in this run" in done.stderr
    shown = call(command, "table", "tasks", "--json", cwd=here, **places)
    assert [row["k"] for row in json.loads(shown.stdout)] == [0, 4]
    assert [path.name for path in here.iterdir()] == ["lp-sweep-store"]
    whole_way(command, here, places, (*small, *short))


def whole_way(command: Path, here: Path, places: dict[str, str], part: tuple[str, ...]) -> None:
    """A newcomer's: the quickstart, then its commands in the folder that it has written."""
    done = call(command, "quickstart", *part, cwd=here, **places)
    assert "complete: 2 done in this run" in done.stderr
    folder = here / "lp-sweep-quickstart"
    planned = json.loads(
        call(command, "plan", "sweep.yaml", *part, "--json", cwd=folder, **places).stdout
    )
    assert (planned["totals"]["trials"], planned["totals"]["to_do"]) == (2, 0)
    shown = call(command, "table", "min-layers", "--json", cwd=folder, **places)
    assert {row["task"] for row in json.loads(shown.stdout)} == {"toy-sentiment"}
    call(command, "report", "--out", "report.html", cwd=folder, **places)
    best = ("--best", "--task", "toy-sentiment", "--within", "100", "--accept-retrained")
    call(command, "export", *best, "--out", "smaller", cwd=folder, **places)
    made = {"report.html", "smaller"}
    assert made <= {path.name for path in folder.iterdir()}
    call(command, "init", "my.yaml", cwd=folder, **places)
