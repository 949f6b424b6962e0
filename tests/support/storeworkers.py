"""Programs that the tests of a store run in processes of their own, and kill: one verb each.

python -m tests.support.storeworkers VERB LOCATION [ARGUMENTS]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lp_sweep.storage import packs
from lp_sweep.storage.store import Store

ROOT = Path(__file__).resolve().parents[2]


def start(verb: str, *arguments: str) -> subprocess.Popen[str]:
    """One of them, in a process of its own."""
    command = [sys.executable, "-m", "tests.support.storeworkers", verb, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def trial(name: str, value: float = 0.5) -> dict[str, Any]:
    return {"trial_id": name, "model": "bert", "kept_layers": [1, 2], "last": value}


def cell(sweep: str = "demo", number: int = 0, **columns: Any) -> dict[str, Any]:
    """A cell that waits for a measurement."""
    told = {"model": "bert", "task": "rte", "strategy": "top", "procedure": "direct"}
    return {"sweep": sweep, "cell": number, "depth": 4, "seed": 1, **told, **columns}


def predictions(name: str) -> list[dict[str, Any]]:
    return [{"trial_id": name, "split": "validation", "example": i} for i in range(20)]


def write(location: str, prefix: str, number: str) -> None:
    """Records one after the other, each named on stdout once the store has it."""
    store = Store(location)
    for i in range(int(number)):
        name = f"t1-{prefix}{i:05d}"
        store.put("predictions", name, predictions(name))
        store.put("trials", name, [trial(name, i)])
        print(name, flush=True)


def compact(location: str) -> None:
    """Until it is killed."""
    store = Store(location)
    print("ready", flush=True)
    while True:
        packs.compact(store)
        time.sleep(0.01)


if __name__ == "__main__":
    {f.__name__: f for f in (write, compact)}[sys.argv[1]](*sys.argv[2:])
