"""What a sweep asks for, and what of it is missing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lp_sweep.orchestrator.estimate.estimate import Estimate
from lp_sweep.orchestrator.service.plan import PlanAnswer
from lp_sweep.rows import Rows


class SweepPlan:
    """A plan over what the store has by now. Printed it is the page of `lp-sweep plan`."""

    def __init__(self, answer: PlanAnswer) -> None:
        self._answer = answer
        self._plan = answer.made.plan
        self.estimate: Estimate = answer.estimate
        self.notes: list[str] = list(answer.made.sweep.notes)

    @property
    def totals(self) -> dict[str, int]:
        """Cells and trials by state, and what else there is to measure."""
        return self._plan.totals()

    def cells(self) -> Rows:
        """A row for each point that was asked for: model, strategy, K, task, seed, its trial and
        its state."""
        return Rows(pa.Table.from_pylist([cell.row() for cell in self._plan.cells]))

    def to_dict(self) -> dict[str, Any]:
        """As `lp-sweep plan --json`."""
        return self._answer.plain()

    def __repr__(self) -> str:
        return self._answer.text().rstrip("\n")
