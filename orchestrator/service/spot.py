"""`cluster watch-spot`: on a preemption notice trials write checkpoints and Ray drains the node."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from filelock import FileLock, Timeout

from lp_sweep.orchestrator.cluster.spotwatch import CLOUDS, drain, wait_for_notice

_LATE_SECONDS = 300.0  # a cloud may take the machine so much later than announced


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOptions:
    cloud: str  # a key of CLOUDS
    address: str  # of Ray
    node_folder: Path  # where trials look for the notice
    node_ip: str | None  # None: as Ray finds it
    metadata_url: str | None  # None: the cloud's own
    every: float  # seconds between two looks


def watch(options: SpotOptions, tell: Callable[[str], None]) -> bool:
    """Waits for the notice. Returns whether Ray has accepted it; True if another watcher is already
    running on this machine."""
    cloud, every = CLOUDS[options.cloud], options.every
    url = (options.metadata_url or cloud.url).rstrip("/")
    lock = FileLock(Path(gettempdir()) / f"lp-sweep-watch-spot-{os.getuid()}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:  # `ray up` runs the start commands again
        tell("another watcher is at work on this machine")
        return True
    try:
        tell(f"watching for a notice at {url} (pid {os.getpid()})")
        notice = wait_for_notice(lambda: cloud.look(url, every), every, tell)
        tell(f"{notice.text}: in {notice.seconds:.0f} s")
        _announce(options.node_folder, notice.seconds + _LATE_SECONDS, tell)
        return drain(notice, lambda text, left: _ask_ray(options, text, left, tell), every, tell)
    finally:
        lock.release()


def _announce(folder: Path, seconds: float, tell: Callable[[str], None]) -> None:
    """Tells the trials on this machine. Imports late, so a waiting watcher stays small."""
    from lp_sweep.trials.worker.job import announce

    try:
        announce(folder, seconds)
    except OSError as error:
        tell(f"trials write no checkpoint for it: {error}")


def _ask_ray(options: SpotOptions, text: str, seconds: float, tell: Callable[[str], None]) -> None:
    import ray

    from lp_sweep.orchestrator.engine.raycompat import drain_nodes

    ip = options.node_ip or ray.util.get_node_ip_address()
    drain_nodes(options.address, ip, text, seconds)
    tell(f"Ray drains the node at {ip}")
