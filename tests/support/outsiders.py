"""Who gets into the Ray of a local run. A program for root, run by test_outsiders.py in namespaces
of its own; prints a line of JSON for each attempt.

    python outsiders.py FOLDER
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

HERE, THERE = "198.51.100.1", "198.51.100.2"  # of the two ends of a cable between two namespaces
# Whoever may write to the head's table can have code run by the workers
ATTEMPT = """
import sys
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
client.internal_kv_put(b"outsider", b"was here", True, b"", timeout=5)
print("written")
"""
PLAIN = """
import ray, sys
ray.init(address="local", include_dashboard=False, object_store_memory=200 * 2**20)
sys.stdin.read()
"""
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@contextmanager
def victim(folder: Path, kind: str) -> Iterator[psutil.Process]:
    """A driver with a local Ray: a run of ours, or Ray as it is without a token."""
    run = [sys.executable, "-m", "lp_sweep.orchestrator.cli", "run", "sweep.yaml"]
    plain = [sys.executable, "-c", PLAIN]
    settings = {} if kind == "ours" else {"RAY_AUTH_MODE": "disabled"}
    process = subprocess.Popen(
        run if kind == "ours" else plain,
        cwd=folder,
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait(30)


def head_of(driver: psutil.Process) -> psutil.Process:
    """Its GCS, once there are workers: Ray is up then."""
    for _ in range(600):
        family = driver.children(recursive=True)
        if any(child.name().startswith("ray::") for child in family):
            return next(child for child in family if child.name() == "gcs_server")
        time.sleep(0.1)
    raise AssertionError("no Ray")


def attempt(address: str, who: list[str], token: str | None) -> str:
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    command = [*who, sys.executable, "-c", ATTEMPT, address]
    done = subprocess.run(
        command, env=clean | settings, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 0:
        return done.stdout.strip()
    return (done.stderr.strip().splitlines() or ["no word"])[-1][:160]


def main() -> None:
    folder = Path(sys.argv[1])
    other = subprocess.Popen(["unshare", "--net", "sleep", "1000"])
    time.sleep(0.5)
    inside = ["nsenter", "-t", str(other.pid), "-n"]
    for line in (
        f"ip link add here type veth peer name there netns {other.pid}",
        f"ip addr add {HERE}/30 dev here",
        "ip link set here up",
        f"ip route add default via {THERE}",  # else Ray finds no address but loopback's
    ):
        subprocess.run(line.split(), check=True)
    for line in (f"ip addr add {THERE}/30 dev there", "ip link set there up", "ip link set lo up"):
        subprocess.run([*inside, *line.split()], check=True)
    try:
        for kind in ("plain", "ours"):
            with victim(folder, kind) as driver:
                head = head_of(driver)
                port = next(c.laddr.port for c in head.net_connections() if c.status == "LISTEN")
                token = head.environ().get("RAY_AUTH_TOKEN")
                places: dict[str, Any] = {
                    "this user": (f"127.0.0.1:{port}", [], None),
                    "another user": (f"127.0.0.1:{port}", NOBODY, None),
                    "another machine": (f"{HERE}:{port}", inside, None),
                }
                if token:
                    places["another machine, with the token"] = (f"{HERE}:{port}", inside, token)
                    places["this user, with the token"] = (f"127.0.0.1:{port}", [], token)
                for who, (address, command, known) in places.items():
                    told = attempt(address, command, known)
                    print(json.dumps({"ray": kind, "who": who, "told": told}), flush=True)
    finally:
        other.kill()
        other.wait()


if __name__ == "__main__":
    main()
