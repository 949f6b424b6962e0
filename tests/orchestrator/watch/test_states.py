"""The progress of a store: what `status` says, once and with `--watch`, of each sweep and run, as
runs announce themselves; and what `show` says of a measurement."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.service.store import history, show_text
from lp_sweep.orchestrator.watch.states import states_text, sweep_states
from lp_sweep.storage.runs import Observer, Presence, Progress
from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact
from tests.support.fake_records import FakeSweep, store_with_scores


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


def test_which_sweeps(fake: FakeSweep) -> None:
    other = FakeSweep(fake.store.location, "other")
    other.cell(k=0)
    other.publish()
    told = [[s["sweep"] for s in sweep_states(fake.store, only).sweeps] for only in (None, "other")]
    assert told == [["demo", "other"], ["other"]]


def test_a_run_shows_what_it_does_in_words(fake: FakeSweep) -> None:
    presence = Presence(fake.store, "demo", lambda: Progress(3, 0, 2, 3, 3600.0, 1800.0, 7200.0))
    with presence.announced():
        pending, waits = fake.cells[3], fake.cells[5]
        for id_ in (pending["trial_id"], "p1-unknown", waits["profile_id"]):
            presence.claim([id_])
        presence.claim([fake.cells[0]["trial_id"]])  # has ended, which is announced 15 s later
        far = {"step": 310, "steps": 1200, "loss": 0.431, "seconds_left": 545.0}
        fake.store.put_text("underway", f"{pending['trial_id']}.json", json.dumps(far))
        states = sweep_states(fake.store)
    lines = states_text(states).splitlines()
    assert lines[2].startswith("running: sweep 'demo' on ")
    told = {line.partition(": ")[0].strip(): line.partition(": ")[2] for line in lines[3:6]}
    assert told.keys() == {
        "bert, layers 1-6 of 12, SST-2, seed 43",
        "measurement p1-unknown",
        "bert, measurement for contribution, SST-2",
    }
    long = told["bert, layers 1-6 of 12, SST-2, seed 43"]
    assert long.endswith(", step 310 of 1,200, loss 0.431, 9:05 left")
    [run] = states.plain()[0]["running"]
    assert run["underway"] == {pending["trial_id"]: far}
    assert run["work"].keys() == set(run["held"]) - {fake.cells[0]["trial_id"]}
    json.dumps(states.plain(), allow_nan=False)


# -- runs that announce themselves


@pytest.fixture
def scores(tmp_path: Path) -> FakeSweep:
    return store_with_scores(tmp_path)


def announcing(scores: FakeSweep, *counts: int, **more: Any) -> Presence:
    return Presence(scores.store, "demo", lambda: Progress(*counts, **more))


def test_a_run_says_when_it_ends(scores: FakeSweep) -> None:
    with announcing(scores, 3, 0, 9, slots=4, seconds_left=5400.0).announced():
        states = sweep_states(scores.store)
        line = states_text(states).splitlines()[2]
        [told] = states.plain()[0]["running"]
    assert "9 left, 0 running (trainings and measurements) on 4 slots, ends about 20" in line
    assert " UTC (in 1:29:5" in line or line.endswith(" UTC (in 1:30:00)")
    assert (told["slots"], told["seconds_left"]) == (4, 5400.0)
    ends = dt.datetime.fromisoformat(told["ends_at"])
    assert abs(ends - dt.datetime.now(dt.UTC) - dt.timedelta(hours=1.5)) < dt.timedelta(minutes=5)


def test_a_search_ends_at_most_so_late(scores: FakeSweep) -> None:
    with announcing(scores, 3, 0, 9, seconds_left=5400.0, high_seconds=5400.0).announced():
        assert "(in at most 1:" in states_text(sweep_states(scores.store)).splitlines()[2]

    # one that can't say yet
    with announcing(scores, 0, 0, 9).announced():
        states = sweep_states(scores.store)
    line = states_text(states).splitlines()[2]
    assert line.endswith("0 done, 9 left, 0 running (trainings and measurements)")
    assert states.plain()[0]["running"][0]["ends_at"] is None


@pytest.mark.parametrize(
    ("more", "runs"),
    [
        ({"mood": "good"}, 1),  # of a later version
        ({"pid": 1.5}, 0),
    ],
)
def test_a_file_that_no_run_of_ours_wrote_is_no_run(
    scores: FakeSweep, more: dict[str, Any], runs: int
) -> None:
    with announcing(scores, 0, 0, 9).announced():
        [(name, text)] = scores.store.texts("runs").items()
        scores.store.put_text("runs", name, json.dumps(json.loads(text) | more))
        assert len(Observer(scores.store).living()) == runs


def test_the_runs_of_this_machine_are_known(scores: FakeSweep) -> None:
    mine, other = (announcing(scores, 0, 0, 9, 2) for _ in range(2))
    with mine.announced():
        assert mine.beside() == []
        with other.announced():
            assert [run.slots for run in mine.beside()] == [2]
            for name, text in scores.store.texts("runs").items():
                elsewhere = json.loads(text) | {"machine": "another boot"}
                scores.store.put_text("runs", name, json.dumps(elsewhere))
            assert (len(mine.others()), mine.beside()) == (1, [])


def test_what_is_held_says_since_when(scores: FakeSweep) -> None:
    presence = announcing(scores, 0, 0, 2)
    with presence.announced():
        presence.claim(["t1-b"])
        presence.claim(["t1-a"])
        [run] = Observer(scores.store).living()
        presence.release(["t1-b"])
        presence.claim(["t1-c"])
        [later] = Observer(scores.store).living()
    assert ([*run.held], [*later.held]) == (["t1-a", "t1-b"], ["t1-a", "t1-c"])
    assert dt.datetime.fromisoformat(run.held["t1-a"]).tzinfo
    assert later.held["t1-a"] == run.held["t1-a"]


# -- `lp-sweep show` of a profile: its numbers as tables that a person reads

TRIAL, OTHER, PROFILE = "t1-00000000000000000001", "t1-00000000000000000002", "p1-01"


def value(name: str, layer: int, number: float | None, other: int | None = None) -> dict[str, Any]:
    return {"name": name, "layer": layer, "other": other, "value": number}


def shown(folder: Path, **row: Any) -> str:
    """What `show` prints below the fields that a trial has as well."""
    store = Store(folder / "store", create=True)
    plain = {"profile_id": PROFILE, "model": "bert", "task": "rte", "dev_examples": 277}
    store.put("profiles", PROFILE, [plain | row])
    text = show_text(history(store, PROFILE))
    assert "values  " not in text
    assert "layers  " not in text.partition("\n\n")[0].replace("kept_layers", "")
    return text.partition("\n\n")[2]


def test_what_a_strategy_chooses_by(tmp_path: Path) -> None:
    layers = [{"layer": 1, "value": 0.875}, {"layer": 2, "value": 0.51234}]
    assert shown(tmp_path, measure="block_influence", layers=layers).splitlines() == [
        "block-influence of bert, pre-trained, on 277 dev rows of rte",
        "",
        "layer  block-influence",
        "-----  ---------------",
        "    1            0.875",
        "    2           0.5123",
    ]


def test_the_measurement_of_a_trained_network(tmp_path: Path) -> None:
    values = [value("accuracy", 0, 0.5), value("f1", 0, None), value("accuracy", 3, 0.625)]
    text = shown(tmp_path, measure="probes", trial_id=TRIAL, values=[*values, value("f1", 3, 1.0)])
    assert text.splitlines() == [
        f"probes of the network of {TRIAL}, on 277 dev rows of rte",
        "",
        "layer  accuracy    f1",
        "-----  --------  ----",
        "    0       0.5  NULL",
        "    3     0.625   1.0",
    ]


def test_a_matrix(tmp_path: Path) -> None:
    values = [value("layer", i, i / 8, j) for i in (0, 4) for j in (0, 1, 2)]
    text = shown(tmp_path, measure="cka", trial_id=TRIAL, against=OTHER, values=values)
    assert text.splitlines() == [
        f"cka of the network of {TRIAL} (rows) with that of {OTHER} (columns), on 277 dev rows of "
        "rte",
        "",
        "layer:",
        "layer    0    1    2",
        "-----  ---  ---  ---",
        "    0  0.0  0.0  0.0",
        "    4  0.5  0.5  0.5",
    ]


@pytest.mark.parametrize("values", [None, [value("a\x1b", 1, 0.5)], [{}]])
def test_whatever_a_profile_holds(tmp_path: Path, values: Any) -> None:
    text = shown(tmp_path, measure="probes", layers=None, values=values)
    assert "\x1b" not in text
    assert "values" in history(Store(tmp_path / "store"), PROFILE).plain()["record"]
