"""Options that a dataclass declares: as typed, and as a command to paste names them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.cli import runcli
from lp_sweep.orchestrator.cli.__main__ import app
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.flags import flags_of
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind

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
    stop_if_nothing_learned=True,
    max_hours=2.5,
    mirrors=(MirrorKind.mlflow, MirrorKind.wandb),
)
RETRY: dict[str, Any] = {"retry": True, "trials": ["t1-0c", "p1-77"], "error_type": None}


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> RunOptions:
    """The options that this command would run with."""
    started: list[RunOptions] = []
    monkeypatch.setattr(runcli, "_start", lambda options, _: started.append(options))
    app(shlex.split(command)[1:], standalone_mode=False)
    return started[0]


@pytest.mark.parametrize("verb", ["run", "resume"])
def test_the_command_that_goes_on_has_every_option(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unset = [name for name in flags_of(RunOptions) if getattr(GIVEN, name) in (None, False, ())]
    assert unset == ["inline"], "a new option: give it a value above"
    assert parsed(GIVEN.again(verb), monkeypatch) == GIVEN


def test_a_retry_that_goes_on_has_its_trials_or_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    mistyped = RETRY | {"trials": ["t1-zzz"]}
    for chosen in (RETRY, mistyped, RETRY | {"trials": [], "error_type": "bug"}):
        asked = replace(GIVEN, **chosen)
        assert parsed(asked.again("retry"), monkeypatch) == asked


def test_without_ray_nothing_about_a_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the shell gave these, and --inline overrules them."""
    asked = replace(GIVEN, inline=True)
    found = parsed(asked.again("run"), monkeypatch)
    assert found == replace(asked, address=None)
