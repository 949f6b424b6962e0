"""Options: each has the variable that docs/environment.md promises, for Python as well, and a
command to paste has those of its run."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from lp_sweep.orchestrator.cli import runcli
from lp_sweep.orchestrator.cli.__main__ import app
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.options import MirrorKind, from_environment, options_of
from lp_sweep.storage.errors import SpecError

COMMANDS: dict[str, Any] = get_command(app).commands
OPTIONS = {
    f"{name} {parameter.opts[0]}": parameter
    for name, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option"
}
PAGE = (Path(__file__).parents[3] / "docs" / "environment.md").read_text(encoding="utf-8")


def started(command: str, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """The options that this command would run with."""
    found: list[RunOptions] = []
    monkeypatch.setattr(runcli, "_prepared", lambda options, *_: lambda: found.append(options))
    app(shlex.split(command)[1:], standalone_mode=False)
    return found[0]


# -- variables

OTHERS = {
    "--address": ["LP_SWEEP_ADDRESS", "RAY_ADDRESS"],
    "mirror --to": ["LP_SWEEP_MIRROR"],
    "paper --model": ["LP_SWEEP_PAPER_MODEL"],
}
# texts that an option takes; 2 is good for the others
TEXTS = {
    "--kind": "ranking",
    "--as": "torch onnx",
    "--format": "csv",
    "--unit": "percent",
    "--table": "1 4",
    "--strategy": "top bottom",
    "--mirror": "mlflow wandb",
    "--to": "mlflow wandb",
}


def without_variable() -> set[str]:
    """`--force`, or `export --within` if it is one command's, as the page lists them."""
    found = set()
    for of, row in re.findall(r"^\| (?:of `(\w+)`: )?([^|]*`--[^|]*) \|", PAGE, re.MULTILINE):
        found |= {f"{of} {flag}".strip() for flag in re.findall(r"`(--[\w-]+)`", row)}
    return found


def variables(option: str) -> list[str]:
    flag = option.split()[1]
    if {flag, option} & without_variable():
        return []
    usual = "LP_SWEEP_" + flag.removeprefix("--").replace("-", "_").upper()
    return OTHERS.get(option) or OTHERS.get(flag) or [usual]


def text_for(option: str) -> str:
    return "1" if OPTIONS[option].is_flag else TEXTS.get(option.split()[1], "2")


def values(command: str, *words: str) -> dict[str, Any]:
    """The value of each option."""
    with COMMANDS[command].make_context(command, [*words], resilient_parsing=True) as context:
        found: dict[str, Any] = context.params
    return found


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LP_SWEEP_EVEN_IF_NOT_LEARNED")


@pytest.mark.parametrize("option", OPTIONS)
def test_a_variable_is_as_good_as_its_option(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several values have blanks between them; an empty variable is none."""
    command, flag = option.split()
    parameter = OPTIONS[option]
    text = text_for(option)
    each = text.split() if parameter.multiple else [text]
    words = [flag] if parameter.is_flag else [word for one in each for word in (flag, one)]
    nothing, given = values(command), values(command, *words)
    assert given != nothing
    for variable in variables(option):
        monkeypatch.setenv(variable, text)
        assert values(command) == given, variable
        monkeypatch.setenv(variable, "")
        assert values(command) == nothing, variable
    if not variables(option):
        assert parameter.envvar is None


def test_the_page_lists_options_that_exist() -> None:
    known = {word for option in OPTIONS for word in (option, option.split()[1])}
    assert without_variable() - known == {"--version"}


def test_python_reads_the_variables_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command line does: else other revisions would be trained."""
    own = {name for name in OPTIONS if name.startswith("run ") and variables(name)}
    given = {o for o in own if OPTIONS[o].name in options_of(RunOptions)}
    assert given == own - {"run --json", "run --events"}
    for option in given:
        monkeypatch.setenv(variables(option)[0], text_for(option))
    found = from_environment(RunOptions)
    assert found == started("lp-sweep run", monkeypatch)
    assert (found.max_hours, found.mirrors) == (2.0, [MirrorKind.mlflow, MirrorKind.wandb])


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LP_SWEEP_MIRROR", "mlflo")
    with pytest.raises(SpecError, match="env var: 'LP_SWEEP_MIRROR'"):
        from_environment(RunOptions)


# -- commands to paste

GIVEN = RunOptions(
    overrides=["seed=4"],
    store="s3://bucket/a b",
    data_dir=Path("glue"),
    offline=True,
    manifest=Path("pins.json"),
    address="10.0.0.1:6379",
    cache_dir=Path("cache"),
    fail_fast=True,
    max_failures=2,
    even_if_not_learned=True,
    max_hours=2.5,
    mirrors=[MirrorKind.mlflow, MirrorKind.wandb],
)
RETRY: dict[str, Any] = {"retry": True, "trials": ["t1-0c", "p1-77"], "error_type": None}


@pytest.mark.parametrize("verb", ["run", "resume"])
def test_the_command_that_goes_on_has_every_option(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset = [name for name in options_of(RunOptions) if not getattr(GIVEN, name)]
    assert unset == ["inline", "processes"], "a new option: give it a value above"
    assert started(GIVEN.again(verb), monkeypatch) == GIVEN


def test_a_retry_that_goes_on_has_its_trials_or_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    mistyped = RETRY | {"trials": ["t1-zzz"]}
    for chosen in (RETRY, mistyped, RETRY | {"trials": [], "error_type": "bug"}):
        asked = replace(GIVEN, **chosen)
        assert started(asked.again("retry"), monkeypatch) == asked


@pytest.mark.parametrize("engine", [{"inline": True}, {"processes": "2"}], ids=str)
def test_without_ray_nothing_about_a_cluster_is_named(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables of the shell gave these, and the option overrules them."""
    asked = replace(GIVEN, **engine)
    found = started(asked.again("run"), monkeypatch)
    assert found == replace(asked, address=None)
