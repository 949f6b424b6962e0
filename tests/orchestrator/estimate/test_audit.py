"""`lp-sweep plan --audit`: estimated against actual hours."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lp_sweep.orchestrator.estimate.audit import audit
from tests.support.fake_records import STARTED, FakeSweep
from tests.support.program import Done, sweep

TASKS = {"sst2": 13.0, "rte": 66.0}  # tokens of an example
SEEDS = range(6)


def done(fake: FakeSweep, task: str, k: int, seed: int, **changes: Any) -> None:
    """A trial whose seconds are as a device of one price would have them, more or less."""
    layers, tokens = 12 - k, 3000 * TASKS[task]
    chance = float(np.random.default_rng((len(task), k, seed)).normal(0, 0.1))
    seconds = (10 + 6e-14 * 3 * 6 * tokens * 7_000_000 * layers) * np.exp(chance)
    record = {
        "model_fingerprint": "m", "data_fingerprint": task, "max_length": 128,
        "train_tokens": round(tokens), "dev_tokens": round(872 * TASKS[task]),
        "seconds_total": float(seconds), "ended_at": STARTED + dt.timedelta(minutes=seed),
    }  # fmt: skip
    fake.cell(k=k, score=90.0, task=task, seed=seed, **record | changes)


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = FakeSweep(tmp_path / "store")
    for task in TASKS:
        for k in (0, 4, 8):
            for seed in SEEDS:
                done(fake, task, k, seed)
    fake.publish()
    return fake


def test_a_row_for_each_model_and_task_and_the_total(fake: FakeSweep) -> None:
    rows = audit(fake.store, "demo").table.long.to_pylist()
    assert [(row["model"], row["task"], row["trials"]) for row in rows] == [
        ("bert", "rte", 18),
        ("bert", "sst2", 18),
        ("all", "all", 36),
    ]
    records = fake.store.read_all("trials").rows
    assert rows[-1]["actual_hours"] == pytest.approx(
        sum(records["seconds_total"].to_pylist()) / 3600
    )
    for row in rows:
        assert row["ratio"] == pytest.approx(row["actual_hours"] / row["estimated_hours"])
        assert 0.8 < row["ratio"] < 1.25
        assert row["in_band"] is True
        assert row["low_hours"] < row["estimated_hours"] < row["high_hours"]


def test_no_trial_is_estimated_from_itself(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path / "store")
    done(fake, "rte", 0, 1, seconds_total=1e6)
    fake.publish()
    [alone, _] = audit(fake.store, "demo").table.long.to_pylist()
    assert alone["ratio"] > 100  # the rule of thumb knows nothing of it
    assert alone["in_band"] is False


def test_a_slow_night_is_out_of_the_band(fake: FakeSweep) -> None:
    night = FakeSweep(fake.store.location, "night")
    done(night, "sst2", 0, 100, seconds_total=5000.0)
    night.publish()
    rows = audit(fake.store, "night").table.long.to_pylist()
    assert rows[0]["ratio"] > 2
    assert [row["in_band"] for row in rows] == [False, False]
    assert rows[0]["trials"] == 1  # of the asked sweep alone


def test_what_says_nothing_is_left_out_and_counted(fake: FakeSweep) -> None:
    done(fake, "rte", 2, 50, resumed_from_step=10)
    done(fake, "rte", 2, 51, out_of_memory_retries=1)
    fake.publish()
    found = audit(fake.store, "demo").table
    assert found.long.to_pylist()[-1]["trials"] == 36
    assert any(note.startswith("Left out: 2 trials") for note in found.notes)


def test_as_a_command(fake: FakeSweep, tmp_path: Path) -> None:
    def said(name: str, *options: str) -> Done:
        return sweep("plan", "--audit", name, "--store", "store", *options, cwd=tmp_path)

    assert said("demo").stdout.startswith("Estimated against actual time of sweep demo")
    rows = json.loads(said("demo", "--json").stdout)
    assert [(row["task"], row["trials"]) for row in rows] == [
        ("rte", 18),
        ("sst2", 18),
        ("all", 36),
    ]
    assert "no sweep named 'nightly' in" in said("nightly").stderr
