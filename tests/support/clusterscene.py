"""Plays a user of a cluster of machines, from a laptop. A program, run by
test_real_cluster.py on the machine `laptop` that hosts.sh makes; writes what it saw as JSON.

    python clusterscene.py CLUSTER.yaml OUT.json
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STORE = "/mnt/records"  # the folder that all machines share
RUN = "lp-sweep run sweep/sweep.yaml --address auto --store"
CHECK = "lp-sweep cluster check sweep/sweep.yaml --store"
LOCAL = ("127.0.0.1", 8265)  # of `ray dashboard`: the job server of the cluster
SERVER = "http://127.0.0.1:8265"


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


@contextlib.contextmanager
def bucket(name: str) -> Iterator[None]:
    """An S3 server on the laptop, which the machines reach."""
    import boto3

    command = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        client = boto3.client("s3", endpoint_url="http://127.0.0.1:5000", region_name="us-east-1")
        wait("the S3 server", lambda: answers(client.list_buckets))
        client.create_bucket(Bucket=name)
        yield
    finally:
        server.kill()


def answers(call: Callable[[], object]) -> bool:
    try:
        call()
    except Exception:  # whatever a client raises of a server that is not there yet
        return False
    return True


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
    detached(laptop, saw)
    saw["third"] = laptop.ray("exec", f"{RUN} {STORE}")
    saw["blind"] = subprocess.run(
        ["ray", "exec", str(laptop.cluster), f"{RUN} /tmp/records seed=77"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    sql = "SELECT host, count(*) AS n FROM trials GROUP BY host ORDER BY host"
    saw["hosts"] = laptop.ray("exec", f'lp-sweep query "{sql}" --store {STORE} --format json')
    with bucket("sweeps"), forwarded(laptop):
        saw["afar"], saw["s3"] = from_afar("s3://sweeps/records", "seed=1", "k=0,1")
    laptop.ray("down", "-y")
    left = "ps -eo args | grep -c '[r]aylet\\|[g]cs_server\\|ray:[:]'"
    wait(
        "no process of Ray is left",
        lambda: all(laptop.on(h, left).strip() == "0" for h in ("10.77.0.10", *laptop.workers)),
        180,  # a worker's raylet gives up a head that is gone after a minute
    )


def detached(laptop: Laptop, saw: dict[str, Any]) -> None:
    """A run that outlives the ssh of who looks at it, and is stopped and gone on with."""
    saw["detached"] = laptop.ray("exec", f"{RUN} {STORE} --detach")
    log = Path("attach.log")
    following = laptop.begin(f"lp-sweep attach {run_in(saw['detached'])}", log)
    wait("what the run prints", lambda: b"to do on" in log.read_bytes())
    os.killpg(following.pid, signal.SIGKILL)
    before = records()
    wait("records without anybody at it", lambda: records() > before)
    saw["stop"] = laptop.ray("exec", "lp-sweep stop")
    saw["records_when_stopped"] = records()
    saw["resumed"] = laptop.ray("exec", f"{RUN.replace('run', 'resume')} {STORE} --detach")
    saw["second"] = laptop.ray("exec", f"lp-sweep attach {run_in(saw['resumed'])}")


def run_in(printed: str) -> str:
    """The name of a detached run."""
    return re.findall(r"lp-sweep-[0-9a-f]{8}", printed)[-1]


@contextlib.contextmanager
def forwarded(laptop: Laptop) -> Iterator[None]:
    """The job server of the cluster answers on the laptop."""
    with Path("forward.log").open("wb") as log:
        tunnel = subprocess.Popen(
            ["ray", "dashboard", str(laptop.cluster)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait("the tunnel", lambda: answers(lambda: socket.create_connection(LOCAL).close()))
        yield
    finally:
        os.killpg(tunnel.pid, signal.SIGKILL)


def from_afar(store: str, *overrides: str) -> tuple[str, str]:
    """A run that is sent from a folder of the laptop alone: what was printed, there and by it."""
    here = Path("~/afar").expanduser()
    shutil.copytree("/mnt/sweep", here / "sweep")
    (wheel,) = Path("/mnt/dist").glob("*.whl")
    shutil.unpack_archive(wheel, here / "installed", "zip")

    def lp_sweep(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lp_sweep.orchestrator.cli", *words, "--address", SERVER],
            cwd=here,
            env=os.environ | {"PYTHONPATH": str(here / "installed")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}"
        return done.stdout

    sent = lp_sweep("run", "sweep/sweep.yaml", *overrides, "--store", store, "--detach")
    return sent, lp_sweep("attach", run_in(sent))


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
