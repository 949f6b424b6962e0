"""The Ray side of a trial: an actor that stays, so that torch is imported once per slot."""

from __future__ import annotations

import json
from typing import Any

from ray import tune

from lp_sweep.storage.errors import StoreError


class TrialActor(tune.Trainable):  # type: ignore[misc]
    """One `step` is one whole job. Ordinary failures are stored by `execute` and end the step
    normally; what is raised means that the process itself is spent."""

    def setup(self, config: dict[str, Any]) -> None:
        self._job = config["job"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._job = new_config["job"]
        return True  # False would hang the sweep

    def step(self) -> dict[str, Any]:
        import ray

        # heavy, and only workers need it: the driver imports this module too
        from lp_sweep.trials.run import execute

        job = json.loads(self._job)
        node = ray.get_runtime_context().get_node_id()
        try:
            told = execute(job, job["store"])
        except StoreError as error:  # neither the store nor this node's disk took the record
            told = {"id": job["id"], "status": "not stored", "message": str(error)}
        return {**told, "node_id": node, "done": True}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        del checkpoint_dir  # the store is the only state

    def load_checkpoint(self, checkpoint: Any) -> None:
        del checkpoint
