"""Streams missing work into Ray Tune. Tune is the dispatcher; the store is the truth."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.nodes import Nodes
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.storage.errors import StoreError
from lp_sweep.trials.job import Place

# Tune keeps 50 kB of each piece for ever, and goes through all of them at each event: after so many
# a new one goes on. Then all slots wait for the longest trial, so there are more where slots are.
_LEAST_A_TUNER, _A_TUNER_AND_SLOT = 2000, 20
MOST_AT_A_TIME = 100_000  # said to Tune, which without it keeps one trial pending; the room decides
_LOOK_SECONDS = 2.0  # between two looks at what other runs hold


class PlanSearcher(Searcher):  # type: ignore[misc]
    """`suggest` gives the longest missing piece, None while there is no room for another or
    something that runs (here, or in another run) may bring more, and FINISHED when nothing is
    left. `room`: how many pieces the cluster takes at a time, which may change; `check` raises what
    ends the run."""

    def __init__(
        self,
        queue: WorkQueue,
        place: Place,
        nodes: Nodes,
        room: Callable[[], int],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.queue = queue
        self.nodes = nodes
        self.room = room
        self.check = check
        self.place = place  # store, cache folder, threads: not identity
        self.works: dict[str, Work] = {}  # Tune's trial -> ours; kept for the events that follow
        self._looked = 0.0

    def suggest(self, trial_id: str) -> Any:  # Tune keeps the argument's name
        self.check()
        if len(self.queue.live) >= self.room():
            return None
        if not self._full() and (work := self._take()) is not None:
            self.works[trial_id] = work
            halvings = self.queue.history.halvings(work.id)
            job = replace(self.queue.job(work), place=self.place, halvings=halvings)
            return {"job": json.dumps(job.to_plain()), "avoid": sorted(self.nodes.set_aside)}
        if self.queue.live:
            return None
        return Searcher.FINISHED if self._full() or not self.queue.open else None

    def _full(self) -> bool:
        return len(self.works) >= max(_LEAST_A_TUNER, _A_TUNER_AND_SLOT * self.room())

    def _take(self) -> Work | None:
        """A store that is away for longer than a run waits ends the run, and loses nothing."""
        try:
            work = self.queue.take()
            if work is None and time.monotonic() - self._looked > _LOOK_SECONDS:
                self._looked = time.monotonic()
                self.queue.look_elsewhere()
                work = self.queue.take()
            return work
        except StoreError as error:
            self.queue.refused(str(error))
            return None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: `tunecallback` hears the same with more detail."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles what it could restore; a plan of 100,000 cells is not for that

    def save(self, checkpoint_path: str) -> None:
        del checkpoint_path  # nothing of Tune's is ever restored

    def restore(self, checkpoint_path: str) -> None:
        del checkpoint_path


def resources(slots: Slots, config: Mapping[str, Any]) -> Any:
    """What Tune asks Ray for: one slot, on a node that is not set aside."""
    bundle = slots.bundle()
    avoid = config.get("avoid")
    if not avoid:
        return tune.PlacementGroupFactory([bundle])
    label = {"ray.io/node-id": f"!in({','.join(avoid)})"}
    return tune.PlacementGroupFactory([bundle], bundle_label_selector=[label])
