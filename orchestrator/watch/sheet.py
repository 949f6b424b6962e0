"""One sweep of a store, as its cells file lists it: what belongs to it, its scores so far, and how
a piece of its work is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from lp_sweep.orchestrator.plan.words import layers_of, short_model
from lp_sweep.orchestrator.watch.curves import Curves, line_name
from lp_sweep.storage.printable import printable

COLUMNS = (
    *("model", "depth", "procedure", "feed_forward", "strategy", "task", "seed"),
    *("kept_layers", "trial_id", "profile_id", "search"),
)


class Scored(NamedTuple):
    """What a record says: points after the last epoch (None: no number) and seconds it took."""

    points: float | None
    seconds: float


class Sheet:
    """`cells`: rows of the table `sweeps`, with COLUMNS."""

    def __init__(self, cells: pa.Table) -> None:
        self.cells = cells
        rows = cells.to_pylist()
        self.trials = frozenset(row["trial_id"] for row in rows) - {None}
        self.curves = Curves(rows)
        self.seconds = 0.0  # of all trials that have been added
        self._rows: dict[str, int] = {}
        for number, row in enumerate(rows):
            for name in filter(None, (row["trial_id"], row["profile_id"])):
                self._rows.setdefault(name, number)
        self._open = set(self.trials)  # not added yet

    def owns(self, id_: str) -> bool:
        """Whether a trial, or a profile that cells wait for, is of this sweep."""
        return id_ in self._rows

    def add(self, scored: Mapping[str, Scored]) -> None:
        """Records that may be of this sweep, and may have been added before."""
        for trial in self._open & scored.keys():
            self._open.discard(trial)
            self.curves.add(trial, scored[trial].points)
            self.seconds += scored[trial].seconds

    def describe(self, id_: str) -> str:
        """`bert-base-cased layers 1-8 of 12 rte seed 42`; what no cell names goes by its id."""
        number = self._rows.get(id_)
        if number is None:
            return id_
        [row] = self.cells.slice(number, 1).to_pylist()
        model, task = short_model(row["model"]), printable(row["task"])
        if id_ != row["trial_id"]:
            return f"{model} profile for {printable(line_name(row))} {task}"
        layers = layers_of(row["kept_layers"], row["depth"])
        manner = line_name(row).split(", ")[1:]
        return " ".join([model, layers, *map(printable, manner), task, f"seed {row['seed']}"])
