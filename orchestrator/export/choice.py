"""Chooses the network that `export --best` takes: the smallest within a loss, and one seed of it.

The answer is that of the view `min_layers`, as in `table min-layers`. The seed is the one with the
median score: the best of several seeds on the dev set would be optimistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis import needed, shipping
from lp_sweep.analysis.notes import barely, did_not_learn, mixed_notes
from lp_sweep.analysis.phrases import points
from lp_sweep.analysis.rows import TableSelection
from lp_sweep.analysis.statistics import selection
from lp_sweep.analysis.statistics.candidates import candidate_rows
from lp_sweep.analysis.statistics.minimum import credible_sets
from lp_sweep.analysis.statistics.networks import Answers, Network, Reader, answers_of
from lp_sweep.orchestrator.options import ExportOptions
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import choose
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.train.metrics import margins

VIEWS = ("min_layers_by_unit", "cells", "trials")  # that the queries here and in `selection` read
SHIPPED_VIEWS = ("deployments", "trials", "predictions", "cells")
Row = Mapping[str, Any]

_ANSWERS = """
FROM min_layers_by_unit
WHERE task = $task AND unit = $unit
    AND ($model::VARCHAR IS NULL OR model = $model)
    AND ($strategy::VARCHAR IS NULL OR strategy = $strategy)
ORDER BY position
"""
# two thresholds may choose the same network, and all strategies and procedures share the full model
# (K=0), unless another model taught it
_SEEDS = """
SELECT DISTINCT seed, trial_id, score
FROM cells
WHERE (sweep, model, task) = ($sweep, $model, $task)
    AND feed_forward = 'none' AND state = 'done' AND score IS NOT NULL
    AND kept_layers = $kept::INTEGER[]
    AND CASE WHEN n_kept = depth THEN trial_id = full_trial_id
        ELSE (procedure, strategy) = ($procedure, $strategy) END
ORDER BY score, seed
"""


# the best network of each number of layers, and all seeds of it; the full model is that of losses
_FRONT = """
WITH seeds AS (
    SELECT DISTINCT sweep, model, depth, n_kept, kept_layers, seed, trial_id, score,
        CASE WHEN n_kept = depth THEN NULL ELSE procedure END AS procedure
    FROM cells
    WHERE task = $task AND ($model::VARCHAR IS NULL OR model = $model)
        AND feed_forward = 'none' AND state = 'done' AND score IS NOT NULL
        AND (n_kept < depth OR trial_id = full_trial_id)
), placed AS (
    SELECT *, row_number() OVER (network ORDER BY score, seed) AS place,
        (count(*) OVER network + 1) // 2 AS median
    FROM seeds
    WINDOW network AS (PARTITION BY sweep, model, depth, n_kept, kept_layers, procedure)
)
SELECT sweep, model, depth, n_kept, kept_layers, avg(score) AS mean,
    list({'trial_id': trial_id, 'seed': seed} ORDER BY abs(place - median), place) AS trials
FROM placed
GROUP BY sweep, model, depth, n_kept, kept_layers, procedure
QUALIFY row_number() OVER (PARTITION BY sweep, model, n_kept ORDER BY mean DESC, kept_layers) = 1
ORDER BY n_kept DESC
"""


class TrialChoice(NamedTuple):
    trial_id: str
    why: str  # sentences, for the terminal and the card
    seeds: Mapping[int, str]  # each seed of this network, with its trial
    caution: str = ""  # sentences on why the answer may say little
    luck: str = ""  # how much of the score comes from being chosen on these rows


def best(catalog: Catalog, asked: ExportOptions, read: Reader | None = None) -> TrialChoice:
    """Chooses from a catalog whose only delta is `asked.within`. `read` returns the predictions
    that the luck of the choice is estimated from. Raises SpecError if the answer is not known."""
    rows = _answers(catalog, asked)
    row = _smallest(rows, asked)
    row = {**row, "credible": credible_sets(catalog, [row])[0]}
    names = ("sweep", "model", "procedure", "task", "strategy")
    place = {name: row[name] for name in names} | {"kept": row["kept_layers"]}
    seeds = catalog.query(_SEEDS, place).to_pylist()
    among = "" if asked.strategy else " Chosen over all strategies of the sweep."
    reason = f"{row['task']}: {needed.needs(row, [row] if asked.strategy else rows)}.{among}"
    chosen = _one_seed(seeds, asked.seed, reason)
    assumed = needed.assumption(row)
    searched = f"The answer of its search assumes: {assumed}." if assumed else ""
    mixed = mixed_notes(catalog, [row["model"]], sweep=row["sweep"], task=row["task"])
    little = f"{barely(row).capitalize()}." if barely(row) else ""
    cautions = (did_not_learn([row]), little, *mixed, searched)
    luck = ""
    if read:
        whole = selection.ChoicePlace(row["sweep"], row["model"], row["task"], asked.strategy)
        loaded = selection.load(catalog, whole, read)
        luck = selection.sentence(loaded, asked.within, asked.unit)
    return chosen._replace(caution=" ".join(filter(None, cautions)), luck=luck)


def to_ship(
    catalog: Catalog, asked: ExportOptions, devices: Sequence[str]
) -> tuple[TrialChoice, Row]:
    """The artefact that loses at most `asked.within` and meets the budget, and its row of
    `candidates`: of those measured on the first of `devices` that has any, or on the only one.
    Raises SpecError."""
    _check_names(catalog, {"task": asked.task, "model": asked.model})
    models = [asked.model] if asked.model else []
    table = candidate_rows(catalog, TableSelection(models=models, budget=asked.budget))
    rows = [row for row in table.to_pylist() if row["task"] == asked.task]
    places = {(row["model"], row["device_name"], row["threads"]) for row in rows}
    of = (found for name in devices if (found := {place for place in places if place[1] == name}))
    here = next(of, places)
    if not rows:
        raise SpecError(
            f"nothing of {asked.task!r} is measured as it is shipped. Measure it on the machine "
            f"that serves: lp-sweep measure --task {asked.task}"
        )
    if len(here) > 1:
        known = "; ".join(f"{model} on {on}, threads {n}" for model, on, n in sorted(here))
        raise SpecError(f"{asked.task!r} is measured in several places: {known}. Name a --model.")
    ((_, on, threads),) = here
    rows = [row for row in rows if (row["model"], row["device_name"], row["threads"]) in here]
    for row in rows:
        if row["chosen_within"]:
            why = f"{asked.task}: {shipping.shipped(row)}, measured on {on}, threads {threads}."
            return TrialChoice(row["trial_id"], why, {}), row
    near = "; ".join(shipping.shipped(row) for row in rows if row["nearest_within"])
    limit = f"at most {points(asked.within)}"
    raise SpecError(f"nothing on {asked.task!r} loses {limit} within the budget. Nearest: {near}")


def front(catalog: Catalog, task: str, model: str | None) -> list[Row]:
    """The full model, then a network for each smaller number of layers. `trials`: its seeds, that
    with the median score first, then by how near they are to it. Raises SpecError if the store has
    no score of the full model, or several sweeps or models with this task."""
    _check_names(catalog, {"task": task, "model": model})
    rows: list[Row] = catalog.query(_FRONT, {"task": task, "model": model}).to_pylist()
    _check_single(rows, task)
    if not rows or rows[0]["n_kept"] < rows[0]["depth"]:
        raise SpecError(
            f"no network with all layers is done on {task!r} yet, and every artefact is compared "
            "with it. `lp-sweep run` does what is missing."
        )
    return rows


def stored_answers(store: Store) -> Reader:
    """Reads predictions of the main dev split one network at a time: a store may have many."""
    first: dict[str, Any] = {}  # a record of the task: all have the same split and positive class

    def read(network: Network) -> Answers:
        if not first:
            first.update((store.find("trials", network.trial_id) or [{}])[0])
        rows = store.find("predictions", network.trial_id) or []
        return answers_in(first, network.metric, rows)

    return read


def answers_in(record: Row, metric: str, predictions: Sequence[Row]) -> Answers:
    """A network's answers to the rows of its main dev split, from its rows of PREDICTIONS."""
    main = (record.get("epoch_metrics") or [{}])[0].get("split") or "validation"
    own = sorted(
        (row for row in predictions if row["split"] == main), key=lambda row: row["example"]
    )
    numbers = [(row["example"], row["label"], row["prediction"]) for row in own]
    columns = np.array(numbers, np.float64).reshape(-1, 3)
    if facts_of(metric).by_margin:
        logits = np.array([row["scores"] for row in own], np.float64).reshape(-1, 2)
        columns[:, 2] = margins(logits, 1)
    examples, labels, predicted = columns.T
    tallies, positive = [row["tally"] for row in own], record.get("positive_label")
    return answers_of(metric, examples, labels, predicted, tallies, positive)


def _answers(catalog: Catalog, asked: ExportOptions) -> list[Row]:
    """One row for each strategy and procedure, all of one sweep and one model."""
    _check_names(catalog, {name: getattr(asked, name) for name in ("task", "model", "strategy")})
    names = {name: getattr(asked, name) for name in ("task", "unit", "model", "strategy")}
    rows: list[Row] = catalog.query(_ANSWERS, names).to_pylist()
    _check_single(rows, asked.task)
    if not rows:
        raise SpecError(f"no sweep of the store has task {asked.task!r} with this strategy.")
    return rows


def _check_names(catalog: Catalog, named: Mapping[str, str | None]) -> None:
    """Raises SpecError for a name of a column that no cell has."""
    for column, name in named.items():
        if name is not None:
            known = catalog.query(f"SELECT DISTINCT {column} FROM cells ORDER BY ALL")[column]
            try:
                choose(column, name, known.to_pylist())
            except ValueError as error:
                raise SpecError(f"--{column}: {error}") from None


def _check_single(rows: Sequence[Row], task: str) -> None:
    """Raises SpecError if these are of several sweeps or models."""
    for column in ("sweep", "model"):
        found = sorted({row[column] for row in rows})
        if len(found) > 1:
            raise SpecError(
                f"the store has {len(found)} {column}s with task {task!r}. Choose one with "
                f"--{column}: {', '.join(found)}."
            )


def _smallest(rows: Sequence[Row], asked: ExportOptions) -> Row:
    """The row with the largest known K; ties go to the best mean score, then the file's order."""
    known = [row for row in rows if not needed.is_open(row)]
    most = max((row["max_dropped_low"] for row in known), default=-1)
    unsure = [row for row in rows if needed.is_open(row) and row["max_dropped_high"] > most]
    if unsure:
        if all(row["score_full"] is None for row in rows):
            raise SpecError(
                f"no network with all layers is done on {asked.task!r} yet, so no loss is known. "
                "`lp-sweep run` does what is missing."
            )
        open_ = {row["strategy"] for row in unsure}  # such as by another procedure
        settled = dict.fromkeys(row["strategy"] for row in known if row["strategy"] not in open_)
        instead = f", or choose with --strategy: {', '.join(settled)}" if settled else ""
        searched = any(row["n_not_searched"] for row in unsure)
        loss = " A search needs this loss in `within:` of the sweep file." if searched else ""
        raise SpecError(
            f"the smallest network within {asked.within:g} on {asked.task!r} is not known yet: "
            f"trials of {', '.join(sorted(open_))} are missing or failed.{loss} `lp-sweep run` "
            f"does what is missing{instead}."
        )
    smallest = min(known, key=lambda row: row["rank"])
    return needed.alone(smallest) if asked.strategy else smallest


def _one_seed(seeds: Sequence[Row], wanted: int | None, reason: str) -> TrialChoice:
    """Takes the median of `seeds` (by score, then seed), the lower of two in the middle."""
    trials = {row["seed"]: row["trial_id"] for row in seeds}
    seed = seeds[(len(seeds) - 1) // 2]["seed"] if wanted is None else wanted
    if seed not in trials:
        have = ", ".join(map(str, sorted(trials)))
        raise SpecError(f"--seed {seed}: this network was trained with seeds {have}.")
    if wanted is not None:
        why = f"Seed {seed} was asked for."
    elif len(seeds) == 1:
        why = f"It has one seed, {seed}."
    else:
        scores = ", ".join(f"{row['score']:.2f}" for row in seeds)
        why = (
            f"Seed {seed} is exported, which has the median score of {scores}: the best seed's "
            "score would be partly luck."
        )
    return TrialChoice(trials[seed], f"{reason} {why}", trials)
