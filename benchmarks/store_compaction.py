"""Times the listing and reading of many records, before and after compaction.

python -m benchmarks.store_compaction [--records 10000] [--store s3://bucket/prefix]

Writes records of the usual width into a new store and prints seconds. Without --store, the store is
a temporary folder, which is deleted.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact


def record(number: int) -> dict[str, Any]:
    """A row of `trials` with most of its columns filled."""
    return {
        "trial_id": f"t1-{number:020x}",
        "spec": f'{{"kept_layers":[1,2,3],"seed":{number},"task":{{"text_columns":["sentence"]}}}}',
        "model": "bert-base-uncased",
        "kept_layers": list(range(1, 7)),
        "dropped_layers": list(range(7, 13)),
        "task": "SST-2",
        "seed": number,
        "last": 0.9 + number % 97 / 1000,
        "epoch_metrics": [
            {"epoch": e, "split": "validation", "metric": "accuracy", "value": 0.9}
            for e in (1, 2, 3)
        ],
        "train_losses": [0.5, 0.3, 0.2],
        "seconds_total": 60.0 + number % 11,
        "command": "lp-sweep run sweep.yaml --store lp-sweep-store",
        "host": f"node-{number % 8}",
        "versions": {"lp_sweep": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
    }


def timed(what: str, action: Callable[[], Any]) -> None:
    begun = time.perf_counter()
    result = action()
    print(f"{what:<46} {time.perf_counter() - begun:8.2f} s   {result}", flush=True)


def measure(location: str, when: str, one: str) -> None:
    timed(f"{when}: names", lambda: len(Store(location).names("trials")))
    timed(f"{when}: names()", lambda: len(Store(location).names("trials")))
    timed(f"{when}: read_all", lambda: len(Store(location).read_all("trials").rows))
    timed(f"{when}: find one", lambda: len(Store(location).find("trials", one) or ()))


@contextmanager
def place(location: str | None) -> Iterator[str]:
    if location is not None:
        yield location
        return
    with tempfile.TemporaryDirectory() as folder:
        yield folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--store")
    arguments = parser.parse_args()
    rows = [record(number) for number in range(arguments.records)]
    with place(arguments.store) as location:
        store = Store(location, create=True)
        with ThreadPoolExecutor(16) as pool:
            put = lambda row: store.put("trials", row["trial_id"], [row])  # noqa: E731
            timed(f"put {len(rows)} records", lambda: len(list(pool.map(put, rows))))
        one = rows[len(rows) // 2]["trial_id"]
        measure(location, "single files", one)
        timed("compact", lambda: compact(store))
        measure(location, "packs", one)


if __name__ == "__main__":
    main()
