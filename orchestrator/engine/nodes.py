"""Which nodes of a cluster are to blame: one on which different trials fail in a row is set aside.

Pure bookkeeping over what ended where; `searcher` tells Ray to keep away from those nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Set

from lp_sweep.orchestrator.plan.policy import policy

_IN_A_ROW = 3  # different trials, with no success between


class Nodes:
    """Failures in a row, by node. The last node left is never set aside."""

    def __init__(self, alive: Callable[[], Set[str]]) -> None:
        self._alive = alive
        self.set_aside: set[str] = set()
        self._row: dict[str, list[str]] = defaultdict(list)

    def readmit(self) -> bool:
        """True when no other node is left, and those that were set aside are taken again."""
        if not self.set_aside or self._alive() - self.set_aside:
            return False
        self.set_aside.clear()
        return True

    def succeeded(self, node: str | None) -> None:
        if node:
            self._row.pop(node, None)

    def failed(self, node: str | None, work_id: str, error_type: str) -> list[str]:
        """The work that deserves another try elsewhere: when this failure sets the node aside all
        that failed on it in a row, and what still ran there after that. Else nothing."""
        if not node or not policy(error_type).of_the_node:
            return []
        if node in self.set_aside:
            return [work_id]
        row = self._row[node]
        if work_id not in row:
            row.append(work_id)
        if len(row) < _IN_A_ROW or not self._alive() - self.set_aside - {node}:
            return []
        self.set_aside.add(node)
        return self._row.pop(node)
