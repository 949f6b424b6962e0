"""Tests of the help: that of every command at 80 columns, with an example
that parses, and TAB in the protocol of a real shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

from lp_sweep.analysis.tables import TABLES
from lp_sweep.orchestrator.cli.__main__ import FIRST, RARE, SECTIONS, app
from lp_sweep.orchestrator.options import Format
from lp_sweep.trials.spec.select import STRATEGIES
from tests.support.fake_records import FakeSweep
from tests.support.program import sweep

ROOT: Any = get_command(app)
_BY_TYPER = ("--install-completion", "--show-completion")
COMMANDS: dict[str, Any] = ROOT.commands


def examples(command: Any) -> list[str]:
    return re.findall(r"^  (lp-sweep .*)$", command.help, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_options_are_described_and_its_example_parses(name: str) -> None:
    assert len(COMMANDS[name].help.splitlines()[0]) > 20
    assert [item.name for item in COMMANDS[name].params if not getattr(item, "help", "")] == []
    (example,) = examples(COMMANDS[name])
    words = shlex.split(re.split(r" [|>] ", example)[0])
    assert words[:2] == ["lp-sweep", name]
    COMMANDS[name].make_context(name, words[2:])


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_terminal(tmp_path: Path, name: str) -> None:
    shown = sweep(*name.split(), "--help", cwd=tmp_path, env={"COLUMNS": "80"})
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line for line in shown.stdout.splitlines() if len(line) > 80] == []
    for example in examples(COMMANDS[name]) if name else ():
        assert f"\n  Example:\n    {example}\n" in shown.stdout
    assert len(shown.stdout.splitlines()) < (60 if name else 40)
    assert "env var" not in shown.stdout, "docs/environment.md has them"
    told = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown.stdout, re.MULTILINE)
    own = (COMMANDS[name] if name else ROOT).params
    options = {word for item in own for word in item.opts if item.param_type_name == "option"}
    assert {*told, *_BY_TYPER, "-f"} >= options


def test_help_begins_with_what_everyone_needs(tmp_path: Path) -> None:
    """`help more`, which it names, is in tests/golden."""
    shown = sweep("--help", cwd=tmp_path, env={"COLUMNS": "80"}).stdout
    listed = shown.partition("Commands:")[2].partition("More:")[0]
    assert tuple(re.findall(r"^  (\w+)", listed, re.MULTILINE)) == FIRST
    assert "lp-sweep help more" in shown
    told = {name for names in (*SECTIONS.values(), RARE) for name in names}
    assert told == {*ROOT.commands}, "a new command has its section in cli/__main__.py"


def test_no_command_and_no_option_is_lost() -> None:
    """options.txt has what scripts may use: a line is only added."""
    for line in (Path(__file__).parent / "options.txt").read_text(encoding="utf-8").splitlines():
        words = line.split()
        name = " ".join(word for word in words if not word.startswith("-"))
        taken = {word for one in COMMANDS[name].params for word in (*one.opts, *one.secondary_opts)}
        assert {word for word in words if word.startswith("-")} <= taken, name


# -- TAB


def completed(line: str, cwd: Path, **variables: str) -> list[str]:
    """The completions that bash gets for the last word of the line."""
    place = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = sweep(cwd=cwd, env={"_LP_SWEEP_COMPLETE": "complete_bash", **place, **variables})
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
        ("lp-sweep export --best --store store --task ", ["SST-2"]),
        ("lp-sweep table tasks --sweep ", ["nightly"]),
        ("lp-sweep table tasks --store s3://none/at-all --sweep ", []),
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
