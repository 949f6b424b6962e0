"""The cells of a sweep as the store lists them, and notes on results that its tables do not show.

A cell with another recipe, data or model replaces the listed one. No result is lost: the run moves
the old row to the table `earlier`, and a plan reports how many finished trials these are. A run of
a part of a sweep keeps the other cells listed, even those that were trained differently.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.orchestrator.plan.known import with_networks
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.sweepfile.load import is_part
from lp_sweep.storage.networks import BEST, WEIGHTS
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.setups import EARLIER, compared, differences, hidden_notes, recipe_of
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.autorecipe import AUTO
from lp_sweep.trials.spec.identity import setup_id, setup_text

Row = dict[str, Any]


class Listing(NamedTuple):
    """`cells`: new rows of the table `sweeps`. `replaced`: its present rows that move to
    `earlier`."""

    cells: list[Row]
    replaced: list[Row]

    def within(self, listed: Iterable[Row]) -> Listing:
        """The `listed` rows; those with a cell of the same setup here are as they are here."""
        own = {(point(row), row["setup"]): row for row in self.cells}
        rows = [own.get((point(row), row["setup"]), row) | {"cell": row["cell"]} for row in listed]
        return Listing(rows, [])


def point(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that identify a cell. The k of a threshold is a result, and not among them."""
    setting = row["k"] if row["threshold"] is None else None
    axes = ("model", "procedure", "feed_forward", "strategy", "threshold", "task", "seed")
    return (setting, *(row[axis] for axis in axes))


def _settings(plan: Plan) -> dict[tuple[str, str], str]:
    """The setup text of each model on each task. Until `recipe: auto` has found a learning rate it
    is the word, so that no finished trial has this setup."""
    sweep = plan.sweep
    unknown = replace(sweep.recipe, learning_rate=AUTO)  # type: ignore[arg-type]
    return {
        (model.name, name): setup_text(
            model.fingerprint,
            task.definition,
            task.fingerprint,
            plan.recipe((model.name, name)) or unknown,
        )
        for model in sweep.models
        for name, task in sweep.tasks.items()
    }


def relisted(plan: Plan, listed: Iterable[Row], *, part: bool, overrides: str = "") -> Listing:
    """`listed`: the rows of `sweeps` in the store. A run of a `part` of a sweep keeps the rows of
    the other cells."""
    before = {point(row): row for row in listed}
    texts = _settings(plan)
    ids = {key: setup_id(text) for key, text in texts.items()}
    cells = {point(row): row for row in (cell.row() for cell in plan.cells)}
    for asked, row in cells.items():
        row["overrides"] = _asked_by(row, before.get(asked), overrides)
        row["setup"] = ids[row["model"], row["task"]]
        row["settings"] = texts[row["model"], row["task"]]
    merged = (before if part else {}) | cells
    replaced = _replaced(before, merged)
    name = plan.sweep.name
    rows = [row | {"sweep": name, "cell": index} for index, row in enumerate(merged.values())]
    return Listing(rows, replaced)


def _asked_by(row: Mapping[str, Any], listed: Mapping[str, Any] | None, overrides: str) -> str:
    """The overrides to list for a cell: those of the last run of the whole sweep if it asked for
    the same trial, else this run's."""
    if listed and listed["trial_id"] == row["trial_id"]:
        whole = listed["overrides"]
        if whole is not None and not is_part(shlex.split(whole)):
            return str(whole)
    return overrides


def _replaced(before: Mapping[Any, Row], after: Mapping[Any, Row]) -> list[Row]:
    """The rows of `before` whose cell has another setup in `after`. A cell that waited for its
    recipe had no result that could be replaced. A cell that is no longer asked
    for is replaced only if the recipe, the data or the model has changed: a shorter list of seeds
    replaces nothing."""
    pairs = {(row["model"], row["task"]) for row in after.values()}
    texts = {row["setup"]: row["settings"] for row in (*before.values(), *after.values())}
    recipes = {id_: recipe_of(text) for id_, text in texts.items()}
    today = {row["setup"] for row in after.values()}
    in_use = [recipes[id_] for id_ in today]
    replaced = []
    for key, row in before.items():
        setup = row["setup"]
        if key in after:
            changed = setup != after[key]["setup"]
        else:
            here = (row["model"], row["task"]) in pairs
            changed = setup not in today and (here or recipes[setup] not in in_use)
        if changed and (recipes[setup] or {}).get("learning_rate") != AUTO:
            replaced.append(row)
    return replaced


def with_earlier(earlier: Iterable[Row], listing: Listing) -> list[Row]:
    """The rows of the table `earlier`, with those that the listing replaces."""
    merged = {(row["setup"], *point(row)): row for row in earlier}
    merged |= {(row["setup"], *point(row)): row for row in listing.replaced}
    return list(merged.values())


def hidden_by(store: Store, plan: Plan, *, part: bool) -> list[str]:
    """A note for each setup whose finished trials the sweep's tables do not show after a run of
    the plan. Raises StoreError."""
    name = plan.sweep.name
    columns = ["sweep", "model", "task", "setup", "settings", "trial_id"]
    today = store.read_all("sweeps", [name], columns).rows
    earlier = store.read_all(EARLIER, [name]).rows
    changes = _changes(today, plan, part=part)
    if changes:
        listing = relisted(plan, store.find("sweeps", name) or [], part=part)
        rows = with_earlier(store.find(EARLIER, name) or [], listing)
        earlier = pa.Table.from_pylist(rows, TABLES[EARLIER])
        today = pa.Table.from_pylist(listing.cells, TABLES["sweeps"])
    if not len(earlier):
        return []
    setups = compared(earlier, today, plan.known.trials)
    return hidden_notes(setups, store.location, after_a_run=changes)


def _changes(listed: pa.Table, plan: Plan, *, part: bool) -> bool:
    """Whether a run may replace cells: a quick check, since a listing can be long."""
    ids = {key: setup_id(text) for key, text in _settings(plan).items()}
    rows = listed.group_by(["model", "task", "setup"]).aggregate([]).to_pylist()
    keys = [((row["model"], row["task"]), row["setup"]) for row in rows]
    return any(setup != ids[key] if key in ids else not part for key, setup in keys)


def trained_otherwise(store: Store, plan: Plan) -> list[str]:
    """A note where finished trials of listed cells that are not in the plan have another recipe,
    data or model than the plan, since the tables compare both. Raises StoreError."""
    name = plan.sweep.name
    listed, own = store.find("sweeps", name) or [], {point(cell.row()) for cell in plan.cells}
    today = {(name, *pair): text for pair, text in _settings(plan).items()}
    auto = plan.sweep.spec.recipe.automatic  # then each model and task has its own
    ways = [
        [*differences(row, today)]
        for row in listed
        if not (auto and (name, row["model"], row["task"]) not in today)
        and point(row) not in own
        and row["trial_id"] in plan.known.trials
    ]
    number = sum(map(bool, ways))
    if not number:
        return []
    said = "; ".join(dict.fromkeys(way for found in ways for way in found))
    return [
        f"{number} cell{'s' if number > 1 else ''} of sweep {name!r} that this run leaves as they "
        f"are were trained in another way ({said}), and its tables compare them with the cells of "
        "this run. Run the whole sweep, or give this one another `name:`."
    ]


def mixed_threads(plan: Plan, trials: pa.Table) -> list[str]:
    """A note where the plan's done trials used different numbers of CPU threads. `trials` has
    their columns `trial_id`, `device_type` and `threads`."""
    own = pc.is_in(trials["trial_id"], pa.array(plan.trials, pa.string()))
    on_cpu = trials.filter(pc.and_(own, pc.equal(trials["device_type"], "cpu")))
    counts = on_cpu.group_by("threads").aggregate([("trial_id", "count")]).to_pylist()
    numbers = sorted((row["threads"], row["trial_id_count"]) for row in counts if row["threads"])
    if len(numbers) < 2:
        return []
    said = ", ".join(f"{count} with {threads}" for threads, count in numbers)
    return [
        f"done trials used different numbers of CPU threads ({said}), on which scores depend in "
        "their last bits. Where that matters, set resources_per_trial: {cpu: ...} and use another "
        "--store"
    ]


def unkept_note(plan: Plan, store: Store, keep: str) -> str | None:
    """A note on done trials without a kept network, with what to do; None if there are none. For
    `best` one seed of each network is enough. Raises StoreError."""
    if keep == "none" or not (count := _unkept(plan, store, one_seed=keep == BEST)):
        return None
    what = "networks without a kept seed" if keep == BEST else "trials whose networks were not kept"
    return (
        f"keep: {keep} applies from now on, not to {count} done {what}. "
        "`lp-sweep export TRIAL` trains one of them again; a run with another --store trains all"
    )


def _unkept(plan: Plan, store: Store, *, one_seed: bool) -> int:
    done = (plan.trials.keys() & plan.known.trials) - plan.trained_again()
    kept = with_networks(plan.known, store, done & store.folders(WEIGHTS)).networks
    if not one_seed:
        return len(done - kept)
    networks = {id_: replace(plan.trials[id_].trial, seed=0) for id_ in done}
    return len({*networks.values()} - {networks[id_] for id_ in kept})
