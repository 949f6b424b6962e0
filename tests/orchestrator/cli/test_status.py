"""`lp-sweep status` shows the active runs of a store, as they announce themselves; `show`, what a
profile measured."""

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
from tests.support.fake_records import FakeSweep, store_with_scores


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    return store_with_scores(tmp_path)


def announcing(fake: FakeSweep, *counts: int, **more: Any) -> Presence:
    return Presence(fake.store, "demo", lambda: Progress(*counts, **more))


def test_a_run_says_when_it_ends(fake: FakeSweep) -> None:
    with announcing(fake, 3, 0, 9, slots=4, seconds_left=5400.0).announced():
        states = sweep_states(fake.store)
        line = states_text(states).splitlines()[2]
        [told] = states.plain()[0]["running"]
    assert "3 done, 9 left, 0 running (trials and measurements) on 4 slots, ends about 20" in line
    assert " UTC (in 1:29:5" in line or line.endswith(" UTC (in 1:30:00)")
    assert (told["slots"], told["seconds_left"]) == (4, 5400.0)
    ends = dt.datetime.fromisoformat(told["ends_at"])
    assert abs(ends - dt.datetime.now(dt.UTC) - dt.timedelta(hours=1.5)) < dt.timedelta(minutes=5)

    # one that can't say yet
    with announcing(fake, 0, 0, 9).announced():
        states = sweep_states(fake.store)
    line = states_text(states).splitlines()[2]
    assert line.endswith("0 done, 9 left, 0 running (trials and measurements)")
    assert states.plain()[0]["running"][0]["ends_at"] is None


@pytest.mark.parametrize(
    ("more", "runs"),
    [
        ({"mood": "good"}, 1),  # of a later version
        ({"slots": 10**400}, 0),
        ({"done": -1}, 0),
        ({"pid": 1.5}, 0),
    ],
)
def test_a_file_that_no_run_of_ours_wrote_is_no_run(
    fake: FakeSweep, more: dict[str, Any], runs: int
) -> None:
    with announcing(fake, 0, 0, 9).announced():
        [(name, text)] = fake.store.texts("runs").items()
        fake.store.put_text("runs", name, json.dumps(json.loads(text) | more))
        assert len(Observer(fake.store).living()) == runs


def test_the_runs_of_this_machine_are_known(fake: FakeSweep) -> None:
    mine, other = (announcing(fake, 0, 0, 9, 2) for _ in range(2))
    with mine.announced():
        assert mine.beside() == []
        with other.announced():
            assert [run.slots for run in mine.beside()] == [2]
            for name, text in fake.store.texts("runs").items():
                elsewhere = json.loads(text) | {"machine": "another boot"}
                fake.store.put_text("runs", name, json.dumps(elsewhere))
            assert (len(mine.others()), mine.beside()) == (1, [])


def test_what_is_held_says_since_when(fake: FakeSweep) -> None:
    presence = announcing(fake, 0, 0, 2)
    with presence.announced():
        presence.claim("t1-b")
        presence.claim("t1-a")
        [run] = Observer(fake.store).living()
        presence.release("t1-b")
        presence.claim("t1-c")
        [later] = Observer(fake.store).living()
    assert (run.held, later.held) == (("t1-a", "t1-b"), ("t1-a", "t1-c"))
    assert len(run.held_since) == 2
    assert dt.datetime.fromisoformat(run.held_since[0]).tzinfo
    assert later.held_since[0] == run.held_since[0]


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
