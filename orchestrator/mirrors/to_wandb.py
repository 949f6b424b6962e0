"""Weights & Biases: a run per trial, in the project of WANDB_PROJECT or `lp-sweep`, a group per
sweep.

A run's identifier is made from the sweep and the key, and is looked up at the server, or with
WANDB_MODE=offline in the folders below WANDB_DIR.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import wandb

from lp_sweep.orchestrator.mirrors.copying import Mirror, MirroredRun
from lp_sweep.orchestrator.options import MirrorKind
from lp_sweep.storage.errors import LpSweepError


class WandbMirror(Mirror):
    kind, refusals = MirrorKind.wandb, (wandb.Error, OSError, ValueError)

    def complete(self) -> set[str]:
        self._project = os.environ.get("WANDB_PROJECT") or "lp-sweep"
        if os.environ.get("WANDB_MODE", "online") != "online":
            return {*_local_ids()}
        if not wandb.login(prompt=False, verify=False):  # it would ask for a key during the run
            raise LpSweepError(
                "wandb: no API key. Log in with `wandb login`, set WANDB_API_KEY, or keep the runs "
                "here with WANDB_MODE=offline."
            )
        return {*self._ids_at_server()}

    def name_of(self, key: str) -> str:
        """Two sweeps of one project may share a trial."""
        return f"{key}-{hashlib.sha256(self.sweep.encode()).hexdigest()[:8]}"

    def put(self, run: MirroredRun) -> None:
        with wandb.init(
            project=self._project,
            group=self.sweep,
            id=self.name_of(run.key),
            name=run.name,
            config={**run.params, **run.tags},
            notes=run.failure,
            tags=[self.sweep[:64]],
            reinit="create_new",
            settings=_settings(),
        ) as theirs:
            for epoch, values in run.curves.items():
                theirs.log(dict(values), step=epoch)
            theirs.summary.update(dict(run.results))
            theirs.finish(exit_code=1 if run.failure else 0)

    def _ids_at_server(self) -> Iterable[str]:
        """The finished runs of this sweep; a project that does not exist yet has none."""
        api = wandb.Api()
        entity = os.environ.get("WANDB_ENTITY")
        path = f"{entity}/{self._project}" if entity else self._project
        try:
            runs = api.runs(path, filters={"group": self.sweep})
            return [run.id for run in runs if run.state in ("finished", "failed")]
        except ValueError as error:
            if "could not find project" in str(error).lower():
                return []
            raise


def _local_ids() -> Iterable[str]:
    folder = Path(os.environ.get("WANDB_DIR") or ".") / "wandb"
    return [path.name.split("-", 3)[3] for path in folder.glob("offline-run-*-*")]


def _settings() -> Any:
    """Quiet, and without what W&B collects itself: command line, host, code, console, load."""
    return wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
