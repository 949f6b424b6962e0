"""A hub on loopback with a tiny real model and data set, and a sweep over both; commands run in
processes of their own, since the libraries read where hub and cache are at import. Not a test."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.support.hubserver import Files, Hub, serve
from tests.support.program import Ended, ended
from tests.support.toyworld import rows, save_model, sweep_content

MODEL, DATASET = "toy/bert", "toy/mood"
CARD = """\
---
configs:
- config_name: plain
  default: true
  data_files:
  - {split: train, path: plain/train-*}
  - {split: validation, path: plain/validation-*}
- config_name: other
  data_files:
  - {split: train, path: other/train-*}
  - {split: validation, path: other/validation-*}
---
# Moods
"""
# nothing of these is ever downloaded
UNWANTED: Files = {
    "pytorch_model.bin": b"a pickle",
    "onnx/model.onnx": b"another form",
    "tf_model.h5": b"another form",
    "README.md": b"# a model\n",
}

# what the driver does up to the start of Ray, and one job as it goes to a worker
DRIVER = """
import json, sys
from pathlib import Path
from lp_sweep.orchestrator.inputs import checks
from lp_sweep.orchestrator.options import Request
from lp_sweep.orchestrator.service.plan import planned
from lp_sweep.storage.store import Store
made = planned(Request("sweep.yaml", ["k=2"], None, None, True))
cache = Path("tokens")
checks.check(made.sweep, made.plan.inputs_needed(), made.location, cache, offline=True)
heavy = [name for name in ("torch", "ray", "transformers") if name in sys.modules]
Store("store", create=True)
(work,) = (work for work in made.plan.trials.values() if len(work.spec.kept_layers) == 2)
place = {"store": "store", "cache_dir": str(cache), "device": "cpu", "threads": 1, "offline": True}
job = {**work.job().to_plain(), **place}
print(json.dumps({"job": job, "heavy": heavy}))
"""
# a worker on another node: it knows only of the job
WORKER = """
import json, sys
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker.run import execute
job = json.loads(sys.argv[1])
told = execute(job)
(record,) = Store("store").read("trials", job["id"]) if told["status"] == "done" else (None,)
print(json.dumps({"told": told, "record": record}, default=str))
"""

# every connection of a process is written down, and one to anything but loopback is refused
GUARD = """
import os, socket
_log, _connect, _look = os.environ["SOCKET_LOG"], socket.socket.connect, socket.getaddrinfo

def _check(host):
    with open(_log, "a") as log:
        log.write(f"{host}\\n")
    if str(host) not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(101, f"no network in this test: {host}")

def connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6):
        _check(address[0])
    return _connect(self, address)

def getaddrinfo(host, *rest, **options):
    _check(host)
    return _look(host, *rest, **options)

socket.socket.connect = socket.socket.connect_ex = connect
socket.getaddrinfo = getaddrinfo
"""


class World(NamedTuple):
    """A folder with `sweep.yaml`, a Hugging Face home of its own, and the hub."""

    folder: Path
    hub: Hub

    @property
    def home(self) -> Path:
        return self.folder / "hf"

    @property
    def manifest(self) -> dict[str, Any]:
        text = (self.folder / "sweep.manifest.json").read_text(encoding="utf-8")
        return dict(json.loads(text))

    def snapshot(self, commit: str) -> Path:
        return self.home / "hub" / "models--toy--bert" / "snapshots" / commit

    def arrow(self, split: str) -> Path:
        (path,) = self.home.rglob(f"mood-{split}.arrow")
        return path

    def write(self, **changes: Any) -> None:
        content = sweep_content(
            models=[MODEL],
            tasks=[{"name": "mood", "dataset": DATASET, "text": ["text"]}],
            **changes,
        )
        (self.folder / "sweep.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")

    def run(
        self, verb: str, *arguments: str, code: int = 0, env: dict[str, str] | None = None
    ) -> Ended:
        """`lp-sweep VERB sweep.yaml ARGUMENTS`, and that it ends with `code`."""
        command = ("-m", "lp_sweep.orchestrator.cli", verb, "sweep.yaml", *arguments)
        return self.python(*command, code=code, env=env)

    def python(self, *arguments: str, code: int = 0, env: dict[str, str] | None = None) -> Ended:
        words = [sys.executable, *arguments]
        return ended(words, self.folder, code, self.environment() | (env or {}))

    def trial(self, env: dict[str, str] | None = None) -> dict[str, Any]:
        """Plan, preflight and one real trial, without a cluster in between."""
        driver = json.loads(self.python("-c", DRIVER, env=env).stdout.splitlines()[-1])
        worker = self.python("-c", WORKER, json.dumps(driver["job"]), env=env)
        return {**driver, **json.loads(worker.stdout.splitlines()[-1])}

    def environment(self) -> dict[str, str]:
        """Where hub and cache are. `HF_HUB_OFFLINE`, which the tests run under, is not in it."""
        unwanted = ("HF_", "LP_SWEEP_", "TRANSFORMERS_", "RAY_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
        return clean | {
            "HF_HOME": str(self.home),
            "HF_ENDPOINT": self.hub.url,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "LP_SWEEP_CACHE_DIR": str(self.folder / "tokens"),
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "*",
        }

    def trial_ids(self, *arguments: str) -> set[str]:
        plan = json.loads(self.run("plan", *arguments, "--json").stdout)
        return {cell["trial_id"] for cell in plan["cells"]}

    def copy(self, folder: Path) -> World:
        shutil.copytree(self.folder, folder, symlinks=True, dirs_exist_ok=True)
        return World(folder, self.hub)


@contextmanager
def served(folder: Path) -> Iterator[World]:
    """A world in `folder` of which nothing is fetched yet; its hub answers while inside."""
    hub = Hub()
    hub.push("model", MODEL, model_files(folder / "source"))
    hub.push("dataset", DATASET, dataset_files())
    world = World(folder, hub)
    world.write()
    with serve(hub):
        yield world


def model_files(folder: Path, **settings: Any) -> Files:
    save_model(folder, **settings)
    return {path.name: path.read_bytes() for path in folder.iterdir()} | UNWANTED


def dataset_files(seed: int = 1) -> Files:
    def parquet(count: int, seed: int) -> bytes:
        stream = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows(count, seed)), stream)
        return stream.getvalue()

    return {
        "README.md": CARD.encode(),
        "plain/train-0.parquet": parquet(96, seed),
        "plain/validation-0.parquet": parquet(40, seed + 1),
        "other/train-0.parquet": parquet(20, seed + 2),
        "other/validation-0.parquet": parquet(20, seed + 3),
    }
