"""Plays a user of a cluster of machines, from a laptop. A program, run by
test_real_cluster.py on the machine `laptop` that hosts.sh makes; writes what it saw as JSON.

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

STORE = "/mnt/records"  # the folder that all machines share
RUN = "lp-sweep run sweep/sweep.yaml --address auto --store"
CHECK = "lp-sweep cluster check sweep/sweep.yaml --store"


class Laptop:
    """Commands as a user types them, with the cluster file's name put in."""

    def __init__(self, cluster: Path) -> None:
        self.cluster = cluster
        self.workers = ("10.77.0.11", "10.77.0.12")

    def ray(self, verb: str, *words: str) -> str:
        """Its output. Raises AssertionError with it where it fails."""
        done = subprocess.run(
            ["ray", verb, str(self.cluster), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"ray {verb}: {done.stdout}"
        return done.stdout

    def begin(self, command: str, log: Path) -> subprocess.Popen[bytes]:
        """`ray exec` in the background, in a process group of its own, as a shell starts it."""
        with log.open("wb") as stream:
            return subprocess.Popen(
                ["ray", "exec", str(self.cluster), command],
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def on(self, host: str, command: str) -> str:
        options = ["-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]
        key = str(Path("~/.ssh/lp-sweep.pem").expanduser())
        done = subprocess.run(
            ["ssh", *options, "-i", key, f"root@{host}", command],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout


def records() -> int:
    return len(list(Path(STORE, "trials").glob("*.parquet")))


def wait(what: str, met: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.5)


def scene(laptop: Laptop, saw: dict[str, Any]) -> None:
    saw["up"] = laptop.ray("up", "-y", "--no-config-cache")
    laptop.ray("rsync-up", "/mnt/sweep/", "~/sweep/")
    saw["check"] = laptop.ray("exec", f"{CHECK} {STORE} || echo exit code $?")
    saw["check_blind"] = laptop.ray("exec", f"{CHECK} /tmp/records || echo exit code $?")

    first = laptop.begin(f"{RUN} {STORE}", Path("first.log"))
    wait("the first records", lambda: records() >= 3)
    looking = laptop.begin(f"lp-sweep status --store {STORE}", Path("status.log"))
    laptop.on(laptop.workers[1], "kill -9 -1")  # all of that machine but its sshd
    before = records()
    wait("records after a machine is lost", lambda: records() >= before + 3)
    os.killpg(first.pid, signal.SIGINT)
    saw["stopped"] = first.wait(timeout=120)
    assert looking.wait(timeout=120) == 0, Path("status.log").read_text(errors="replace")
    saw["first"] = Path("first.log").read_text(errors="replace")
    saw["records_when_stopped"] = records()
    saw["second"] = laptop.ray("exec", f"{RUN} {STORE}")
    saw["third"] = laptop.ray("exec", f"{RUN} {STORE}")
    saw["blind"] = subprocess.run(
        ["ray", "exec", str(laptop.cluster), f"{RUN} /tmp/records seed=77"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    sql = "SELECT host, count(*) AS n FROM trials GROUP BY host ORDER BY host"
    saw["hosts"] = laptop.ray("exec", f'lp-sweep query "{sql}" --store {STORE} --format json')
    laptop.ray("down", "-y")
    left = "ps -eo args | grep -c '[r]aylet\\|[g]cs_server\\|ray:[:]'"
    wait(
        "no process of Ray is left",
        lambda: all(laptop.on(h, left).strip() == "0" for h in ("10.77.0.10", *laptop.workers)),
        180,  # a worker's raylet gives up a head that is gone after a minute
    )


def main() -> None:
    cluster, out = map(Path, sys.argv[1:3])
    subprocess.run(["ray", "get-auth-token", "--generate"], check=True, capture_output=True)
    saw: dict[str, Any] = {}
    try:
        scene(Laptop(cluster), saw)
    finally:
        saw["log"] = (
            Path("first.log").read_text(errors="replace") if Path("first.log").exists() else ""
        )
        out.write_text(json.dumps(saw), encoding="utf-8")


if __name__ == "__main__":
    main()
