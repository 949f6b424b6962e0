"""The setups of a sweep: each combination of recipe, data and model that its cells have had.

The table `sweeps` lists the cells of the current setup. When a sweep's recipe, data or model
changes, its previous cells move to the table `earlier`, so that their results can still be shown.
Earlier setups are numbered, from 1 for the one replaced first. Writes nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import asdict
from typing import Any, NamedTuple

import pyarrow as pa

from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import listed
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.specs import Recipe

EARLIER = "earlier"
_COLUMNS = ("sweep", "model", "task", "setup", "settings", "trial_id")  # of cells

Row = Mapping[str, Any]


class Setup(NamedTuple):
    """An earlier setup of a sweep."""

    sweep: str
    number: int
    differences: tuple[str, ...]  # from the current setup; empty: not known
    cells: int
    finished: int  # finished trials that no cell of the current setup shows


def earlier_setups(store: Store, sweep: str | None = None) -> list[Setup]:
    """The earlier setups of one sweep or of all, by sweep and number. Raises StoreError."""
    names = None if sweep is None else [sweep]
    earlier = store.read_all(EARLIER, names).rows
    if not len(earlier):
        return []
    today = store.read_all("sweeps", names, _COLUMNS).rows
    return compared(earlier, today, store.names("trials"))


def compared(earlier: pa.Table, today: pa.Table, done: Set[str]) -> list[Setup]:
    """Compares the setups in `earlier`, rows of that table, with `today`, rows of `sweeps`."""
    current = _rows(today)
    now = {(row["sweep"], row["model"], row["task"]): row["settings"] for row in current}
    in_use = {(row["sweep"], row["setup"]) for row in current}
    hidden = done - {row["trial_id"] for row in current}
    found = []
    for (sweep, number), rows in sorted(numbered(earlier).items()):
        finished = len(hidden & {row["trial_id"] for row in rows})
        if not finished and all((sweep, row["setup"]) in in_use for row in rows):
            continue  # the sweep file was changed and changed back
        ways = {(row["model"], row["task"], row["setup"]): row for row in rows}.values()
        said = dict.fromkeys(way for row in ways for way in differences(row, now))
        found.append(Setup(sweep, number, tuple(said), len(rows), finished))
    return found


def _rows(cells: pa.Table) -> list[dict[str, Any]]:
    """The cells whose setup is known."""
    return [row for row in cells.select(_COLUMNS).to_pylist() if row["setup"] is not None]


def numbered(earlier: pa.Table) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Numbers the setups of each sweep in the table `earlier`. A model and task joins the first
    number that has the same recipe and no other setup of this model and task."""
    kinds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in _rows(earlier):
        key = (row["sweep"], row["model"], row["task"], row["setup"])
        kinds.setdefault(key, []).append(row)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for (sweep, *pair, _), rows in kinds.items():
        number, recipe = 1, recipe_of(rows[0]["settings"])
        while others := found.get((sweep, number)):
            taken = any(pair == [row["model"], row["task"]] for row in others)
            if recipe == recipe_of(others[0]["settings"]) and not taken:
                break
            number += 1
        found.setdefault((sweep, number), []).extend(rows)
    return found


def recipe_of(settings: str | None) -> Any:
    """The recipe in a setup's settings, without defaults; None if the settings are not known."""
    return json.loads(settings).get("recipe", {}) if settings else None


def differences(was: Row, today: Mapping[tuple[str, str, str], str | None]) -> Iterator[str]:
    """How an earlier setup differs from the current one of the same model and task, else of any."""
    here = today.get((was["sweep"], was["model"], was["task"]))
    others = [text for (sweep, *_), text in today.items() if sweep == was["sweep"] and text]
    if not was["settings"] or not (here or others):
        return
    before, now = json.loads(was["settings"]), json.loads(here or others[0])
    recipe = asdict(Recipe(**now["recipe"]))
    for name, value in asdict(Recipe(**before["recipe"])).items():
        if value != recipe[name]:
            yield f"{name} {_value(value)} instead of {_value(recipe[name])}"
    if here and before["data"] != now["data"]:
        yield f"other data of task {was['task']!r}"
    if here and before["task"] != now["task"]:
        yield f"task {was['task']!r} read or scored in another way"
    if here and before["model"] != now["model"]:
        yield f"another revision or other weights of model {was['model']!r}"


def _value(value: Any) -> str:
    if value is None:
        return "no limit"
    return ("+".join(map(str, value)) or "none") if isinstance(value, tuple | list) else str(value)


def cells_of_setup(earlier: pa.Table, number: int, location: str) -> pa.Table:
    """The cells of the earlier setups with this number. Raises SpecError if there are none."""
    groups = numbered(earlier)
    chosen = {
        (sweep, row["setup"])
        for (sweep, other), rows in groups.items()
        for row in rows
        if other == number
    }
    if not chosen:
        have = listed(f"{other} of {sweep!r}" for sweep, other in groups) or "none"
        raise SpecError(
            f"--setup {number}: no sweep here in {location} has an earlier setup {number}. "
            f"Earlier setups: {have}. `lp-sweep table setups` describes them."
        )
    own = zip(earlier["sweep"].to_pylist(), earlier["setup"].to_pylist(), strict=True)
    return earlier.filter(pa.array([key in chosen for key in own], pa.bool_()))


def hidden_notes(setups: Iterable[Setup], location: str, *, after_a_run: bool = False) -> list[str]:
    """A sentence for each sweep with finished trials that the tables do not show, with the command
    that shows them. location: of the store. after_a_run: the store still lists the cells that a
    planned run will replace."""
    hidden: dict[str, list[Setup]] = {}
    for setup in setups:
        if setup.finished:
            hidden.setdefault(setup.sweep, []).append(setup)
    return [_note(own, location, " after a run" if after_a_run else "") for own in hidden.values()]


def _note(setups: list[Setup], location: str, when: str) -> str:
    number = sum(setup.finished for setup in setups)
    first, *more = setups
    used, command = f"{len(setups)} earlier setups (another recipe, data or model)", "setups"
    if not more:
        ways = listed(first.differences, 6) or "recipe, data or model"
        used, command = f"another setup ({ways})", f"tasks --setup {first.number}"
    return (
        f"{number:,} finished trial{'s' * (number > 1)} of {first.sweep!r} used {used} and "
        f"{'are' if number > 1 else 'is'} not shown{when}: `lp-sweep table {command} "
        f"--sweep {shlex.quote(first.sweep)} --store {shlex.quote(location)}`"
    )
