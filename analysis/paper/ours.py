"""What a store has of the paper's networks: top layers dropped, on the seven tasks.

`load` reads a catalog once; `measure` answers for one printed number. A network is known by its
model and the layers it keeps, whichever strategy lists it; a trial that several sweeps share counts
once. Nothing here knows what the paper found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from lp_sweep.analysis.paper.models import Stand, stands
from lp_sweep.analysis.paper.numbers import DEPTHS, TASKS, Number
from lp_sweep.analysis.paper.timed import Speed, Timed, load_timed
from lp_sweep.storage.catalog import Catalog

# one line to change: rows of networks whose feed-forwards are all there
WHOLE_LAYERS = "coalesce(feed_forward, 'none') = 'none'"

_RUNS = f"""
WITH listed AS (  -- 1..n are kept: the top ones are dropped
    SELECT *, regexp_replace(lower(task), '[\\s_-]', '', 'g') AS paper_task
    FROM cells
    WHERE n_kept > 0 AND kept_layers = range(1, n_kept + 1)
        AND list_contains($models::VARCHAR[], model) AND {WHOLE_LAYERS}
),
recorded AS (
    SELECT
        trial_id,
        coalesce(train_examples >= limit_train, false)
            OR coalesce(dev_examples >= limit_dev, false) AS cut,
        format('learning rate {{}}, batch {{}}, {{}} epochs, length {{}}{{}}',
            learning_rate, batch_size, epochs, max_length,
            CASE WHEN freeze_embeddings OR len(freeze_layers) > 0 THEN ', partly frozen' ELSE '' END
        ) AS recipe
    FROM trials
)
SELECT
    model, procedure, depth - n_kept AS k, paper_task AS task, seed, trial_id,
    any_value(score) AS score, any_value(change) AS change,
    any_value(cut) AS cut, any_value(recipe) AS recipe,
    list(DISTINCT sweep ORDER BY sweep) AS sweeps
FROM listed LEFT JOIN recorded USING (trial_id)
WHERE list_contains($tasks::VARCHAR[], paper_task)
GROUP BY ALL
ORDER BY ALL
"""

RunKey = tuple[str, str, int | None, str | None]  # model, procedure, K, task


class Run(NamedTuple):
    """One trial, in points; no score: it is listed and not there (yet)."""

    seed: int
    score: float | None
    change: float | None


class Measured(NamedTuple):
    """`low` and `high`: what missing cells leave open; both are `value` where it is known."""

    value: float | None = None
    sd: float | None = None
    n: int = 0
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """A store's side. Keys are the paper's models (hub ids) and tasks (sst2, ...)."""

    runs: Mapping[RunKey, Sequence[Run]]
    timed: Timed
    notes: tuple[str, ...]

    def procedures(self, model: str) -> set[str]:
        return {key[1] for key in self.runs if key[0] == model}


def models(catalog: Catalog) -> dict[str, int]:
    """The store's models, with their depths."""
    found = catalog.query("SELECT DISTINCT model, depth FROM cells ORDER BY ALL").to_pylist()
    return {row["model"]: row["depth"] for row in found}


def load(catalog: Catalog, names: Mapping[str, str]) -> Ours:
    """Everything of the store that the paper has a number for.

    `names` says which of the store's models stands for which of the paper's; the others are found
    by name. Raises SpecError for a name that neither side has.
    """
    stand = stands(models(catalog).items(), names)
    wanted = {"models": list(stand.of), "tasks": list(TASKS)}
    rows = catalog.query(_RUNS, wanted).to_pylist()
    cut = {(sweep, row["task"]) for row in rows if row["cut"] for sweep in row["sweeps"]}
    whole = [row for row in rows if not _is_cut(row, cut)]
    return Ours(
        runs=_runs(whole, stand),
        timed=load_timed(catalog, stand),
        notes=(*stand.notes, *_cut_notes(cut), *_recipe_notes(whole)),
    )


def _is_cut(row: Mapping[str, Any], cut: set[tuple[str, str]]) -> bool:
    """A sweep that trains on a part of a task's rows says nothing of the whole task."""
    return all((sweep, row["task"]) in cut for sweep in row["sweeps"])


def _cut_notes(cut: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    named = ", ".join(f"{task} of {sweep}" for sweep, task in sorted(cut))
    return (f"Left out, scored on a part of the rows (limit_*): {named}.",) if named else ()


def _recipe_notes(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    recipes = sorted({row["recipe"] for row in rows if row["recipe"]})
    if len(recipes) > 1:
        return (f"{len(recipes)} recipes are pooled, --sweep takes one: {'; '.join(recipes)}.",)
    return tuple(f"Our recipe: {recipe}." for recipe in recipes)


def _runs(rows: Iterable[Mapping[str, Any]], stand: Stand) -> dict[RunKey, list[Run]]:
    runs: dict[RunKey, list[Run]] = {}
    for row in rows:
        key = (stand.of[row["model"]], row["procedure"], row["k"], row["task"])
        runs.setdefault(key, []).append(Run(row["seed"], row["score"], row["change"]))
    return runs


def measure(ours: Ours, number: Number) -> Measured:
    """The store's value of what `number` is of."""
    return _MEASURES[number.quantity](ours, number)


def _over_runs(values: Iterable[float | None]) -> Measured:
    known = [value for value in values if value is not None]
    if not known:
        return Measured()
    value = mean(known)
    return Measured(value, stdev(known) if len(known) > 1 else None, len(known), value, value)


def _of(ours: Ours, number: Number, k: int | None, task: str | None) -> Sequence[Run]:
    return ours.runs.get((number.model, number.procedure, k, task), ())


def _score(ours: Ours, number: Number) -> Measured:
    return _over_runs(run.score for run in _of(ours, number, number.k, number.task))


def _change(ours: Ours, number: Number) -> Measured:
    return _over_runs(run.change for run in _of(ours, number, number.k, number.task))


def _loss(ours: Ours, number: Number) -> Measured:
    """Over the seeds that have all seven tasks: a mean over fewer would compare nothing."""
    by_seed: dict[int, dict[str, list[float]]] = {}
    for task in TASKS:
        for run in _of(ours, number, number.k, task):
            if run.change is not None:
                by_seed.setdefault(run.seed, {}).setdefault(task, []).append(run.change)
    complete = [tasks for tasks in by_seed.values() if len(tasks) == len(TASKS)]
    return _over_runs(-mean(mean(changes) for changes in tasks.values()) for tasks in complete)


def _most_dropped(ours: Ours, number: Number) -> Measured:
    """The rule of the view `min_layers`, with every K in question: one nobody asked for is open."""
    assert number.delta is not None
    full = _over_runs(run.score for run in _of(ours, number, 0, number.task))
    if full.value is None:
        return full
    low, high, n = 0, 0, full.n
    for k in range(1, DEPTHS[number.model]):
        changes = [run.change for run in _of(ours, number, k, number.task)]
        known = [change for change in changes if change is not None]
        if not known or len(known) < len(changes):
            high = k
        elif -mean(known) <= number.delta + 1e-9:  # float noise, as in the view
            low, high, n = k, k, len(known)
    return Measured(float(low) if low == high else None, None, n, float(low), float(high))


def _parameters(ours: Ours, number: Number) -> Measured:
    size = ours.timed.sizes.get((number.model, number.k))
    return _one(size.parameters_million, size.n) if size else Measured()


def _of_speed(column: str) -> Callable[[Ours, Number], Measured]:
    def measured(ours: Ours, number: Number) -> Measured:
        speed = ours.timed.speeds.get((number.model, number.k))
        return _one(getattr(speed, column), speed.n) if speed else Measured()

    return measured


def _one(value: float | None, n: int) -> Measured:
    known = value is not None and math.isfinite(value)
    return Measured(value, None, n, value, value) if known else Measured()


_MEASURES: dict[str, Callable[[Ours, Number], Measured]] = {
    "score": _score,
    "change": _change,
    "loss": _loss,
    "max_dropped": _most_dropped,
    "parameters_million": _parameters,
    **{column: _of_speed(column) for column in Speed._fields if column != "n"},
}
