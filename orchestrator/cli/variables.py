"""A variable of the environment for each option: `--data-dir` is LP_SWEEP_DATA_DIR, in every
command that has it.

The rule is applied to the whole tree of commands, so that a new option has its variable by itself.
An option that names one of its own (`envvar=`) keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

PREFIX = "LP_SWEEP_"
_EXPORTED = "it says which network one `export` takes"
_PRUNED = "it says which layers one `prune` takes, and of what"

# What is said for one call, and would be a trap for all that come after: the option, of all
# commands or of the one named before it, and why.
WITHOUT = {
    "--version": "it says something, and ends",
    "--force": "it overwrites a file",
    "--fix": "it moves files of a store",
    "--dry-run": "every run would do nothing",
    "--detach": "the run that is the job would be a job again",
    "--failed": "it chooses what one `retry` tries again",
    "--type": "it chooses what one `retry` tries again",
    "--audit": "it makes another command of `plan`",
    "plan --format": "it is of --audit alone",
    "--watch": "a script that asks for the status would never end",
    "--out": "two commands would write to one place",
    "--push-to-hub": "it publishes",
    "--accept-retrained": "it lets a network pass that somebody has looked at",
    "--best": _EXPORTED,
    "--task": _EXPORTED,
    "export --within": _EXPORTED,
    "export --model": _EXPORTED,
    "export --strategy": _EXPORTED,
    "export --seed": _EXPORTED,
    "prune --strategy": _PRUNED,
    "--k": _PRUNED,
    "--layers": _PRUNED,
    "--revision": _PRUNED,
}


class Option(NamedTuple):
    """An option of a command; `command` is as typed, such as `cluster init`."""

    command: str
    flag: str  # the long one
    parameter: Any  # typer's

    @property
    def wanted(self) -> bool:
        """Whether it is to have a variable."""
        return self.flag not in WITHOUT and f"{self.command} {self.flag}" not in WITHOUT


def options_of(command: Any, name: str = "") -> Iterator[Option]:
    """Of a typer command and all below it, but for `--help`."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield Option(name, next(o for o in parameter.opts if o.startswith("--")), parameter)
    for below, subcommand in getattr(command, "commands", {}).items():
        yield from options_of(subcommand, f"{name} {below}".strip())


def variable_of(flag: str) -> str:
    """LP_SWEEP_DATA_DIR of `--data-dir`."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def give_variables(root: Any) -> None:
    """To each option that has none and may have one. Help and errors then name it."""
    for option in options_of(root):
        if option.parameter.envvar is None and option.wanted:
            option.parameter.envvar = variable_of(option.flag)
