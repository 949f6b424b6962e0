"""Ray as the engine of a run: a cluster that is joined, or a local Ray that the run starts.

A Ray that is lost ends the run: finished work is safe, and the same command goes on. Ray itself
leaves a driver waiting without end if its raylet is gone or its head is stopped, so a thread
watches, and ends the process.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.engine.capacity import (
    Capacity,
    PerTrial,
    await_workers,
    file_on_head,
)
from lp_sweep.orchestrator.engine.course import Course, StopSignals
from lp_sweep.orchestrator.engine.opening import open_run
from lp_sweep.orchestrator.engine.raycompat import (
    keep_sigterm,
    keep_stdout,
    private_ray,
    variables,
)
from lp_sweep.orchestrator.engine.runoptions import PATIENT_THREADS
from lp_sweep.orchestrator.inputs.checks import ray_folder
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.storage.errors import LpSweepError, PreflightError, lines_of

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
    # else a killed worker looks unreachable where Ray is slow to learn of its death
    "RAY_timeout_ms_task_wait_for_death_info": "10000",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_worker_niceness": "0",  # of our own Ray; at 15 a trial beside other work looks hung
    **PATIENT_THREADS,
}
_JOIN_ANOTHER = (
    "Check --address or RAY_ADDRESS; `lp-sweep run` without either starts a Ray of this machine's "
    "own."
)
_LOOK = (
    "Check the free memory, the space in {0} and Ray's own logs "
    "({0}/ray/session_latest/logs), then run the same command again."
)
_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 30.0  # without an answer from the head; Ray aborts the driver after 60
_SHUTDOWN_SECONDS = 10.0  # 5 with a dead head, 1 with a live one
_ON_EACH_NODE_SECONDS = 120  # for a process to start and the function to end
_INCOMPLETE = 3  # the exit code of a run that goes on with the same command


def everywhere(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Runs a plain function on each node. Returns node -> its value, without nodes that do not
    answer."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # a task that has no GPU of its own must still see the node's GPUs
    see = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
    remote = ray.remote(num_cpus=0, max_retries=0, runtime_env=see)(lambda: function(*arguments))
    tasks = {}
    for node in (node["NodeID"] for node in ray.nodes() if node["Alive"]):
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        tasks[remote.options(scheduling_strategy=there).remote()] = node
    ready, late = ray.wait([*tasks], num_returns=len(tasks), timeout=_ON_EACH_NODE_SECONDS)
    for task in late:
        ray.cancel(task, force=True)
    found = {}
    for task in ready:
        with suppress(RayError):
            found[tasks[task]] = ray.get(task)
    return found


def run_on_ray(
    course: Course, signals: StopSignals, address: str | None, at_the_end: ExitStack
) -> None:
    """Runs the queue's work on the cluster at `address`; None: on a local Ray. `at_the_end` leaves
    it. Raises PreflightError and StoreError before the first trial."""
    joining = f"joining the Ray at {address}" if address else "starting Ray on this machine"
    course.reporter.phase(joining)
    course.everywhere = everywhere
    with ExitStack() as ray:
        ray.enter_context(connection(address))
        with watched(lambda why: _end_lost(course, why)):
            _run(course, signals, address)
        if not course.queue.live or course.queue.stopped == "ray":  # else its trials would go on
            at_the_end.push(ray.pop_all())


def _run(course: Course, signals: StopSignals, address: str | None) -> None:
    # Tune reads some of its settings when it is imported, so Ray must be set up first
    import ray
    from ray.exceptions import RayError
    from ray.tune import TuneError

    from lp_sweep.orchestrator.engine.ray_tune import fit

    tell = course.reporter.note
    if address:  # how it was found, since it may not be the one that you meant
        at = ray.get_runtime_context().gcs_address
        tell(f"joined the Ray at {at}: {found_by(address, os.environ)}")
    try:
        file = file_on_head() if address else None
        if file:
            await_workers(file, ray.nodes, tell)
        capacity = Capacity(PerTrial.of(course.queue.plan.sweep.spec), ray.nodes, file)
        open_run(course, capacity.slots, capacity.accelerators, joined=bool(address))
        signals.arm()
        fit(course, capacity)
    except LpSweepError:
        raise
    except Exception as error:
        time.sleep(3 * _LOOK_SECONDS)  # if its cause is a lost Ray, the watch ends the process
        if not isinstance(error, (RayError, TuneError)):
            raise
        course.queue.stop("ray", lines_of(error)[-1])


@contextmanager
def watched(lost: Callable[[str], object]) -> Iterator[None]:
    """Watches the Ray that this process is connected to. Calls `lost` with the reason, in a thread,
    once Ray is lost. It counts its own looks, since the whole process may have been suspended."""
    import ray

    here, over = ray.get_runtime_context().get_node_id(), threading.Event()
    alive, silent = True, 0

    def ask() -> None:
        """Asks the head who is alive. A head that is lost may not answer for ever."""
        nonlocal alive, silent
        while not over.wait(_LOOK_SECONDS):
            with suppress(Exception):  # of any type, while a head goes down
                nodes = ray.nodes()
                alive = any(node["NodeID"] == here and node["Alive"] for node in nodes)
                silent = 0

    def look() -> None:
        nonlocal silent
        while not over.wait(_LOOK_SECONDS) and alive and silent <= _SILENT_SECONDS / _LOOK_SECONDS:
            silent += 1
        if not over.is_set():
            head = f"its head has not answered for {_SILENT_SECONDS:.0f} s"
            lost(head if alive else "the raylet of this machine has died")

    threads = [threading.Thread(target=each, daemon=True) for each in (ask, look)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(_LOOK_SECONDS)


def _end_lost(course: Course, why: str) -> None:
    with suppress(Exception):  # the end of a live display is not worth a run that hangs
        course.reporter.closed()
    complete = False
    with suppress(Exception):  # the main thread may be changing it
        queue = course.queue
        complete = not make_plan(queue.plan.sweep, queue.known()).missing()
    _end(f"Ray was lost: {why}", 0 if complete else _INCOMPLETE)


def _end(why: str, code: int = _INCOMPLETE) -> None:
    """Ends the process, whatever its main thread waits for. The Ray that it started ends with it,
    as Linux has it."""
    told = "the sweep is complete" if code == 0 else "Go on: the same command again"
    print(f"\nstopped: {why}. Finished work is safe. {told}.", file=sys.stderr, flush=True)
    os._exit(code)


def end_process(code: int) -> None:
    """Ends the process if it is connected to a Ray. For a command that has told its result: Ray's
    own way out may change the exit code, print, or not end."""
    if (ray := sys.modules.get("ray")) is None or not ray.is_initialized():
        return
    with suppress(OSError, ValueError):  # nobody reads it any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@contextmanager
def connection(address: str | None) -> Iterator[None]:
    """Connects this process to the cluster at `address`, or to a local Ray of our own. Raises
    PreflightError."""
    if address and address.startswith(("http://", "https://")):
        raise PreflightError(
            f"{address} is a cluster's job server, and no driver can join there. Submit the run as "
            f"a job (`ray job submit --address {address} -- lp-sweep run ...`), or start it on the "
            "head: ray exec cluster.yaml 'lp-sweep run ... --address auto'."
        )
    if "ray" not in sys.modules and find_spec("ray") is None:
        raise PreflightError(
            "Ray is not installed here: pip install 'ray[tune]'. Without Ray, on this machine: "
            "lp-sweep run ... --processes gpus (or a number), or --inline for one after another."
        )
    if (ray := sys.modules.get("ray")) and ray.is_initialized():
        raise PreflightError(
            "this process is already connected to a Ray. Call ray.shutdown() first, or start the "
            "run in another process."
        )
    ours = {name: os.environ.get(name, value) for name, value in _TUNE_ENVIRONMENT.items()}
    own = nullcontext() if address else private_ray()
    with variables(ours), _silent_loggers(), keep_sigterm(), keep_stdout(), own:
        try:
            _init(address)
            yield
        finally:
            _leave()


def _leave() -> None:
    """`ray.shutdown()`, which does not return while a stopped head keeps its connection: then it
    ends the process."""
    import ray

    # Tune leaves cycles that hold references. One that is freed in `ray.shutdown`, by whichever
    # thread collects cycles then, would end the process
    gc.collect()
    gc.disable()
    late = threading.Timer(_SHUTDOWN_SECONDS, _end, ["Ray does not let this process go"])
    late.daemon = True
    late.start()
    try:
        with suppress(Exception):  # of many types; there is nothing left to do with it
            ray.shutdown()
    finally:
        late.cancel()
        gc.enable()


@contextmanager
def _silent_loggers() -> Iterator[None]:
    """Our own reporter shows failures."""
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air", "ray.train")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _init(address: str | None) -> None:
    """Joins a cluster, or starts a local Ray. Raises PreflightError."""
    import ray

    options: dict[str, Any] = {"address": address}
    where, advice = f"at {address}", _JOIN_ANOTHER
    if address is None:
        folder = _own_folder()
        where, advice = "on this machine", _LOOK.format(folder)
        options = {
            "address": "local",
            "include_dashboard": False,
            "_temp_dir": str(folder / "ray"),
            "object_store_memory": 200 * 2**20,  # records go to the store, not through Ray
        }
    try:
        if address:
            _knock(address)
        ray.init(**options, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # of many types
        said = lines_of(error)[0].rstrip(".")
        raise PreflightError(f"no Ray {where}: {said}. {advice}") from error


def _knock(address: str) -> None:
    """Raises OSError at once if nothing listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].partition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


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


def found_by(address: str, environment: Mapping[str, str]) -> str:
    """Names the option or variable that an address came from. With `auto` Ray looks for one."""
    if address == "auto" and environment.get("RAY_ADDRESS", "auto") in ("", "auto"):
        return "it is at work on this machine; --address names another"
    variables = ("RAY_ADDRESS",) if address == "auto" else ("LP_SWEEP_ADDRESS", "RAY_ADDRESS")
    for name in variables:
        if address in ("auto", environment.get(name)):
            return f"{name} names it"
    return "--address names it"
