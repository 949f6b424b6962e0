"""Stores with measured networks of two models, whose names are hostile to drawings and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.fake_records import STARTED, FakeSweep, identifier, trial_record

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    'it\'s "a" & b',
    "abc\u202edef\x1b[31m",
    "نموذج-צמד",
    "a" * 300,
    "{{ 7 * 7 }}{% raw %}",
    "</style></script>]]>",
]
DEEP = "_big$x$_α\\beta"  # 8 layers
SIX = "模型/$small$_6"
TASKS = ("SST-2", "STS-B")
FULL = {(DEEP, "SST-2"): 90.0, (DEEP, "STS-B"): 80.0, (SIX, "SST-2"): 70.0, (SIX, "STS-B"): 60.0}
DEPTHS = {DEEP: 8, SIX: 6}


def put_profile(
    fake: FakeSweep,
    measure: str,
    values: Sequence[tuple[str, int, int | None, float | None]],
    row: dict[str, Any],
    *,
    trained: bool = True,
    against: str | None = None,
) -> str:
    """A profile of a cell's network; not `trained`: of its pre-trained model."""
    trial = row["trial_id"] if trained else None
    id_ = identifier("p", measure, row["model"], row["task"], trial, against)
    record = {
        **{key: row[key] for key in ("model", "depth", "task", "kept_layers")},
        "profile_id": id_,
        "measure": measure,
        "trial_id": trial,
        "against": against,
        "seed": row["seed"] if trained else None,
        "layers": [],
        "values": [
            dict(zip(("name", "layer", "other", "value"), item, strict=True)) for item in values
        ],
        "ended_at": STARTED,
    }
    fake.store.put("profiles", id_, [record])
    return id_


def whole_networks(fake: FakeSweep) -> None:
    """K=0 of both models on two tasks and seeds, with all that is measured of them."""
    for (model, task), score in FULL.items():
        depth = DEPTHS[model]
        for seed in (1, 2):
            row = fake.cell(k=0, score=score + seed, model=model, depth=depth, task=task, seed=seed)
            main, other = ("pearson", "accuracy") if task == "STS-B" else ("accuracy", "f1")
            gap = (model, task, seed) == (DEEP, "STS-B", 1)  # one layer of one run is not there
            probes: list[tuple[str, int, int | None, float | None]] = [
                (name, layer, None, value)
                for layer in range(depth + 1)
                for name, value in ((main, score / 200 + layer / 100 + seed / 50), (other, 0.01))
                if not (gap and layer == 3)
            ]
            if gap:
                probes.append((main, 3, None, None))
            put_profile(fake, "probes", probes, row)
            near = 1.0 if task == "SST-2" else 0.9
            similarity = [
                (name, layer, layer, near - step * layer - seed / 100)
                for layer in range(depth + 1)
                for name, step in (("sentence", 0.05), ("tokens", 0.02))
            ]
            put_profile(fake, "similarity", similarity, row)
            put_profile(fake, "cka", [("layer", 0, 0, None), ("layer", 1, 0, seed / 4)], row)
        put_profile(fake, "probes", [(main, 2, None, 0.5)], row, trained=False)


def pruned_networks(fake: FakeSweep) -> None:
    for task in TASKS:
        for seed in (1, 2):
            axes: dict[str, Any] = {"model": DEEP, "depth": 8, "task": task, "seed": seed}
            row = fake.cell(k=2, score=70 + 2 * seed, **axes)
            put_profile(fake, "probes", [("accuracy", 6, None, 0.4)], row)
            here = None if (task, seed) == ("STS-B", 2) else 50.0
            fake.cell(k=2, strategy="bottom", score=here, **axes)
            dropped = (3,) if task == "SST-2" else (3, 5)
            fake.cell(strategy="contribution", threshold=0.9, dropped=dropped, score=60.0, **axes)
            fake.cell(k=1, score=60.0, **{**axes, "model": SIX, "depth": 6})
        fake.profile([0.5, 0.6, 0.95, 0.9, 0.89, 0.7, 0.8, 0.85], model=DEEP, task=task)
    first_stage: dict[str, Any] = dict(fake.cells[0], trial_id=identifier("t", "no cell's"))
    put_profile(fake, "probes", [("accuracy", 1, None, 0.0)], first_stage)


def without_feed_forwards(fake: FakeSweep) -> None:
    for row in [row for row in fake.cells if row["model"] == SIX and row["k"] == 0]:
        changed: dict[str, Any] = {
            "feed_forward": "top 3",
            "cell": len(fake.cells),
            "trial_id": identifier("t", row["trial_id"], "top 3"),
        }
        fake.cells.append({**row, **changed})
        record = trial_record(fake.cells[-1], 40.0 + row["seed"], params_total=10_000_000)
        fake.store.put("trials", changed["trial_id"], [record])
        measured_without_feed_forwards(fake, fake.cells[-1], full=row["trial_id"])


def measured_without_feed_forwards(fake: FakeSweep, row: dict[str, Any], full: str) -> None:
    """Probes a tenth above the layer's; CKA with the full network, and with another."""
    metric = "pearson" if row["task"] == "STS-B" else "accuracy"
    put_profile(fake, "probes", [(metric, layer, None, layer / 10) for layer in range(7)], row)
    same = [("attention", layer, layer, layer / 10 + row["seed"] / 50) for layer in range(1, 7)]
    put_profile(
        fake, "cka", [*same, ("attention", 1, 2, 0.0), ("layer", 1, 1, 0.0)], row, against=full
    )
    other = identifier("t", "another")
    put_profile(fake, "cka", [("attention", 1, 1, 0.0)], row, against=other)


def measured_speeds(fake: FakeSweep) -> None:
    """Speeds of the deep model: all layers, top K=2, and a network that no cell asked for."""
    for kept, speedup in ((8, 1.0), (6, 1.3), (1, 6.0)):
        fake.speed(speedup, speedup, model=DEEP, depth=8, kept_layers=list(range(1, kept + 1)))
