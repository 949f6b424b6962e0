"""Programs that the tests of a store run in processes of their own, and kill: one verb each.

python -m tests.support.storeworkers VERB LOCATION [ARGUMENTS]
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from lp_sweep.storage import packs, parquet
from lp_sweep.storage.store import Store


def trial(name: str, value: float = 0.5) -> dict[str, Any]:
    return {"trial_id": name, "model": "bert", "kept_layers": [1, 2], "last": value}


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


def rewrite(location: str, value: str, number: str) -> None:
    """One record again and again, in many rows that must agree."""
    store = Store(location)
    for _ in range(int(number)):
        store.put("trials", "t1-a", [trial("t1-a", float(value))] * 50)


def compact(location: str, settle: str) -> None:
    """Until it is killed."""
    store = Store(location)
    print("ready", flush=True)
    while True:
        packs.compact(store, settle=float(settle))
        time.sleep(0.01)


def put_large(location: str, number: str) -> None:
    """Large records again and again; a line before each."""
    store = Store(location)
    rows = [{"example": i, "scores": [i * 0.37] * 9, "split": f"{i:06d}"} for i in range(20_000)]
    contents = {
        name: parquet.to_table("predictions", [row | {"trial_id": name} for row in rows])
        for name in (f"t1-{i}" for i in range(int(number)))
    }
    for i, name in enumerate(itertools.cycle(contents)):
        print(i, flush=True)
        store.put("predictions", name, contents[name])


if __name__ == "__main__":
    {f.__name__: f for f in (write, rewrite, compact, put_large)}[sys.argv[1]](*sys.argv[2:])
