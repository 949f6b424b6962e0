"""Ray as the engine of a run: a cluster that is joined, or a local Ray that the run starts."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.engine.capacity import Capacity, PerTrial
from lp_sweep.orchestrator.engine.clusterfile import await_workers, file_on_head
from lp_sweep.orchestrator.engine.course import Course, StopSignals
from lp_sweep.orchestrator.engine.everynode import on_each_node
from lp_sweep.orchestrator.engine.lifeline import Lifeline, OwnRay, RayLost, connected, leave_ray
from lp_sweep.orchestrator.engine.opening import open_run
from lp_sweep.orchestrator.engine.raycompat import (
    NodeTable,
    bound_calls,
    keep_sigterm,
    keep_stdout,
    private_ray,
)
from lp_sweep.orchestrator.engine.recorder import Loss
from lp_sweep.orchestrator.engine.runoptions import PATIENT_THREADS
from lp_sweep.orchestrator.inputs.room import ray_folder
from lp_sweep.storage.errors import PreflightError, lines_of

# Set before Ray is imported: no snapshots, no loggers, no console output, and Ctrl-C is ours
_TUNE_ENVIRONMENT = {
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # otherwise Tune itself retries a preempted trial without end, and reports nothing
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_gcs_server_request_timeout_seconds": "15",  # a call does not react to Ctrl-C
    "TUNE_STATE_REFRESH_PERIOD": "1000000000",  # its call would wait for a lost head without end
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_worker_niceness": "0",  # of our own Ray; at 15 a trial beside other work looks hung
    **PATIENT_THREADS,
}
_QUIET: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
_JOIN_ANOTHER = (
    "Check --address or RAY_ADDRESS; `lp-sweep run` without either starts a Ray of this machine's "
    "own."
)
_LOOK = (
    "It was tried twice. Check the free memory, the space in {0} and Ray's own logs "
    "({0}/ray/session_latest/logs), then run the same command again."
)
_RAYS_IN_VAIN = 3  # local Rays lost in a row with no work finished in between: the run stops


class OnRay:
    """Runs work on the cluster at `address`; None: on a local Ray, which is replaced when it is
    lost, as long as there is progress. `at_the_end` leaves the last one."""

    def __init__(self, address: str | None, at_the_end: ExitStack) -> None:
        self._address, self._at_the_end = address, at_the_end

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return on_each_node(function, *arguments)

    def run(self, course: Course, signals: StopSignals) -> None:
        check_ray()
        queue = course.queue
        why, ended, in_vain = "", 0, 0
        keep_sigterm()
        while queue.open:
            with ExitStack() as ray:
                try:
                    self._on_ray(ray, course, signals)
                except RayLost as error:
                    why = str(error)
                except PreflightError as error:
                    if not why:
                        raise
                    why, in_vain = f"{why}; {error}", _RAYS_IN_VAIN
                else:
                    if not queue.live:  # else its trials would go on
                        self._at_the_end.push(ray.pop_all())
                    return
                in_vain = in_vain + 1 if queue.settled == ended else 1
                ended = queue.settled
                self._lost(course, why, in_vain)
                if not queue.open:  # no other Ray follows
                    self._at_the_end.push(ray.pop_all())

    def _lost(self, course: Course, why: str, in_vain: int) -> None:
        if self._address or in_vain > _RAYS_IN_VAIN:
            course.queue.ray_lost(why)
            return
        course.reporter.note(f"Ray was lost: {why}. The run continues with a new one")
        course.lost_all(Loss("node_lost", "Ray was lost with its live trials", why, None))

    def _on_ray(self, ray: ExitStack, course: Course, signals: StopSignals) -> None:
        """Raises RayLost, PreflightError, StoreError."""
        address, tell = self._address, course.reporter.note
        step = f"joining the Ray at {address}" if address else "starting Ray on this machine"
        course.reporter.phase(step)
        own = ray.enter_context(connection(address))
        with Lifeline(own).watched():
            nodes = NodeTable()
            if address:
                tell(joined(address))
            file = file_on_head() if address else None
            if file:
                await_workers(file, nodes, tell)
            capacity = Capacity(PerTrial.of(course.queue.plan.sweep.spec), nodes, file)
            seen = (capacity.slots, self.everywhere, capacity.accelerators)
            open_run(course, *seen, joined=bool(address))
            # Tune reads some of its settings when it is imported, so Ray must be set up first
            from lp_sweep.orchestrator.engine.ray_tune import fit

            signals.arm()
            fit(course, capacity)


@contextmanager
def connection(address: str | None) -> Iterator[OwnRay | None]:
    """Connects this process to the cluster at `address`, or to a local Ray of our own, which it
    gives. Raises PreflightError."""
    if address and address.startswith(("http://", "https://")):
        raise PreflightError(
            f"{address} is a cluster's job server, and no driver can join there. Submit the run as "
            f"a job (`ray job submit --address {address} -- lp-sweep run ...`), or start it on the "
            "head: ray exec cluster.yaml 'lp-sweep run ... --address auto'."
        )
    check_ray()
    if (ray := sys.modules.get("ray")) and ray.is_initialized():
        raise PreflightError(
            "this process is already connected to a Ray. Call ray.shutdown() first, or start the "
            "run in another process."
        )
    with _settings(), keep_stdout(), nullcontext() if address else private_ray():
        own = None if address else _start()
        if address:
            _join(address)
        bound_calls()
        connected(own)
        try:
            yield own
        finally:
            leave_ray(own)


def check_ray() -> None:
    """Raises PreflightError where Ray is not installed."""
    if "ray" not in sys.modules and find_spec("ray") is None:
        raise PreflightError(
            "Ray is not installed here: pip install 'ray[tune]'. Without Ray, --inline runs the "
            "trials one after another in this process: lp-sweep run ... --inline"
        )


@contextmanager
def _settings() -> Iterator[None]:
    """Sets up Ray and Tune for a sweep while inside."""
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air", "ray.train")]
    levels = [logger.level for logger in loggers]
    added = _TUNE_ENVIRONMENT.keys() - os.environ.keys()
    os.environ.update({name: _TUNE_ENVIRONMENT[name] for name in added})
    for logger in loggers:  # our own reporter shows failures
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _join(address: str) -> None:
    """Raises PreflightError."""
    import ray

    try:
        _knock(address)
        ray.init(address=address, **_QUIET)
    except BaseException as error:  # of many types
        leave_ray(None)
        if not isinstance(error, Exception):
            raise
        raise _no_ray(f"at {address}", error, _JOIN_ANOTHER) from error


def _knock(address: str) -> None:
    """Raises OSError at once if nothing listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _start() -> OwnRay:
    """Starts a local Ray, with a second try, since a busy machine may only have been slow. Raises
    PreflightError."""
    import ray

    folder = _own_folder()
    for last in (False, True):
        own = OwnRay()
        try:
            with own.starting():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    _temp_dir=str(folder / "ray"),
                    object_store_memory=200 * 2**20,  # records go to the store, not through Ray
                    **_QUIET,
                )
            return own
        except BaseException as error:  # of many types
            own.kill()
            leave_ray(own)
            if not isinstance(error, Exception):
                raise
            if last:
                raise _no_ray("on this machine", error, _LOOK.format(folder)) from error
    raise AssertionError("unreachable")


def _own_folder() -> Path:
    """Makes Ray's folder if it is missing. Raises PreflightError if it can't be used, or if another
    user has made it."""
    folder = ray_folder()
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if folder.name.startswith("lp-sweep-") and folder.lstat().st_uid != os.getuid():
            raise PermissionError("it belongs to another user")
    except OSError as error:
        raise PreflightError(
            f"Ray can't use the folder {folder}: {lines_of(error)[0]}. Name a short one that you "
            "can write to in RAY_TMPDIR."
        ) from error
    return folder


def _no_ray(where: str, error: Exception, following: str) -> PreflightError:
    said = lines_of(error)[0].rstrip(".")
    return PreflightError(f"no Ray {where}: {said}. {following}")


def joined(address: str) -> str:
    """Names the cluster, and how it was found, since it may not be the one that you meant."""
    import ray

    at = ray.get_runtime_context().gcs_address
    return f"joined the Ray at {at}: {found_by(address, os.environ)}"


def found_by(address: str, environment: Mapping[str, str]) -> str:
    """Names the option or variable that an address came from. With `auto` Ray looks for one."""
    if address == "auto" and environment.get("RAY_ADDRESS", "auto") in ("", "auto"):
        return "it is at work on this machine; --address names another"
    variables = ("RAY_ADDRESS",) if address == "auto" else ("LP_SWEEP_ADDRESS", "RAY_ADDRESS")
    for name in variables:
        if address in ("auto", environment.get(name)):
            return f"{name} names it"
    return "--address names it"
