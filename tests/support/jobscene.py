"""Plays a user of detached runs, on a machine with a Ray that has its job server. A program, run
by test_jobs.py in namespaces of its own; writes what it saw as JSON.

    python jobscene.py FOLDER OUT.json
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SECRET = "hf_aSecretOfTheShell1234"
SERVER = "http://127.0.0.1:8265"
START = "ray start --head --node-ip-address=127.0.0.1 --num-cpus=2 --num-gpus=0"
START += " --object-store-memory=200000000"


class Shell:
    """Commands in one folder, with the settings of one shell."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self.environment = folder, os.environ | settings

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "lp_sweep.orchestrator.cli", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # a background job inherits an ignored SIGINT; a terminal's job does not
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def __call__(self, *words: str) -> dict[str, Any]:
        return ended(self.begin(*words))


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    return {"code": process.returncode, "out": out, "err": err}


def wait(what: str, met: Any, seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(0.3)


def records(store: Path) -> int:
    return len(list((store / "trials").glob("*.parquet")))


def scene(folder: Path, saw: dict[str, Any]) -> None:
    store, cache = folder / "records", folder / "cache"
    settings = {"LP_SWEEP_STORE": str(store), "LP_SWEEP_CACHE_DIR": str(cache)}
    head = Shell(folder / "my sweep", HF_TOKEN=SECRET, **settings)
    saw["none"] = head("attach")
    saw["check"] = head("cluster", "check", "sweep.yaml")

    saw["short"] = head("run", "sweep.yaml", "k=0", "--detach")
    saw["short log"] = head("attach")
    saw["cache"] = sorted(str(path.relative_to(cache)) for path in cache.rglob("*.sh"))

    saw["long"] = head(
        "run", "sweep.yaml", "recipe.epochs=2000", "seed=1,2,3,4", "--detach", "--json"
    )
    long = json.loads(saw["long"]["out"])["run"]
    wait("the long run to begin", lambda: list((store / "runs").glob("*.json")))
    following = head.begin("attach", long)
    first = following.stdout.readline() if following.stdout else ""
    time.sleep(3)  # for the client to be in the middle of it
    os.killpg(following.pid, signal.SIGINT)
    saw["left"] = ended(following) | {"first": first}
    saw["unknown"] = head("attach", "lp-sweep-00000000")
    saw["stop"] = head("stop")
    saw["stopped log"] = head("attach", long)
    saw["stop again"] = head("stop", long)

    afar = Shell(folder / "laptop", HF_TOKEN=SECRET, LP_SWEEP_MAX_HOURS="9")
    saw["sent"] = afar(
        "run", "my sweep/sweep.yaml", "--detach", "--address", SERVER, "--store", str(store)
    )
    saw["sent log"] = afar("attach", saw["sent"]["out"].strip(), "--address", SERVER)
    saw["resumed"] = head("resume", "sweep.yaml", "--detach", "--store", "/proc/no-store")
    saw["resumed log"] = head("attach", saw["resumed"]["out"].strip())
    listed = subprocess.run(["ray", "list", "jobs", "--detail", "--format=json"], **_CAPTURED)
    saw["jobs"] = listed.stdout
    saw["records"] = records(store)

    os.environ |= {"RAY_AUTH_TOKEN": "0" * 64}
    saw["wrong token"] = Shell(folder, **settings)("attach", "--address", SERVER)


_CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "check": False}


def main() -> None:
    folder, out = map(Path, sys.argv[1:3])
    subprocess.run(["ray", "get-auth-token", "--generate"], check=True, capture_output=True)
    saw: dict[str, Any] = {}
    try:
        started = subprocess.run(START.split(), **_CAPTURED)
        saw["start"] = started.stdout + started.stderr
        assert started.returncode == 0, saw["start"]
        scene(folder, saw)
    finally:
        out.write_text(json.dumps(saw), encoding="utf-8")


if __name__ == "__main__":
    main()
