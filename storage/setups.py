"""The setups of a sweep: each combination of recipe, data and model that its cells have had.

The table `sweeps` lists the cells of the current setup. When a sweep's recipe, data or model
changes, its previous cells move to the table `earlier`, so that their results can still be shown.
Earlier setups are numbered, from 1 for the one replaced first. Writes nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import asdict
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import listed
from lp_sweep.storage.specs import Recipe
from lp_sweep.storage.store import Store

EARLIER = "earlier"
_OF = ("sweep", "model", "task", "setup")
_COLUMNS = (*_OF, "settings", "trial_id")  # of cells
INSTEAD = " instead of "  # between the values of a recipe that differ


class Setup(NamedTuple):
    """An earlier setup of a sweep."""

    sweep: str
    number: int
    ids: frozenset[str]  # the column `setup` of its cells: one for each model and task
    differences: tuple[str, ...]  # from the current setup; empty: not known
    cells: int
    finished: int  # finished trials that no cell of the current setup shows


def earlier_setups(
    store: Store, sweep: str | None = None, done: Set[str] | None = None
) -> list[Setup]:
    """The earlier setups of one sweep or of all, by sweep and number. `done`: the finished trials,
    if already known. Raises StoreError."""
    names = None if sweep is None else [sweep]
    earlier = store.read_all(EARLIER, names).rows
    if not len(earlier):
        return []
    done = store.names("trials") if done is None else done
    return compared(earlier, store.read_all("sweeps", names, _COLUMNS).rows, done)


def compared(earlier: pa.Table, today: pa.Table, done: Set[str]) -> list[Setup]:
    """Compares the setups in `earlier`, rows of that table, with `today`, rows of `sweeps`."""
    hidden = pc.and_(
        pc.is_in(earlier["trial_id"], pa.array(done, pa.string())),
        pc.invert(pc.is_in(earlier["trial_id"], today["trial_id"].combine_chunks())),
    )
    cells = _counts(earlier, ([], "count_all"))
    finished = _counts(earlier.filter(hidden), ("trial_id", "count_distinct"))
    now = {(row["sweep"], row["model"], row["task"]): row["settings"] for row in _kinds(today)}
    in_use = {(row["sweep"], row["setup"]) for row in _kinds(today)}
    found = []
    for (sweep, number), kinds in numbered(earlier).items():
        ids = frozenset(row["setup"] for row in kinds)
        if all((sweep, id_) in in_use and not finished.get((sweep, id_)) for id_ in ids):
            continue  # the sweep file was changed and changed back
        said = (way for row in kinds for way in differences(row, now))
        of_each = [(sweep, id_) for id_ in ids]
        found.append(
            Setup(
                sweep,
                number,
                ids,
                tuple(dict.fromkeys(said)),
                sum(cells[key] for key in of_each),
                sum(finished.get(key, 0) for key in of_each),
            )
        )
    return sorted(found, key=lambda setup: (setup.sweep, setup.number))


def _counts(cells: pa.Table, what: tuple[Any, str]) -> dict[tuple[str, str], int]:
    """Aggregates cells by sweep and setup."""
    rows = cells.group_by(["sweep", "setup"]).aggregate([what]).to_pylist()
    return {(row.pop("sweep"), row.pop("setup")): row.popitem()[1] for row in rows}


def _kinds(cells: pa.Table) -> list[dict[str, Any]]:
    """Each setup of each sweep, model and task with its settings, in the order of the cells. A
    setup's settings are stored in one cell, even if two names of a model share the setup."""
    known = cells.filter(pc.is_valid(cells["setup"]))
    grouped = known.group_by(list(_OF), use_threads=False).aggregate([("settings", "max")])
    rows = grouped.to_pylist()
    stored = {(r["sweep"], r["setup"]): r["settings_max"] for r in rows if r["settings_max"]}
    return [{**row, "settings": stored.get((row["sweep"], row["setup"]))} for row in rows]


def numbered(earlier: pa.Table) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Numbers the setups of each sweep in the table `earlier`. A model and task joins the first
    number that has the same recipe and no other setup of this model and task."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    count: dict[str, int] = {}
    for row in _kinds(earlier):
        sweep, recipe = row["sweep"], recipe_of(row["settings"])
        for number in range(1, count.get(sweep, 0) + 1):
            others = found[sweep, number]
            if recipe == recipe_of(others[0]["settings"]) and not any(
                (row["model"], row["task"]) == (other["model"], other["task"]) for other in others
            ):
                others.append(row)
                break
        else:
            count[sweep] = count.get(sweep, 0) + 1
            found[sweep, count[sweep]] = [row]
    return found


def recipe_of(settings: str | None) -> Any:
    """The recipe in a setup's settings, without defaults; None if the settings are not known."""
    return json.loads(settings).get("recipe", {}) if settings else None


def differences(
    was: Mapping[str, Any], today: Mapping[tuple[str, str, str], str | None]
) -> Iterator[str]:
    """How an earlier setup differs from the current one of the same model and task, else of any."""
    here = today.get((was["sweep"], was["model"], was["task"]))
    others = [text for (sweep, *_), text in today.items() if sweep == was["sweep"] and text]
    if not was["settings"] or not (here or others):
        return
    before, now = json.loads(was["settings"]), json.loads(here or others[0])
    recipe = asdict(Recipe(**now["recipe"]))
    for name, value in asdict(Recipe(**before["recipe"])).items():
        if value != recipe[name]:
            yield f"{name} {_value(value)}{INSTEAD}{_value(recipe[name])}"
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
    of_number = {key: kinds for key, kinds in groups.items() if key[1] == number}
    chosen = {(sweep, row["setup"]) for (sweep, _), kinds in of_number.items() for row in kinds}
    if not chosen:
        have = listed(f"{other} of {sweep!r}" for sweep, other in groups) or "none"
        raise SpecError(
            f"--setup {number}: no sweep here in {location} has an earlier setup {number}. "
            f"Earlier setups: {have}. `lp-sweep table setups` describes them."
        )
    own = zip(earlier["sweep"].to_pylist(), earlier["setup"].to_pylist(), strict=True)
    return earlier.filter(pa.array([key in chosen for key in own], pa.bool_()))


def settings_in(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The settings stored in these rows, by setup."""
    return {row["setup"]: row["settings"] for row in rows if row["settings"]}


def with_settings(rows: list[dict[str, Any]], settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Stores each setup's settings in its first row, and in no other."""
    seen: set[str] = set()
    for row in rows:
        setup = row["setup"]
        row["settings"] = settings.get(setup) if setup is not None and setup not in seen else None
        seen.add(setup)
    return rows


_MOST_TOLD = 3  # setups, each with a sentence of its own


def hidden_notes(setups: Iterable[Setup], location: str, *, after_a_run: bool = False) -> list[str]:
    """A sentence for each setup with finished trials that the tables do not show, with the command
    that shows them. location: of the store. after_a_run: the store still lists the cells that a
    planned run will replace."""
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
