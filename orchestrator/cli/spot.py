"""`lp-sweep cluster watch-spot`: runs on a spot machine, until its cloud takes it."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated

import typer

from lp_sweep.orchestrator.cli.options import AddressOption, CacheDirOption
from lp_sweep.orchestrator.cli.output import say
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import node_folder

_LATE_SECONDS = 300.0  # that a cloud may be later than it said


class CloudName(StrEnum):
    """Clouds whose notices are known."""

    aws = "aws"
    gcp = "gcp"


def watch_spot(
    cloud: Annotated[CloudName, typer.Argument(help="Whose machine this is.")],
    address: AddressOption = None,
    cache_dir: CacheDirOption = None,
    node_ip: Annotated[
        str | None, typer.Option("--node-ip", help="Of this machine's node, as Ray has it.")
    ] = None,
    metadata_url: Annotated[
        str | None, typer.Option("--metadata-url", help="Of the metadata service.")
    ] = None,
    every: Annotated[
        float, typer.Option("--every", min=0.01, help="Seconds between two looks.")
    ] = 5.0,
) -> None:
    """Wait for the cloud's notice that this machine will be taken; then trials write their
    checkpoints, and Ray drains the node. Runs beside Ray on each spot machine.

    Example: lp-sweep cluster watch-spot aws --address $RAY_HEAD_IP:6379
    """
    if address is None:
        raise SpecError(
            "which cluster? Name it with --address: $RAY_HEAD_IP:6379 in the "
            "worker_start_ray_commands of a cluster file."
        )
    folder = node_folder(cache_dir)
    url = metadata_url.rstrip("/") if metadata_url else None
    taken = _watch(cloud.value, address, folder, node_ip, url, every)
    raise typer.Exit(0 if taken else 4)


def _watch(
    cloud: str, address: str, folder: Path, node_ip: str | None, url: str | None, every: float
) -> bool:
    """Whether Ray has taken the notice; also where another watcher is at work."""
    from filelock import FileLock, Timeout

    from lp_sweep.orchestrator.cluster.spotwatch import CLOUDS, drain, wait_for_notice

    known = CLOUDS[cloud]
    at = url or known.url
    lock = FileLock(Path(gettempdir()) / f"lp-sweep-watch-spot-{os.getuid()}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:  # `ray up` runs the start commands again
        say("another watcher is at work on this machine")
        return True
    try:
        say(f"watching for a notice at {at} (pid {os.getpid()})")
        notice = wait_for_notice(lambda: known.look(at, every), every, say)
        say(f"{notice.text}: in {notice.seconds:.0f} s")
        _announce(folder, notice.seconds + _LATE_SECONDS)
        return drain(notice, lambda text, left: _ask_ray(address, node_ip, text, left), every, say)
    finally:
        lock.release()


def _announce(folder: Path, seconds: float) -> None:
    """To the trials on this machine. Imported by now: a watcher stays small while it waits."""
    from lp_sweep.trials.job import announce

    try:
        announce(folder, seconds)
    except OSError as error:
        say(f"trials write no checkpoint for it: {error}")


def _ask_ray(address: str, node_ip: str | None, text: str, seconds: float) -> None:
    import ray

    from lp_sweep.orchestrator.engine.raycompat import drain_nodes

    ip = node_ip or ray.util.get_node_ip_address()
    drain_nodes(address, ip, text, seconds)
    say(f"Ray drains the node at {ip}")
