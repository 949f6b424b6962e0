"""Plays a user of a cluster of machines, from a laptop that also has the S3 server of the store. A
program, run by test_real_cluster.py on the machine `laptop` that hosts.sh makes; writes what it saw
as JSON.

    python clusterscene.py CLUSTER.yaml OUT.json
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3

RUN = "lp-sweep run sweep/sweep.yaml"
HEAD, *WORKERS = MACHINES = ("10.77.0.10", "10.77.0.11", "10.77.0.12")


class Laptop:
    """Commands as a user types them, with the cluster file's name put in."""

    def __init__(self, cluster: Path) -> None:
        self.cluster = cluster

    def ray(self, verb: str, *words: str) -> str:
        """Its output. Raises AssertionError with it where it fails."""
        command = ["ray", verb, str(self.cluster), *words]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, f"ray {verb}: {done.stdout}"
        return done.stdout

    def begin(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        """`ray exec` in the background, in a process group of its own, as a shell starts it."""
        words = ["ray", "exec", str(self.cluster), command]
        with log.open("wb") as stream:
            return subprocess.Popen(words, stdout=stream, stderr=stream, start_new_session=True)

    def on(self, host: str, command: str) -> str:
        options = ["-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]
        words = ["ssh", *options, "-i", str(Path("~/.ssh/lp-sweep.pem").expanduser())]
        done = subprocess.run(
            [*words, f"root@{host}", command], capture_output=True, text=True, check=False
        )
        return done.stdout


def wait(what: str, met: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.5)


def answers(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:  # whatever a client raises of a server that is not there yet
        return False
    return True


def scene(laptop: Laptop, s3: Any, saw: dict[str, Any]) -> None:
    def records() -> int:
        found = s3.list_objects_v2(Bucket="sweeps", Prefix="records/trials/")
        return sum(item["Key"].endswith(".parquet") for item in found.get("Contents", []))

    laptop.ray("up", "-y", "--no-config-cache")
    laptop.ray("rsync-up", "/mnt/sweep/", "~/sweep/")
    first = laptop.begin(RUN, Path("first.log"))
    wait("the first records", lambda: records() >= 3)
    laptop.on(WORKERS[1], "kill -9 -1")  # all of that machine but its sshd
    before = records()
    wait("records after a machine is lost", lambda: records() >= before + 3)
    os.killpg(first.pid, signal.SIGINT)
    saw["stopped"] = first.wait(timeout=120)
    saw["records"] = records()
    saw["second"] = laptop.ray("exec", RUN)
    saw["third"] = laptop.ray("exec", RUN)
    sql = "SELECT host, count(*) AS n FROM trials GROUP BY host"
    saw["hosts"] = laptop.ray("exec", f'lp-sweep query "{sql}" --format json')
    laptop.ray("down", "-y")
    left = "ps -eo args | grep -c '[r]aylet\\|[g]cs_server\\|ray:[:]'"
    wait(
        "no process of Ray is left",
        lambda: all(laptop.on(host, left).strip() == "0" for host in MACHINES),
        180,  # a worker's raylet gives up a head that is gone after a minute
    )


def main() -> None:
    cluster, out = map(Path, sys.argv[1:3])
    subprocess.run(["ray", "get-auth-token", "--generate"], check=True, capture_output=True)
    command = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    s3 = boto3.client("s3", endpoint_url="http://127.0.0.1:5000", region_name="us-east-1")
    saw: dict[str, Any] = {}
    try:
        wait("the S3 server", lambda: answers(s3.list_buckets))
        s3.create_bucket(Bucket="sweeps")
        scene(Laptop(cluster), s3, saw)
    finally:
        server.kill()
        log = Path("first.log")
        saw["first"] = log.read_text(errors="replace") if log.exists() else ""
        out.write_text(json.dumps(saw), encoding="utf-8")


if __name__ == "__main__":
    main()
