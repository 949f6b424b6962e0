"""How a worker was lost: from what Ray tells to the type of a failure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.engine.everynode import answers
from lp_sweep.orchestrator.engine.raycompat import Fate, fate_of

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ACTOR = re.compile(r"actor_id[=:]\s*([0-9a-f]{32})")
_SUMMARIES = {
    "preempted": "the node was taken away, as it had announced",
    "node_lost": "the node was lost",
    "worker_lost": "the worker process died: it was killed, or crashed",
    "out_of_memory": "the node ran out of memory, and Ray ended the worker",
}


class Loss(NamedTuple):
    """`message` is a line, `details` all that Ray says; `node` None where Ray does not know it."""

    error_type: str
    message: str
    details: str
    node: str | None


def blocked_by(need: str) -> Loss:
    """Of a trial that was never begun: what it goes on from has failed."""
    message = f"it needs the network of {need}, which failed: see `lp-sweep logs {need}`"
    return Loss("missing_input", message, message, None)


def loss_of(trial: Any) -> Loss:
    """What ended a Tune trial whose worker could not report it itself."""
    error = _error(trial)
    text = _COLOURS.sub("", str(error) if error is not None else _error_text(trial)).strip()
    fate = fate_of(_actor_id(error, text))
    error_type = _type(error, text, fate)
    if error_type == "worker_lost" and "is unavailable" in text and not answers(fate.node):
        error_type = "node_lost"  # only the connection broke: Ray itself needs a minute to be sure
    last_line = (text.splitlines() or ["no message"])[-1]
    return Loss(error_type, _SUMMARIES.get(error_type, last_line), text, fate.node)


def _error(trial: Any) -> Any:
    """The exception that Tune kept in its scratch folder: written by this very process."""
    from ray import cloudpickle

    try:
        with Path(trial.pickled_error_file).open("rb") as stream:
            return cloudpickle.load(stream)
    except Exception:  # not there, or not to be unpickled: the text remains
        return None


def _error_text(trial: Any) -> str:
    try:
        return Path(trial.error_file).read_text(encoding="utf-8")
    except (OSError, TypeError):
        return ""


def _actor_id(error: Any, text: str) -> str | None:
    """An error of our own code names its worker in the text only."""
    actor = getattr(error, "actor_id", None)
    if isinstance(actor, bytes):
        return actor.hex()
    named = _ACTOR.search(text)
    return actor or (named[1] if named else None)


def _type(error: Any, text: str, fate: Fate) -> str:
    if getattr(error, "preempted", False) or "preempt" in fate.cause.lower():
        return "preempted"
    if "OutOfMemoryError" in text or "low on memory" in text:
        return "out_of_memory"
    if fate.announced and not _is_task_error(error):
        return "preempted"  # a machine that is cut off says nothing more; it was said before
    if "NODE_DIED" in fate.cause or "node has died" in text or "NodeDiedError" in text:
        return "node_lost"
    if "AcceleratorError" in text or "CUDA error" in text:
        return "device_error"
    # a RayTaskError that is none of a device's: our own code raised it
    return "bug" if _is_task_error(error) else "worker_lost"


def _is_task_error(error: Any) -> bool:
    from ray.exceptions import RayTaskError

    return isinstance(error, RayTaskError)
