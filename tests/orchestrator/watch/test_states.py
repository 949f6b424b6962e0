"""The progress of a store: what `status` says, once and with `--watch`, of each sweep and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lp_sweep.orchestrator.watch.states import states_text, sweep_states
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.packs import compact
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0, 6: 88.0})
    fake.cell(k=0, score=90.0, strategy="bottom")  # the same trial
    fake.cell(k=6, seed=43)
    fake.cell(k=8, state="failed")
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    fake.publish()
    return fake


def test_cells_and_trials_by_state(location: str) -> None:
    """In a folder and in a bucket."""
    fake = FakeSweep(location)
    fake.curve({0: 90.0, 6: 88.0})
    fake.cell(k=0, score=90.0, strategy="bottom")
    fake.cell(k=8, state="failed")
    fake.cell(k=9)
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    store = fake.publish()
    [told] = sweep_states(store).sweeps
    hours = sum(store.read_all("trials").rows["seconds_total"].to_pylist()) / 3600
    assert told == {
        "sweep": "demo", "cells": 6, "trials": 4,
        "trials_done": 2, "trials_failed": 1, "trials_pending": 1,
        "cells_done": 3, "cells_failed": 1, "cells_pending": 1, "cells_deferred": 1,
        "cells_impossible": 0, "cells_not_needed": 0,
        "failures": {"out_of_memory": 1}, "slot_hours": pytest.approx(hours, abs=1e-4),
    }  # fmt: skip


def test_only_readable_records_are_done_however_they_are_stored(fake: FakeSweep) -> None:
    before = sweep_states(fake.store).sweeps
    path = Path(fake.store.location, "trials", f"{fake.cells[0]['trial_id']}.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    states = sweep_states(fake.store)
    assert states.sweeps[0]["trials_done"] == 1
    assert path.name in states.unreadable[0].sentence
    path.write_bytes(whole)
    compact(fake.store)
    assert sweep_states(fake.store).sweeps == before
    fake.store.delete("sweeps", "demo.parquet")
    fake.store.put_text("sweeps", "demo.parquet", "PAR1")
    assert sweep_states(fake.store).hidden == ["demo"]


def test_which_sweeps(tmp_path: Path, fake: FakeSweep) -> None:
    other = FakeSweep(fake.store.location, "other")
    other.cell(k=0)
    other.publish()
    told = [[s["sweep"] for s in sweep_states(fake.store, only).sweeps] for only in (None, "other")]
    assert told == [["demo", "other"], ["other"]]
    with pytest.raises(SpecError, match=r"no sweep named 'nope' in .*It has: demo, other"):
        sweep_states(fake.store, "nope")
    empty = sweep_states(Store(tmp_path / "empty", create=True))
    assert (empty.sweeps, states_text(empty)) == ([], "no sweep in this store yet")


def test_a_run_shows_what_it_does_in_words(fake: FakeSweep) -> None:
    presence = Presence(fake.store, "demo", lambda: Progress(3, 0, 2, 3, 3600.0, 1800.0, 7200.0))
    with presence.announced():
        pending, waits = fake.cells[3], fake.cells[5]
        for id_ in (pending["trial_id"], "p1-unknown", waits["profile_id"]):
            presence.claim(id_)
        presence.claim(fake.cells[0]["trial_id"])  # has ended, which is announced 15 s later
        far = {"step": 310, "steps": 1200, "loss": 0.431, "seconds_left": 545.0}
        fake.store.put_text("underway", f"{pending['trial_id']}.json", json.dumps(far))
        states = sweep_states(fake.store)
    lines = states_text(states).splitlines()
    assert lines[2].startswith("running: sweep 'demo' on ")
    told = {line.partition(": ")[0].strip(): line.partition(": ")[2] for line in lines[3:6]}
    assert told.keys() == {
        "bert, layers 1-6 of 12, SST-2, seed 43",
        "measurement p1-unknown",
        "bert, profile for contribution, SST-2",
    }
    long = told["bert, layers 1-6 of 12, SST-2, seed 43"]
    assert long.endswith(", step 310 of 1,200, loss 0.431, 9:05 left")
    [run] = states.plain()[0]["running"]
    assert run["underway"] == {pending["trial_id"]: far}
    assert run["work"].keys() == set(run["held"]) - {fake.cells[0]["trial_id"]}
    json.dumps(states.plain(), allow_nan=False)
