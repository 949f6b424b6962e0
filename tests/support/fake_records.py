"""Plausible records, written with the real Store: what a sweep leaves behind, without training.

fake = FakeSweep(tmp_path)
fake.cell(k=6, score=90.25)                     # done
fake.cell(k=8, state="failed")                  # an attempt and no record
fake.cell(strategy="contribution", threshold=0.9, state="deferred")
catalog = open_views(fake.publish())
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from lp_sweep.storage import parquet
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.procedures import Procedure
from lp_sweep.trials.spec.select import STRATEGIES
from tests.support.sweepfiles import make_inputs

State = Literal["done", "failed", "deferred", "pending"]
STARTED = dt.datetime(2026, 1, 5, 9, 30, tzinfo=dt.UTC)
AXES = {
    **{"model": "bert", "depth": 12, "procedure": "direct", "strategy": "top", "k": None},
    **{"threshold": None, "task": "SST-2", "seed": 42, "setup": None},
}
FULL_SPEED = 100.0  # train examples a second at full depth


def identifier(prefix: str, *parts: object) -> str:
    return f"{prefix}1-{hashlib.sha256(repr(parts).encode()).hexdigest()[:20]}"


class FakeSweep:
    """Collects the cells of one sweep and writes their records as they come."""

    def __init__(self, root: Path | str, name: str = "demo") -> None:
        self.store = Store(root, create=True)
        self.name = name
        self.cells: list[dict[str, Any]] = []

    def cell(
        self,
        *,
        score: float | None = None,
        state: State | None = None,
        dropped: Iterable[int] | None = None,
        **columns: Any,
    ) -> dict[str, Any]:
        """Add a cell: done with `score` (points), or in another `state`. Returns its row. `columns`
        of the cell, and of its record if it is done."""
        state = state or ("pending" if score is None else "done")
        axes = {name: columns.pop(name, usual) for name, usual in AXES.items()}
        depth, k = axes["depth"], axes["k"]
        if dropped is None and k is not None:
            dropped = STRATEGIES[axes["strategy"]].dropped(depth, k)
        gone = None if dropped is None else sorted(dropped)
        kept = None if gone is None else [n for n in range(1, depth + 1) if n not in gone]
        # a full network is the same of each procedure, unless a network of its own taught it
        training = Procedure.parse(axes["procedure"])
        if kept and len(kept) == depth and not training.teacher:
            training = training._replace(distill=None)
        task = (axes["task"], axes["seed"])
        row = {
            **{"sweep": self.name, "cell": len(self.cells), **axes},
            **Procedure.parse(axes["procedure"]).axes,
            **{"kept_layers": kept, "dropped_layers": gone, "trial_id": None, "profile_id": None},
        }
        if kept:
            row["trial_id"] = identifier("t", axes["model"], training.label, kept, *task)
        if axes["threshold"] is not None:
            row["profile_id"] = identifier("p", axes["model"], axes["task"])
        if spec := columns.get("spec"):
            row["trial_id"] = f"t1-{content_hash_of(spec)}"
        self.cells.append(row)
        if state == "done":
            self.store.write(f"predictions/{row['trial_id']}.parquet", no_predictions())
            self.store.put("trials", row["trial_id"], [trial_record(row, score, **columns)])
        if state == "failed":
            self.failure(row["trial_id"] or row["profile_id"], row)
        return row

    def curve(self, scores: dict[int, float], **axes: Any) -> None:
        """One done cell per K."""
        for k, score in scores.items():
            self.cell(k=k, score=score, **axes)

    def failure(
        self,
        id_: str,
        row: dict[str, Any],
        error_type: str = "out_of_memory",
        final: bool | None = None,  # as in a file of before the column
    ) -> None:
        attempt = f"{id_}.{len(self.store.names('attempts')):08d}"
        record = {
            **{name: row[name] for name in ("model", "task", "seed", "kept_layers")},
            **{"attempt_id": attempt, "trial_id": id_, "error_type": error_type, "final": final},
            "message": "the device has no room for a batch of 32",
            "traceback": "Traceback (most recent call last):\n  ...",
            "host": "node-1",
            "ended_at": STARTED,
        }
        self.store.put("attempts", attempt, [record])

    def profile(self, values: list[float], model: str = "bert", task: str = "SST-2") -> str:
        id_ = identifier("p", model, task)
        layers = [{"layer": i, "value": value} for i, value in enumerate(values, start=1)]
        row = {
            "profile_id": id_,
            "measure": "contribution",
            "model": model,
            "depth": len(values),
            "task": task,
            "layers": layers,
            "dev_examples": 872,
            "ended_at": STARTED,
        }
        self.store.put("profiles", id_, [row])
        return id_

    def speed(
        self,
        finetune: float,
        inference: float,
        *,
        width: float = 0.02,
        batches: Iterable[int] = (32,),
        **columns: Any,
    ) -> str:
        """The speed of a network, times its model's; `width` is of the quartiles. For what must
        match a cell: `model`, `kept_layers`, `removed_feed_forwards`."""
        row = {
            "measure": "speed",
            "model": "bert",
            "depth": 12,
            "kept_layers": [1, 2, 3, 4, 5, 6],
            "removed_feed_forwards": [],
            "second_norm": "keep",
            "precision_used": "fp32",
            "max_length": 128,
            "device_type": "cuda",
            "device_name": "H200",
            "threads": 16,
            "others_busy_cores": 0.1,
            "ended_at": STARTED,
            **columns,
        }
        id_ = identifier("p", *row.values())
        speedups = {"finetune": finetune, "inference": inference}
        row |= {"profile_id": id_, "model_fingerprint": fingerprint(row["model"])}
        row["timings"] = [
            timing(quantity, batch, speedup, width)
            for batch in batches
            for quantity, speedup in speedups.items()
        ]
        self.store.put("profiles", id_, [row])
        return id_

    def predictions(self, trial_id: str, right: Iterable[bool]) -> None:
        rows = [
            {
                "trial_id": trial_id,
                "split": "validation",
                "example": index,
                "label": float(index % 2),
                "prediction": float(index % 2 if good else 1 - index % 2),
                "scores": [0.25, -0.25],
            }
            for index, good in enumerate(right)
        ]
        self.store.put("predictions", trial_id, rows)

    def publish(self) -> Store:
        self.store.put("sweeps", self.name, self.cells)
        return self.store


@functools.cache
def no_predictions() -> bytes:
    """A record's file, written again and again."""
    return parquet.encode("predictions", [])


def content_hash_of(spec: str) -> str:
    """The digits of a trial with this text as its spec."""
    payload = f'{{"identity":1,"kind":"TrialSpec","spec":{spec}}}'
    return hashlib.sha256(payload.encode()).hexdigest()[:20]


def fingerprint(model: str) -> str:
    return f"sha256:{hashlib.sha256(model.encode()).hexdigest()}"


def timing(quantity: str, batch: int, speedup: float, width: float) -> dict[str, Any]:
    """One of a speed's; the full network takes 100 ms."""
    return {
        "quantity": quantity,
        "batch": batch,
        "full_ms": 100.0,
        "pruned_ms": 100 / speedup,
        "full_wall_ms": 110.0,
        "pruned_wall_ms": 110 / speedup,
        "speedup": speedup,
        "speedup_q25": speedup * (1 - width / 2),
        "speedup_q75": speedup * (1 + width / 2),
        "pairs": 20,
        "rounds": 1,
    }


def trial_record(row: dict[str, Any], score: float | None, **changes: Any) -> dict[str, Any]:
    """A row of TRIALS for a cell; `changes` replace columns."""
    share = None if score is None else score / 100
    layers = len(row["kept_layers"])
    speed = FULL_SPEED * row["depth"] / layers
    metric = "pearson" if row["task"] == "STS-B" else "accuracy"
    record = {
        **{key: row[key] for key in ("trial_id", "model", "depth", "kept_layers", "procedure")},
        **{key: row[key] for key in ("dropped_layers", "task", "seed")},
        "k": row["depth"] - layers,
        "model_fingerprint": fingerprint(row["model"]),
        "learning_rate": 2e-5,
        "batch_size": 32,
        "epochs": 3,
        "precision_used": "fp32",
        "metric": metric,
        "last": share,
        "best": share,
        "best_epoch": 3,
        "majority": None if metric == "pearson" else 0.5,
        "epoch_metrics": [
            {"epoch": epoch, "split": "validation", "metric": metric, "value": share}
            for epoch in (1, 2, 3)
        ],
        "train_losses": [0.6, 0.4, 0.3],
        "train_examples": 3000,
        "dev_examples": 872,
        "params_total": 23_000_000 + 7_000_000 * layers,
        "params_encoder": 7_000_000 * layers,
        "params_embedding": 23_000_000,
        "seconds_train": 9000 / speed,
        "seconds_total": 10_000 / speed,
        "train_examples_per_second": speed,
        "dev_examples_per_second": 3 * speed,
        "peak_memory_bytes": 2_000_000_000,
        "host": "node-1",
        "device_type": "cuda",
        "device_name": "H200",
        "started_at": STARTED,
        "ended_at": STARTED + dt.timedelta(seconds=10_000 / speed),
        "versions": {"lp_sweep": "0.1.0", "torch": "2.13.0"},
    }
    return {**record, **changes}


def store_with_scores(folder: Path) -> FakeSweep:
    fake = FakeSweep(folder / "store")
    fake.curve({0: 90.0, 6: 88.0})
    fake.cell(k=8, state="failed")
    fake.publish()
    return fake


def command_line_world(folder: Path) -> Path:
    """A sweep file with its inputs, and a store with some records."""
    make_inputs(folder)
    fake = FakeSweep(folder / "store")
    fake.curve({0: 90.0, 4: 89.5, 8: 80.0})
    fake.cell(k=10, state="failed")
    fake.cell(k=11, state="pending")
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    fake.publish()
    return folder
