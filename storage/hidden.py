"""Sentences on finished trials that today's tables do not show, with the command that does."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable

from lp_sweep.storage.printable import listed
from lp_sweep.storage.setups import INSTEAD, Setup

_MOST_TOLD = 3  # setups, each with a sentence of its own


def hidden_notes(setups: Iterable[Setup], location: str, *, after_a_run: bool = False) -> list[str]:
    """A sentence for each setup with finished trials that today's tables do not show, and the
    command that shows them. `location`: of the store. `after_a_run`: of a plan that replaces cells,
    which the store still lists."""
    hidden: dict[str, list[Setup]] = {}
    for setup in setups:
        if setup.finished:
            hidden.setdefault(setup.sweep, []).append(setup)
    when = " after a run" if after_a_run else ""
    return [
        note
        for sweep, own in hidden.items()
        for note in (
            [_note(setup, when, location) for setup in own]
            if len(own) <= _MOST_TOLD
            else [_short_note(sweep, own, when, location)]
        )
    ]


def _note(setup: Setup, when: str, location: str) -> str:
    trials = "1 finished trial" if setup.finished == 1 else f"{setup.finished:,} finished trials"
    verb = "is" if setup.finished == 1 else "are"
    said = f" ({listed(setup.differences, 6)})" if setup.differences else ""
    options = f"--sweep {shlex.quote(setup.sweep)} --setup {setup.number}"
    return (
        f"{trials} of {setup.sweep!r} used {_kind(setup)}{said} and {verb} not shown{when}: "
        f"`lp-sweep table tasks {options} --store {shlex.quote(location)}` shows "
        f"{'it' if setup.finished == 1 else 'them'}{' then' if when else ''}"
    )


def _kind(setup: Setup) -> str:
    of_recipe = [INSTEAD in way for way in setup.differences]
    if of_recipe and all(of_recipe):
        return "another recipe"
    return "another setup" if any(of_recipe) or not of_recipe else "other data or another model"


def _short_note(sweep: str, setups: Collection[Setup], when: str, location: str) -> str:
    finished = sum(setup.finished for setup in setups)
    options = f"--sweep {shlex.quote(sweep)} --store {shlex.quote(location)}"
    return (
        f"{finished:,} finished trials of {sweep!r} used {len(setups)} earlier setups (another "
        f"recipe, data or model) and are not shown{when}: `lp-sweep table setups {options}` lists "
        f"them{' then' if when else ''}"
    )
