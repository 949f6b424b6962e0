"""Tells, as soon as it can be known, that the full model has learned nothing on a task: no network
can then be compared with it, and the rest of the sweep would be in vain.
"""

from __future__ import annotations

import copy

from lp_sweep.analysis.notes import is_untaught
from lp_sweep.orchestrator.engine.progress import Note
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.inputs.data import FEWEST_STEPS
from lp_sweep.orchestrator.plan.naming import short_model
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.printable import listed

_Pair = tuple[str, str]  # names of a model and a task
_COLUMNS = ("trial_id", "last", "majority", "steps", "learning_rate")


class FullModels:
    """The full models of a run, each with its task: asked whenever a trial is done. A sweep can
    have thousands of seeds, and most answers come without a look at them."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue, self._plan = queue, queue.plan
        self._seeds: dict[_Pair, set[str]] | None = None  # of each pair: its trials
        self._left: dict[_Pair, set[str]] = {}  # of these the ones that this run has not done
        self._looked: set[_Pair] = set()
        self._untaught: set[_Pair] = set()  # of these: a note says so

    def note(self, work: Work) -> Note | None:
        """Once for a model and task: all seeds of the full model that are asked for are done, and
        none scores better than always the same answer. Its end, where a search asks for more seeds
        and one of them does."""
        pair, queue = _pair(work), self._queue
        if pair in self._looked - self._untaught or not _is_full(work):
            return None
        self._look_at_the_plan()
        left = self._left[pair]
        left.discard(work.id)
        if len(left) > len(queue.done_elsewhere) or not left <= queue.done:
            return None
        seeds = (self._seeds or {})[pair]
        self._looked.add(pair)
        store = copy.copy(queue.store)
        store.patience = 0
        try:
            rows = store.read_all("trials", seeds, _COLUMNS).rows.to_pylist()
        except StoreError:
            return None
        untaught = all(map(is_untaught, rows))
        if len(rows) < len(seeds) or untaught == (pair in self._untaught):
            return None
        self._untaught ^= {pair}
        name = f"the full {short_model(pair[0])}"
        points = ("nothing" if row["last"] is None else f"{100 * row['last']:.2f}" for row in rows)
        scores, about = listed(points, 5), f"{pair[1]}, {pair[0]}"
        if not untaught:
            return Note(
                f"{name} learned {pair[1]} with a later seed: it scores {scores}", about, True
            )
        steps, rate = rows[0]["steps"], rows[0]["learning_rate"]
        advice = f"another recipe.learning_rate (it is {rate:g})"
        if steps < FEWEST_STEPS:
            advice = f"more recipe.epochs ({steps} optimiser steps are few)"
        said = (
            f"{name} learned nothing on {pair[1]}: it scores {scores}, "
            f"and always the same answer {100 * rows[0]['majority']:.2f}. No pruned network can be "
            f"judged by it. Try {advice}; --stop-if-nothing-learned ends such a run here"
        )
        return Note(said, about)

    def _look_at_the_plan(self) -> None:
        """Again where a search has asked for more seeds."""
        queue = self._queue
        if self._seeds is not None and self._plan is queue.plan:
            return
        self._plan, self._seeds = queue.plan, {}
        for id_, work in queue.plan.trials.items():
            if _is_full(work):
                self._seeds.setdefault(_pair(work), set()).add(id_)
        ended = queue.plan.known.trials | queue.done
        self._left = {pair: ids - ended for pair, ids in self._seeds.items()}


def _pair(work: Work) -> _Pair:
    return work.model.name, work.task.name


def _is_full(work: Work) -> bool:
    spec = work.spec
    return (
        spec.kind == "trial"
        and len(spec.kept_layers) == work.model.depth
        and not spec.removed_feed_forwards
    )
