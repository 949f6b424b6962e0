"""What the driver itself writes to the store: a sweep's cells, and attempts of lost workers."""

from __future__ import annotations

import datetime as dt
import shlex
import socket
import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lp_sweep.orchestrator.inputs.resolve import Sweep
from lp_sweep.orchestrator.plan.leftover import point
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.run.loss import Loss
from lp_sweep.orchestrator.sweepfile.overrides import is_part
from lp_sweep.storage.identity import setup_id
from lp_sweep.storage.redact import redact_text
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store


class Recorder:
    """`part`: a run of a part of a sweep leaves the other cells listed. `overrides`: of the run, as
    a shell takes them, for the command that goes on with its cells."""

    def __init__(self, store: Store, *, part: bool, command: str, overrides: str = "") -> None:
        self.store, self.part, self.command = store, part, command
        self.overrides = overrides

    def cells(self, plan: Plan) -> None:
        """The sweep's cells, for the views; written again when a profile opens deferred ones."""
        name = plan.sweep.name
        cells = {point(row): row for row in (cell.row() for cell in plan.cells)}
        listed = self.store.find("sweeps", name) or []
        kept = {point(row): row for row in listed} if self.part else {}
        setups = _setups(plan.sweep)
        for asked, row in cells.items():
            row["overrides"] = self._asked_by(row, kept.get(asked))
            row["setup"] = setups[row["model"], row["task"]]
        merged = (kept | cells).values()
        rows = pa.Table.from_pylist(
            [{**row, "sweep": name, "cell": index} for index, row in enumerate(merged)],
            TABLES["sweeps"],
        )
        if rows.to_pylist() != listed:  # a finished sweep writes nothing
            self.store.put("sweeps", name, rows)

    def _asked_by(self, row: Mapping[str, Any], listed: Mapping[str, Any] | None) -> str:
        """The overrides that ask for a cell: of a run of the whole sweep, if one did and would
        again, else this run's."""
        if listed and listed["trial_id"] == row["trial_id"]:
            whole = listed["overrides"]
            if whole is not None and not is_part(shlex.split(whole)):
                return str(whole)
        return self.overrides

    def lost(self, work: Work, loss: Loss, *, final: bool) -> None:
        """An attempt whose worker could not write one itself."""
        attempt = f"{work.id}.{uuid.uuid4().hex[:8]}"
        row = {
            "attempt_id": attempt,
            "trial_id": work.id,
            "model": work.model.name,
            "task": work.task.name or None,
            "seed": getattr(work.spec, "seed", None),
            "kept_layers": getattr(work.spec, "kept_layers", None),
            "error_type": loss.error_type,
            "final": final,
            "message": redact_text(loss.message),
            "traceback": redact_text(loss.details),
            "command": self.command,
            "host": socket.gethostname(),
            "ended_at": dt.datetime.now(dt.UTC),
        }
        self.store.put("attempts", attempt, [row])


def _setups(sweep: Sweep) -> dict[tuple[str, str], str]:
    """Of each model on each task."""
    return {
        (model.name, name): setup_id(
            model.fingerprint, task.definition, task.fingerprint, sweep.recipe
        )
        for model in sweep.models
        for name, task in sweep.tasks.items()
    }
