"""Reads from a store which work is done, which has failed, and what was measured.

Work is done if its record can be read. A torn record is work to do again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lp_sweep.storage.errors import GraphRecordingError
from lp_sweep.storage.networks import has_network
from lp_sweep.storage.schema import TRIALS
from lp_sweep.storage.store import Store, Unreadable
from lp_sweep.storage.tablefiles import THREADS
from lp_sweep.storage.upkeep import lost
from lp_sweep.trials.measures.registry import MEASURES
from lp_sweep.trials.spec.autorecipe import FIND_RECIPE, FoundRecipe
from lp_sweep.trials.spec.select import LayerScores
from lp_sweep.trials.spec.specs import TEACHER

_TIMING = (
    *("trial_id", "task", "data_fingerprint"),
    *("depth", "procedure", "epochs_per_layer", "params_encoder"),
    *("epochs", "max_length", "compute", "precision"),
    *("train_examples", "dev_examples", "train_tokens", "dev_tokens"),
    *("out_of_memory_retries", "resumed_from_step", "seconds_total", "ended_at"),
    *("device_type", "device_name", "threads"),
)


class WorkHistory(NamedTuple):
    """The state of a store and a run. `trials`, `profiles`: done. `failed`: with the error type.
    `networks`: those in the store, of the trials given to `with_networks`. For searches: the scores
    of done trials in points, and the trials that this run was asked for or gave up.
    `without_graphs`: models of which a trial that is not done could not record a CUDA graph.
    `recipes`: measurement -> what it found."""

    trials: Set[str]
    failed: Mapping[str, str]
    profiles: Mapping[str, LayerScores]
    networks: Set[str] = frozenset()
    points: Mapping[str, float] = MappingProxyType({})
    asked: Set[str] = frozenset()
    given_up: Set[str] = frozenset()
    without_graphs: Set[str] = frozenset()
    recipes: Mapping[str, FoundRecipe] = MappingProxyType({})

    @classmethod
    def nothing(cls) -> WorkHistory:
        return cls(frozenset(), {}, {})


class Ledger(NamedTuple):
    """Everything that a run reads from a store before it starts."""

    known: WorkHistory
    timings: pa.Table  # of finished trials, for estimates
    unreadable: Sequence[Unreadable]


def read_ledger(store: Store) -> Ledger:
    """Reads every trial, profile and attempt. Raises StoreError."""
    trials = store.read_all("trials", columns=[*_TIMING, "kept_layers", "last"])
    profiles = store.read_all("profiles")
    done = set(trials.rows["trial_id"].to_pylist())
    measured = measurements(profiles.rows)
    taught = profiles.rows.filter(pc.equal(profiles.rows["measure"], TEACHER))["profile_id"]
    if len(taught):  # one whose logits are lost is measured again
        for id_ in set(taught.to_pylist()) - store.names("teacher_logits"):
            del measured[id_]
    attempts = store.read_all("attempts")
    return Ledger(
        WorkHistory(
            done,
            failures(attempts.rows, done | set(measured)),
            measured,
            points=points_of(trials.rows),
            without_graphs=_without_graphs(attempts.rows, done),
            recipes=found_recipes(profiles.rows),
        ),
        timing_columns(trials.rows),
        [*trials.unreadable, *profiles.unreadable, *attempts.unreadable, *lost(store)],
    )


def ends_of(store: Store, ids: Set[str], networks: Set[str]) -> tuple[set[str], dict[str, str]]:
    """Which of these trials and measurements are done by now, and the error types of those that
    failed instead. Those of `networks` are done only with their network. Raises StoreError."""

    def is_done(id_: str) -> bool:  # asks for the record itself, since a listing may be late
        if store.find("profiles" if id_.startswith("p") else "trials", id_) is None:
            return False
        return id_ not in networks or has_network(store, id_)

    asked = sorted(ids)
    if not asked:
        return set(), {}
    with ThreadPoolExecutor(THREADS) as pool:  # one request to a bucket after another takes long
        attempts = pool.submit(store.names, "attempts")
        done = {*itertools.compress(asked, pool.map(is_done, asked))}
    names = [name for name in attempts.result() if attempted_work(name) in ids - done]
    return done, failures(store.read_all("attempts", names).rows, done) if names else {}


def points_of(trials: pa.Table) -> dict[str, float]:
    """Trial -> its score in points, without scores that are not numbers."""
    scored = trials.filter(pc.is_finite(trials["last"]))
    points = pc.multiply(scored["last"], 100.0).to_pylist()
    return dict(zip(scored["trial_id"].to_pylist(), points, strict=True))


def timing_columns(trials: pa.Table | Iterable[Mapping[str, Any]] = ()) -> pa.Table:
    """The columns that an estimate needs, from a table or rows of trials; `layers` counts the kept
    ones."""
    if not isinstance(trials, pa.Table):
        wanted = pa.schema([TRIALS.field(name) for name in (*_TIMING, "kept_layers")])
        trials = pa.Table.from_pylist(list(trials), wanted)
    layers = pc.list_value_length(trials["kept_layers"])
    return trials.select(list(_TIMING)).append_column("layers", layers)


def _without_graphs(attempts: pa.Table, done: Set[str]) -> Set[str]:
    refused = attempts.filter(pc.equal(attempts["error_type"], GraphRecordingError.kind))
    rows = refused.select(["trial_id", "model"]).to_pylist()
    return {row["model"] for row in rows if row["trial_id"] not in done}


def with_networks(known: WorkHistory, store: Store, trials: Set[str]) -> WorkHistory:
    """Looks for the networks of these trials in the store. Raises StoreError."""
    ids = sorted(trials)
    with ThreadPoolExecutor(THREADS) as pool:  # one request to a bucket each
        found = pool.map(lambda id_: has_network(store, id_), ids)
        return known._replace(networks={*itertools.compress(ids, found)})


def measurements(profiles: pa.Table) -> dict[str, LayerScores]:
    """Profile -> the values that a strategy selects by; empty for most trained networks."""
    blocks: dict[str, dict[tuple[int, int], float]] = {}
    of_blocks = pa.array([name for name, item in MEASURES.items() if item.blocks])
    ends = profiles.filter(pc.is_in(profiles["measure"], value_set=of_blocks))
    for row in ends.select(["profile_id", "values"]).to_pylist():
        blocks[row["profile_id"]] = {
            (item["layer"], item["other"] - item["layer"] + 1): item["value"]
            for item in row["values"] or ()
        }
    return {
        row["profile_id"]: LayerScores(
            {item["layer"]: item["value"] for item in row["layers"] or ()},
            blocks.get(row["profile_id"], {}),
        )
        for row in profiles.select(["profile_id", "layers"]).to_pylist()
    }


def found_recipes(profiles: pa.Table) -> dict[str, FoundRecipe]:
    """Measurement -> the recipe that it found."""
    found = {}
    for row in profiles.filter(pc.equal(profiles["measure"], FIND_RECIPE)).to_pylist():
        values = {item["name"]: item["value"] for item in row["values"]}
        rate, epochs = values["learning_rate"], int(values["epochs"])
        found[row["profile_id"]] = FoundRecipe(rate, epochs)
    return found


def attempted_work(attempt_id: str) -> str:
    """`t1-0123abcd.7f3e` -> the trial or profile that the attempt tried."""
    return attempt_id.partition(".")[0]


def failures(attempts: pa.Table, done: Set[str]) -> dict[str, str]:
    """Work -> error type of its last failed attempt. An attempt that was retried by the rules, as
    after a lost node, is not a failure; nor is one at work that is done by now."""
    columns = ["trial_id", "error_type", "final", "ended_at"]
    rows = sorted(attempts.select(columns).to_pylist(), key=lambda row: str(row["ended_at"]))
    return {
        row["trial_id"]: row["error_type"] or "bug"
        for row in rows
        if row["final"] is not False and row["trial_id"] not in done
    }
