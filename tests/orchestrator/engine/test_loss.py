"""How a worker was lost, from what Ray and Tune say of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import cloudpickle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.tune.experiment import Trial

from lp_sweep.orchestrator.engine import everynode, raycompat
from lp_sweep.orchestrator.engine.connection import _TUNE_ENVIRONMENT
from lp_sweep.orchestrator.engine.ray_tune import loss_of
from lp_sweep.orchestrator.engine.raycompat import Fate, fate_of
from lp_sweep.storage.errors import GraphRecordingError

ANNOUNCED = Fate("node", "", True)
CUT_OFF = ActorUnavailableError("connection refused", None)
GRAPH = GraphRecordingError("compute: graphs: a CUDA graph could not be recorded")
RECORDING = RayTaskError("step", f"torch.AcceleratorError: CUDA error\n{GRAPH!r}", GRAPH)
OUT_OF_MEMORY = RayActorError(error_msg="OutOfMemoryError: the node was low on memory")


@pytest.mark.parametrize(
    ("error", "fate", "error_type"),
    [
        pytest.param(RayActorError(preempted=True), Fate(), "preempted", id="Ray says so"),
        pytest.param(RayActorError(), Fate("n", "reason: AUTOSCALER_DRAIN_PREEMPTED"), "preempted"),
        pytest.param(CUT_OFF, ANNOUNCED, "preempted", id="cut off, as announced"),
        pytest.param(CUT_OFF, Fate("node"), "node_lost", id="cut off"),
        pytest.param(RayActorError(), Fate("node", "NODE_DIED"), "node_lost", id="the node died"),
        pytest.param(RayActorError(), Fate("node", ""), "worker_lost", id="the worker died"),
        pytest.param(OUT_OF_MEMORY, ANNOUNCED, "out_of_memory", id="its own memory"),
        pytest.param(
            RayTaskError("step", "Traceback", ValueError("no")), ANNOUNCED, "bug", id="its own bug"
        ),
        pytest.param(RECORDING, Fate(), "graph_not_recorded", id="no CUDA graph"),
    ],
)
def test_what_a_loss_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: RayError,
    fate: Fate,
    error_type: str,
) -> None:
    monkeypatch.setattr(raycompat, "fate_of", lambda actor_id: fate)
    monkeypatch.setattr(everynode, "answers", lambda node: False)
    path = tmp_path / "error.pkl"
    path.write_bytes(cloudpickle.dumps(error))
    found = loss_of(SimpleNamespace(pickled_error_file=str(path)))
    assert (found.error_type, found.node) == (error_type, fate.node)


def test_nothing_is_known_of_an_actor_that_ray_does_not_know() -> None:
    assert fate_of(None) == fate_of("not an id") == fate_of("ab" * 16) == Fate()


def test_tune_leaves_a_preempted_trial_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Tune itself retries it without end, and no attempt is recorded."""
    name = "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE"
    for value, retried in (("0", True), (_TUNE_ENVIRONMENT[name], False)):
        monkeypatch.setenv(name, value)
        trial = Trial("trainable", stub=True)
        trial._handle_ray_actor_error(RayActorError(preempted=True))
        assert trial.should_recover() == retried
