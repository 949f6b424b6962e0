"""A store's side of the comparison with the paper: top layers dropped, on the seven tasks.

`load` reads a catalog once; `measure` answers for one printed number. A model and its kept layers
identify a network, whichever strategy lists it. A trial that several sweeps share counts once. For
each model, only the speeds of one device count: the paper used one device, and ratios across
devices mean nothing. Does not know the paper's results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from lp_sweep.analysis.paper.equivalence import DEV_ROWS, Evidence, Spread, over_rows, spread
from lp_sweep.analysis.paper.numbers import DEPTHS, TASKS, Number
from lp_sweep.analysis.rows import Row, grouped
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError

# selects networks with all their feed-forwards
WHOLE_LAYERS = "coalesce(feed_forward, 'none') = 'none'"

_RUNS = f"""
WITH listed AS (  -- layers 1..n are kept: the top ones are dropped
    SELECT *, regexp_replace(lower(task), '[\\s_-]', '', 'g') AS paper_task
    FROM cells
    WHERE n_kept > 0 AND kept_layers = range(1, n_kept + 1)
        AND list_contains($models::VARCHAR[], model) AND {WHOLE_LAYERS}
),
recorded AS (
    SELECT
        trial_id, dev_examples,
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
    any_value(cut) AS cut, any_value(recipe) AS recipe, any_value(dev_examples) AS rows,
    list(DISTINCT sweep ORDER BY sweep) AS sweeps
FROM listed LEFT JOIN recorded USING (trial_id)
WHERE list_contains($tasks::VARCHAR[], paper_task)
GROUP BY ALL
ORDER BY ALL
"""

RunKey = tuple[str, str, int | None, str | None]  # model, procedure, K, task


class Run(NamedTuple):
    """One trial, in points. No score: the sweep lists it, but it has no record (yet)."""

    seed: int
    score: float | None
    change: float | None
    rows: int | None  # of the dev set


class Loss(NamedTuple):
    points: float
    evidence: Evidence


class Measured(NamedTuple):
    """A value of the store. `low` and `high`: with missing cells, it lies between these; both equal
    `value` if it is known. `evidence`: for a mean of scores. `losses`: by K, if the value is a
    K."""

    value: float | None = None
    sd: float | None = None
    n: int = 0
    low: float | None = None
    high: float | None = None
    evidence: Evidence | None = None
    losses: Mapping[int, Loss] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """The store's side. Keys are the paper's models (hub ids) and tasks (sst2, ...)."""

    runs: Mapping[RunKey, Sequence[Run]]
    timed: Mapping[tuple[str, int | None, str], Measured]  # by model, K and quantity
    timed_notes: tuple[str, ...]
    notes: tuple[str, ...]
    spreads: Mapping[str, Spread]  # by task

    def procedures(self, model: str) -> set[str]:
        return {key[1] for key in self.runs if key[0] == model}


def models(catalog: Catalog) -> dict[str, int]:
    """The store's models, with their depths."""
    found = catalog.query("SELECT DISTINCT model, depth FROM cells ORDER BY ALL").to_pylist()
    return {row["model"]: row["depth"] for row in found}


def load(catalog: Catalog, names: Mapping[str, str]) -> Ours:
    """Everything in the store for which the paper has a number.

    `names` maps models of the store to the paper's; other models are found by name. Raises
    SpecError for an unknown name on either side.
    """
    stand = stands(models(catalog).items(), names)
    timed = load_timed(catalog, stand)
    wanted = {"models": list(stand.of), "tasks": list(TASKS)}
    rows = catalog.query(_RUNS, wanted).to_pylist()
    cut = {(sweep, row["task"]) for row in rows if row["cut"] for sweep in row["sweeps"]}
    whole = [row for row in rows if not _is_cut(row, cut)]
    runs = _runs(whole, stand)
    return Ours(
        runs=runs,
        timed=timed.of,
        timed_notes=timed.notes,
        notes=(*stand.notes, *_cut_notes(cut), *_recipe_notes(whole)),
        spreads={task: _spread(task, runs) for task in TASKS},
    )


def _spread(task: str, runs: Mapping[RunKey, Sequence[Run]]) -> Spread:
    networks = [of for key, of in runs.items() if key[-1] == task]
    return spread(task, ([run.score for run in of if run.score is not None] for of in networks))


def _is_cut(row: Row, cut: set[tuple[str, str]]) -> bool:
    """Whether the trial belongs only to sweeps that train on part of the task's rows: these say
    nothing about the whole task."""
    return all((sweep, row["task"]) in cut for sweep in row["sweeps"])


def _cut_notes(cut: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    named = ", ".join(f"{task} of {sweep}" for sweep, task in sorted(cut))
    return (f"Left out, scored on a part of the rows (limit_*): {named}.",) if named else ()


def _recipe_notes(rows: Iterable[Row]) -> tuple[str, ...]:
    recipes = sorted({row["recipe"] for row in rows if row["recipe"]})
    if len(recipes) > 1:
        return (f"{len(recipes)} recipes are pooled, --sweep takes one: {'; '.join(recipes)}.",)
    return tuple(f"Our recipe: {recipe}." for recipe in recipes)


def _runs(rows: Iterable[Row], stand: Stand) -> dict[RunKey, list[Run]]:
    def key(row: Row) -> RunKey:
        return stand.of[row["model"]], row["procedure"], row["k"], row["task"]

    return {
        place: [Run(row["seed"], row["score"], row["change"], row["rows"]) for row in of]
        for place, of in grouped(rows, key).items()
    }


def measure(ours: Ours, number: Number) -> Measured:
    """The store's value for the paper's `number`."""
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
    runs = _of(ours, number, number.k, number.task)
    found = _over_runs(run.score for run in runs)
    if found.value is None:
        return found
    task = str(number.task)
    of = ours.spreads[task]
    rows = over_rows(task, number.best_value, DEV_ROWS[task])
    rows += over_rows(task, found.value, _rows(runs, task))
    return found._replace(evidence=Evidence(found.n, rows, of.variance, of.freedom))


def _change(ours: Ours, number: Number) -> Measured:
    found = _over_runs(run.change for run in _of(ours, number, number.k, number.task))
    return found._replace(evidence=_of_change(ours, number, number.k, str(number.task), found.n))


def _of_change(ours: Ours, number: Number, k: int | None, task: str, n: int) -> Evidence | None:
    """The evidence for a mean over `n` seeds of a network's score minus that of all layers. Each
    side has both networks; the paper's are assumed to score like ours."""
    rows = 0.0
    for depth in (0, k):
        runs = _of(ours, number, depth, task)
        known = [run.score for run in runs if run.score is not None]
        if not known:
            return None
        rows += sum(over_rows(task, mean(known), of) for of in (DEV_ROWS[task], _rows(runs, task)))
    of = ours.spreads[task]
    return Evidence(n, rows, 2 * of.variance, of.freedom)


def _rows(runs: Iterable[Run], task: str) -> int:
    return min((run.rows for run in runs if run.rows), default=DEV_ROWS[task])


def _loss(ours: Ours, number: Number) -> Measured:
    """The mean loss over the seeds that have all seven tasks: means over different tasks are not
    comparable."""
    by_seed: dict[int, dict[str, list[float]]] = {}
    for task in TASKS:
        for run in _of(ours, number, number.k, task):
            if run.change is not None:
                by_seed.setdefault(run.seed, {}).setdefault(task, []).append(run.change)
    complete = [tasks for tasks in by_seed.values() if len(tasks) == len(TASKS)]
    found = _over_runs(-mean(mean(changes) for changes in tasks.values()) for tasks in complete)
    parts = [_of_change(ours, number, number.k, task, found.n) for task in TASKS]
    return found._replace(evidence=_mean_of([part for part in parts if part], found.n))


def _mean_of(parts: Sequence[Evidence], n: int) -> Evidence | None:
    """The evidence for a mean over the seven tasks, whose rows and networks differ."""
    if not n or len(parts) < len(TASKS):
        return None
    seeds = [part.seeds / len(TASKS) ** 2 for part in parts]
    freedom = sum(seeds) ** 2 / sum(
        own**2 / part.freedom for own, part in zip(seeds, parts, strict=True)
    )
    return Evidence(n, sum(part.rows for part in parts) / len(TASKS) ** 2, sum(seeds), freedom)


def _most_dropped(ours: Ours, number: Number) -> Measured:
    """The largest K within delta, by the rule of the view `min_layers`. It considers every K: one
    that no sweep lists is open."""
    assert number.delta is not None
    full = _over_runs(run.score for run in _of(ours, number, 0, number.task))
    if full.value is None:
        return full
    low, high, n = 0, 0, full.n
    losses: dict[int, Loss] = {}
    for k in range(1, DEPTHS[number.model]):
        changes = [run.change for run in _of(ours, number, k, number.task)]
        known = [change for change in changes if change is not None]
        evidence = _of_change(ours, number, k, str(number.task), len(known)) if known else None
        if evidence:
            losses[k] = Loss(-mean(known), evidence)
        if not known or len(known) < len(changes):
            high = k
        elif -mean(known) <= number.delta + 1e-9:  # float noise, as in the view
            low, high, n = k, k, len(known)
    value = float(low) if low == high else None
    return Measured(value, None, n, float(low), float(high), losses=losses)


def _timed(ours: Ours, number: Number) -> Measured:
    return ours.timed.get((number.model, number.k, number.quantity), Measured())


_MEASURES: dict[str, Callable[[Ours, Number], Measured]] = {
    "score": _score,
    "change": _change,
    "loss": _loss,
    "max_dropped": _most_dropped,
    "parameters_million": _timed,
    "finetune_speedup": _timed,
    "inference_percent": _timed,
}


# The paper doesn't say cased or uncased; its scores fit cased. Uncased counts if there is no cased.
SECOND_CHOICE = {
    "bert-base-uncased": "bert-base-cased",
    "distilbert-base-uncased": "distilbert-base-cased",
}


class Stand(NamedTuple):
    of: dict[str, str]  # the store's model -> the paper's
    notes: tuple[str, ...]


def stands(found: Iterable[tuple[str, int]], names: Mapping[str, str]) -> Stand:
    """Match the store's models with the paper's. `found`: models with their depths.

    A name is the last part of a path or hub id. `names` takes precedence over models found by name,
    and an exact name over SECOND_CHOICE: cased and uncased are never pooled. Raises SpecError for a
    name in `names` that the store or the paper does not have, and for a different number of layers.
    """
    models = dict(found)
    mapped = {_in_store(ours, models): _in_paper(paper) for ours, paper in names.items()}
    for ours, paper in mapped.items():
        if models[ours] != DEPTHS[paper]:
            raise SpecError(
                f"--model {ours}={paper}: {ours} has {models[ours]} layers, {paper} has "
                f"{DEPTHS[paper]}: their K are not the same networks."
            )
    of, notes = dict(mapped), []
    for choice in (_exact, _second):
        taken = set(of.values())
        for ours, depth in models.items():
            known = choice(ours)
            if known is None or ours in of or known in taken:
                continue
            if depth == DEPTHS[known]:
                of[ours] = known
            else:
                notes.append(f"{ours} has {depth} layers, {known} has {DEPTHS[known]}: left out.")
    renamed = (f"{ours} stands for {paper}." for ours, paper in of.items() if ours != paper)
    return Stand(of, (*renamed, *notes))


def _last_part(model: str) -> str:
    return model.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()


def _exact(model: str) -> str | None:
    name = _last_part(model)
    return name if name in DEPTHS else None


def _second(model: str) -> str | None:
    return SECOND_CHOICE.get(_last_part(model))


def _in_paper(name: str) -> str:
    found = _exact(name) or _second(name)
    if found is None:
        raise SpecError(f"the paper has no model {name!r}. It has: {', '.join(DEPTHS)}.")
    return found


def _in_store(name: str, models: Mapping[str, int]) -> str:
    if name not in models:
        have = ", ".join(models) or "none"
        raise SpecError(f"the store has no cell of a model {name!r}. It has: {have}.")
    return name


_NETWORKS = """
FROM speed_table  -- only the paper's batch of 32; larger batches are for fast GPUs
WHERE list_contains($models::VARCHAR[], model) AND feed_forward = 'none'
    AND kept_layers = range(1, n_kept + 1) AND coalesce(batch, 32) = 32
ORDER BY sweep, model, device_name, threads, precision, length, k
"""
_WAY = ("model", "device_name", "threads", "precision", "length")  # how a speed was measured


class Timed(NamedTuple):
    """Sizes and speeds by the paper's model, K and quantity; notes on how they were measured."""

    of: Mapping[tuple[str, int | None, str], Measured]
    notes: tuple[str, ...]


def load_timed(catalog: Catalog, stand: Stand) -> Timed:
    rows = catalog.query(_NETWORKS, {"models": list(stand.of)}).to_pylist()
    found = {}
    for row in sorted(rows, key=lambda row: row["n_trials"]):  # the row with the most trials wins
        millions = None if row["params_total"] is None else row["params_total"] / 1e6
        key = (stand.of[row["model"]], row["k"])
        found[*key, "parameters_million"] = _counted(millions, row["n_trials"])
    notes = set()
    for row in _of_one_device(rows):
        model, inference = stand.of[row["model"]], row["inference_speedup"]
        saved = 100 * (1 - 1 / inference) if inference else None
        speed = _counted(row["finetune_speedup"], row["pairs"])
        found[model, row["k"], "finetune_speedup"] = speed
        found[model, row["k"], "inference_percent"] = _counted(saved, row["pairs"])
        notes.add(
            f"Speeds of {model}: measured on {row['device_name']}, {row['precision']}, "
            f"{row['batch']} rows of {row['length']} tokens; n counts pairs."
        )
    return Timed(found, tuple(sorted(notes)))


def _of_one_device(rows: Iterable[Row]) -> list[Row]:
    """For each model, the rows measured in one way: the way with the most networks."""
    ways: dict[tuple[Any, ...], dict[int, Row]] = {}
    for row in rows:
        if row["profile_id"] is not None:
            ways.setdefault(tuple(row[name] for name in _WAY), {})[row["k"]] = row
    chosen: dict[str, dict[int, Row]] = {}
    for (model, *_), found in ways.items():
        if len(found) > len(chosen.get(model, ())):
            chosen[model] = found
    return [row for found in chosen.values() for row in found.values()]


def _counted(value: float | None, n: int) -> Measured:
    """One number over `n` trials or pairs."""
    known = value is not None and math.isfinite(value)
    return Measured(value, None, n, value, value) if known else Measured()
