"""`cluster watch-spot` waits for a cloud's preemption notice on one machine. Then trials write
checkpoints and Ray drains the node.

Ray does not read such notices. A drained node gets no new work, and its lost trials count as
preempted. The command runs on each spot machine, next to Ray and independent of any run. It
survives a metadata service or a cluster that is unreachable for a while.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from filelock import FileLock, Timeout

_AWS_SECONDS, _GCP_SECONDS = 120.0, 30.0  # from the notice to the end of the machine
_LATE_SECONDS = 300.0  # a cloud may take the machine so much later than announced


class Notice(NamedTuple):
    """The cloud will take the machine in so many `seconds`."""

    text: str
    seconds: float


class Cloud(NamedTuple):
    """`look(url, every)` returns the notice, or None while there is none. It takes about `every`
    seconds at most, and raises OSError, HTTPException or ValueError if there is no answer."""

    url: str
    look: Callable[[str, float], Notice | None]


def aws_notice(url: str, every: float) -> Notice | None:
    """EC2 User Guide, "Spot Instance interruption notices" and "Use IMDSv2"; 404: no notice."""
    wait = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _ask(Request(f"{url}/latest/api/token", method="PUT", headers=wait), every)
    headers = {"X-aws-ec2-metadata-token": token}
    try:
        text = _ask(Request(f"{url}/latest/meta-data/spot/instance-action", headers=headers), every)
    except HTTPError as error:
        if error.code == 404:
            return None
        raise
    return Notice(f"EC2 takes this spot machine: {text}", _seconds_until(text))


def _seconds_until(text: str) -> float:
    """Reads `{"action": "terminate", "time": "2026-01-05T08:22:00Z"}`; any other notice also
    counts."""
    try:
        at = dt.datetime.fromisoformat(json.loads(text)["time"])
        return max(0.0, (at - dt.datetime.now(dt.UTC)).total_seconds())
    except (ValueError, TypeError, KeyError):
        return _AWS_SECONDS


def gcp_notice(url: str, every: float) -> Notice | None:
    """Compute Engine documentation, "Preemptible VM instances" and "Query VM metadata": it answers
    when the value changes, or after timeout_sec."""
    path = "/computeMetadata/v1/instance/preempted"
    wait = f"?wait_for_change=true&timeout_sec={int(every)}" if every >= 1 else ""
    headers = {"Metadata-Flavor": "Google"}
    text = _ask(Request(f"{url}{path}{wait}", headers=headers), every).strip()
    if text not in ("TRUE", "FALSE"):
        raise ValueError(f"it answers {text[:80]!r}")
    return Notice("Compute Engine preempts this machine", _GCP_SECONDS) if text == "TRUE" else None


CLOUDS = {
    "aws": Cloud("http://169.254.169.254", aws_notice),
    "gcp": Cloud("http://metadata.google.internal", gcp_notice),
}


def _ask(request: Request, every: float) -> str:
    # never through a proxy: the metadata are this machine's own
    direct = build_opener(ProxyHandler({}))
    with direct.open(request, timeout=2 * every) as answer:
        return str(answer.read(10_000).decode("utf-8", "replace"))


def wait_for_notice(
    look: Callable[[], Notice | None],
    every: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Notice:
    """Looks every so many seconds until there is a notice. Reports an unreachable service once."""
    away = False
    while True:
        began = time.monotonic()
        try:
            notice = look()
        except (OSError, HTTPException, ValueError) as error:
            if not away:
                say(f"no answer from the metadata service, it is asked again: {error}")
            notice, away = None, True
        else:
            if away:
                say("the metadata service answers again")
            away = False
        if notice is not None:
            return notice
        sleep(max(0.0, every - (time.monotonic() - began)))


def drain(
    notice: Notice,
    ask_ray: Callable[[str, float], None],
    every: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Calls `ask_ray(text, seconds left)` until it succeeds or the machine ends. Returns whether it
    did."""
    end = time.monotonic() + notice.seconds
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            ask_ray(notice.text, left)
            return True
        except Exception as error:  # whatever a cluster on its way down can do
            say(f"Ray does not take the notice: {error}")
        if left <= 0:
            return False
        sleep(min(every, left))


def watch(
    cloud: str,
    tell: Callable[[str], None],
    *,
    address: str,
    node_folder: Path,
    node_ip: str | None,
    metadata_url: str | None,
    every: float,
) -> bool:
    """Waits for the notice. Returns whether Ray has accepted it; True if another watcher is already
    running on this machine. `cloud`: a key of CLOUDS; `address`: of Ray; `node_folder`: where
    trials look for the notice; `node_ip`: None as Ray finds it; `metadata_url`: None for the
    cloud's own; `every`: seconds between two looks."""
    url, look = CLOUDS[cloud]
    url = (metadata_url or url).rstrip("/")
    lock = FileLock(Path(gettempdir()) / f"lp-sweep-watch-spot-{os.getuid()}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:  # `ray up` runs the start commands again
        tell("another watcher is at work on this machine")
        return True
    try:
        tell(f"watching for a notice at {url} (pid {os.getpid()})")
        notice = wait_for_notice(lambda: look(url, every), every, tell)
        tell(f"{notice.text}: in {notice.seconds:.0f} s")
        _announce(node_folder, notice.seconds + _LATE_SECONDS, tell)
        ask_ray = partial(_ask_ray, address, node_ip, tell)
        return drain(notice, ask_ray, every, tell)
    finally:
        lock.release()


def _announce(folder: Path, seconds: float, tell: Callable[[str], None]) -> None:
    """Tells the trials on this machine. Imports late, so a waiting watcher stays small."""
    from lp_sweep.trials.worker.job import announce

    try:
        announce(folder, seconds)
    except OSError as error:
        tell(f"trials write no checkpoint for it: {error}")


def _ask_ray(
    address: str, ip: str | None, tell: Callable[[str], None], text: str, seconds: float
) -> None:
    import ray

    from lp_sweep.orchestrator.engine.raycompat import drain_nodes

    ip = ip or ray.util.get_node_ip_address()
    drain_nodes(address, ip, text, seconds)
    tell(f"Ray drains the node at {ip}")
