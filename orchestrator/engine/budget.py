"""Counts the hours and the money that a run has used, and stops it at its limits.

Hours are wall-clock hours. Money is counted every few seconds from the connected machines, at the
prices in the cluster file: all machines of the cluster, whoever uses them, once they have joined. A
machine that is booting is not counted, although it costs money.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.cluster.clusterfile import HEAD, PRICES, ClusterFile, Kind
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.worker.job import announce

_GRACE_SECONDS = 30.0  # for trials to end, or to write their checkpoints
_LOOK_SECONDS = 5.0  # between two looks at the machines
_GROUP = "ray.io/node-group"  # a label with the kind, if whoever started the machine set it

Nodes = Callable[[], Sequence[Mapping[str, Any]]]


class Used(NamedTuple):
    """`cost`: in the currency of the prices. Without prices: None, and no `machine_hours`."""

    hours: float
    machine_hours: Mapping[str, float]
    cost: float | None

    def sentence(self) -> str:
        """`1.50 hours, 4.20 for 1.5 h of head, 6.0 h of gpu`."""
        machines = ", ".join(
            f"{hours:.1f} h of {kind}" for kind, hours in self.machine_hours.items()
        )
        money = "" if self.cost is None else f", {self.cost:,.2f} for {machines or 'no machine'}"
        return f"{self.hours:.2f} hours{money}"


class Budget:
    """`max_hours`, `max_cost`: None is no limit; the clock starts here. `file`: the cluster's.
    Raises SpecError for a limit of cost without prices."""

    def __init__(
        self,
        max_hours: float | None = None,
        max_cost: float | None = None,
        file: ClusterFile | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_cost is not None:
            _check_prices(file)
        self.max_hours, self.max_cost = max_hours, max_cost
        self._kinds = file.kinds if file is not None and max_cost is not None else ()
        self._now = now
        self._nodes: Nodes | None = None
        self._begun = self._looked = now()
        self._machine_seconds: dict[str, float] = defaultdict(float)
        self._there: Counter[str] = Counter()  # machines at the last look

    def watch(self, nodes: Nodes) -> None:
        """Starts to count these machines. `nodes` returns rows like those of `ray.nodes`."""
        if self._kinds:
            self._nodes = nodes
            self._look()

    def reached(self) -> str | None:
        """Which limit has been reached: `max-hours`, `max-cost` or None. Called often."""
        if self.max_hours is not None and self._hours() >= self.max_hours:
            return "max-hours"
        if self.max_cost is not None:
            if self._now() - self._looked >= _LOOK_SECONDS:
                self._look()
            if self._cost() >= self.max_cost:
                return "max-cost"
        return None

    def used(self) -> Used:
        hours = {kind: seconds / 3600 for kind, seconds in self._machine_seconds.items()}
        return Used(self._hours(), hours, self._cost() if self._kinds else None)

    def _hours(self) -> float:
        return (self._now() - self._begun) / 3600

    def _cost(self) -> float:
        prices = {kind.name: kind.price or 0.0 for kind in self._kinds}
        return sum(seconds / 3600 * prices[kind] for kind, seconds in self._machine_seconds.items())

    def _look(self) -> None:
        """Counts the time since the last look for the machines that were there then."""
        now = self._now()
        for kind, count in self._there.items():
            self._machine_seconds[kind] += count * (now - self._looked)
        alive = [node for node in self._nodes() if node["Alive"]] if self._nodes else []
        self._there = Counter(kind_of(node, self._kinds).name for node in alive)
        self._looked = now


class BudgetStop:
    """Ends a run at its budget: nothing more is handed out, and live trials have half a minute.
    `everywhere(function, ...)` calls a function on each node; trials look for the announcement in
    the node's `cache_dir`."""

    def __init__(
        self,
        queue: WorkQueue,
        budget: Budget,
        cache_dir: Path,
        everywhere: Callable[..., Any],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue, self._budget, self._cache_dir = queue, budget, cache_dir
        self._everywhere, self._now = everywhere, now
        self._end: float | None = None  # of the grace period

    def reached(self) -> bool:
        """Called often during a run: whether live trials must end."""
        if self._end is None:
            if not (limit := self._budget.reached()):
                return False
            self._queue.stop(limit)
            if self._queue.live:
                self._everywhere(announce, self._cache_dir, _GRACE_SECONDS)
            self._end = self._now() + _GRACE_SECONDS
        return not self._queue.live or self._now() >= self._end


def kind_of(node: Mapping[str, Any], kinds: Sequence[Kind]) -> Kind:
    """The kind of a node of `ray.nodes`: by its label, as the head, or by its CPUs and GPUs. If
    several match, the most expensive."""
    resources = node["Resources"]
    label = (node.get("Labels") or {}).get(_GROUP)
    size = (resources.get("CPU", 0.0), resources.get("GPU", 0.0))
    alike = (
        [kind for kind in kinds if kind.name == label]
        or [kind for kind in kinds if kind.head and HEAD in resources]
        or [kind for kind in kinds if not kind.head and (kind.cpus, kind.gpus) == size]
        or [kind for kind in kinds if not kind.head]
        or list(kinds)
    )
    return max(alike, key=lambda kind: kind.price or 0.0)


def _check_prices(file: ClusterFile | None) -> None:
    how = (
        f"State them in the cluster file (`metadata: {{{PRICES}: {{head: 0.19, gpu: 0.60}}}}`) and "
        "name it with --cluster; on the head of `ray up` its own is read."
    )
    if file is None:
        raise SpecError(f"--max-cost needs prices, but no cluster file is given. {how}")
    unpriced = [kind.name for kind in file.kinds if kind.price is None and (kind.most or kind.head)]
    if unpriced or not file.kinds:
        lacks = ", ".join(unpriced) or "any kind of machine"
        raise SpecError(
            f"--max-cost needs prices, but {file.path} lacks the price of {lacks}. {how}"
        )
