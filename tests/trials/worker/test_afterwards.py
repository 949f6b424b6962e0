"""Uses of a network besides its record: kept for other trials, measured, trained again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage import networks
from lp_sweep.storage.schema import ATTEMPTS, PROFILES
from lp_sweep.storage.spool import flush
from lp_sweep.storage.store import Store
from lp_sweep.trials.measures import registry as measuring
from lp_sweep.trials.worker import trial as trialling
from tests.support.plain_jobs import done, execute
from tests.support.staging import Job, made, measurement, staged

QUICK = {"limit_train": 16}


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One more entry with every training."""
    found: list[int] = []
    real = trialling.finetune

    def spy(*args: Any) -> Any:
        found.append(1)
        return real(*args)

    monkeypatch.setattr(trialling, "finetune", spy)
    return found


def stored_files(store: Store, job: Job) -> dict[str, tuple[bytes, int]]:
    """Content and time of writing of a trial's record and predictions."""
    root = Path(store.location)
    files = {table: root / table / f"{job['id']}.parquet" for table in ("trials", "predictions")}
    return {table: (path.read_bytes(), path.stat().st_mtime_ns) for table, path in files.items()}


def broken(subject: Any, spec: Any) -> Any:
    raise RuntimeError("a measurement of the test's is broken")


@pytest.mark.parametrize("mode", ["none", "all"])
def test_a_recorded_trial_is_trained_again_for_its_network_alone(
    world: Path, store: Store, trainings: list[int], mode: str
) -> None:
    job = made(world, recipe=QUICK)
    first = execute(job, store.location)
    before = stored_files(store, job)
    needed = {**job, "network": True, "keep": mode}
    with pytest.warns(UserWarning, match=f"{job['id']} is trained again"):
        assert execute(needed, store.location) == first
    assert len(trainings) == 2
    assert stored_files(store, job) == before
    assert networks.kept_by(store, job["id"]) == ("all" if mode == "all" else "need")
    assert execute(needed, store.location) == first
    assert len(trainings) == 2
    assert stored_files(store, job) == before


def test_a_network_that_is_needed_is_no_best_any_more(
    world: Path, store: Store, trainings: list[int]
) -> None:
    job = made(world, recipe=QUICK)
    execute({**job, "keep": "best"}, store.location)
    assert networks.kept_by(store, job["id"]) == "best"
    record = done(store, {**job, "keep": "best", "network": True})
    assert networks.kept_by(store, job["id"]) == "need, best"
    assert len(trainings) == 1
    networks.release(store, record, keep_best=False)  # a run that keeps none gives it back
    assert networks.kept_by(store, job["id"]) == "best"


def test_a_kept_network_is_measured_without_training(
    world: Path, store: Store, trainings: list[int]
) -> None:
    job = {**made(world, recipe=QUICK, kept_layers=(2, 4)), "keep": "all"}
    first = execute(job, store.location)
    before = stored_files(store, job)
    wanted = [measurement(job, "similarity"), measurement(job, "contribution")]
    assert execute({**job, "measures": wanted}, store.location) == first
    assert len(trainings) == 1
    assert stored_files(store, job) == before
    rows = {row["measure"]: row for row in store.read_all("profiles").rows.to_pylist()}
    assert rows.keys() == {"similarity", "contribution"}
    row = rows["similarity"]
    assert set(row) == set(PROFILES.names)
    assert (row["profile_id"], row["trial_id"]) == (wanted[0]["id"], job["id"])
    assert (row["seed"], row["kept_layers"], row["against"]) == (1, [2, 4], None)
    assert row["seconds_total"] > 0


def test_a_network_is_used_once_all_its_files_are_seen(
    world: Path, store: Store, trainings: list[int], tmp_path: Path
) -> None:
    """A network mount may show the file that was written last before the others."""
    job = {**made(world, recipe=QUICK), "keep": "all", "store_patience": 15.0}
    execute(job, store.location)
    weights = Path(store.location, "weights", job["id"], "model.safetensors")
    weights.rename(tmp_path / "unseen")
    seen = threading.Timer(0.5, (tmp_path / "unseen").rename, [weights])
    seen.start()
    told = execute({**job, "measures": [measurement(job, "similarity")]}, store.location)
    assert (told["status"], told.get("measures_failed")) == ("done", None)
    assert len(trainings) == 1


def test_measured_at_once_or_later_is_the_same(world: Path, tmp_path: Path) -> None:
    job = {**made(world, recipe=QUICK), "keep": "all"}
    names = ("probes", "similarity", "cka")
    wanted = [measurement(job, name) for name in names]
    found = []
    for number, rounds in enumerate(([wanted], [[], wanted])):
        store = Store(tmp_path / str(number), create=True)
        for measures in rounds:
            execute({**job, "measures": measures}, store.location)
        rows = store.read_all("profiles").rows.to_pylist()
        found.append({row["measure"]: (row["layers"], row["values"]) for row in rows})
    assert found[0] == found[1]
    assert found[0].keys() == set(names)


def test_a_network_is_compared_with_that_of_another_trial(world: Path, store: Store) -> None:
    first, second = staged(world, recipe=QUICK)
    item = measurement(second, "cka", against=first["id"])
    done(store, first, {**second, "measures": [item]})
    row = store.read("profiles", item["id"])[0]
    assert row["against"] == first["id"]
    states = {
        (value["layer"], value["other"]) for value in row["values"] if value["name"] == "layer"
    }
    assert states == {(layer, other) for layer in (0, 1, 2) for other in range(5)}


# -- a measurement that fails


def test_a_failed_measurement_is_an_attempt_of_its_own(
    world: Path, store: Store, monkeypatch: pytest.MonkeyPatch, trainings: list[int]
) -> None:
    job = {**made(world, recipe=QUICK), "keep": "all"}
    fails, works = measurement(job, "probes"), measurement(job, "similarity")
    both = {**job, "measures": [fails, works]}
    with monkeypatch.context() as patch:
        patch.setitem(
            measuring.MEASURES, "probes", replace(measuring.MEASURES["probes"], run=broken)
        )
        answer = execute(both, store.location)
    assert (answer["status"], answer["measures_failed"]) == ("done", {fails["id"]: "bug"})
    assert store.names("trials") == {job["id"]}
    assert store.names("profiles") == {works["id"]}
    (row,) = store.read_all("attempts").rows.to_pylist()
    assert set(row) == set(ATTEMPTS.names)
    assert (row["trial_id"], row["error_type"], row["final"]) == (fails["id"], "bug", True)
    assert row["attempt_id"].startswith(f"{fails['id']}.")
    assert row["message"] == "a measurement of the test's is broken"

    before = stored_files(store, job)
    answer = execute(both, store.location)
    assert "measures_failed" not in answer
    assert store.names("profiles") == {fails["id"], works["id"]}
    assert len(trainings) == 1
    assert stored_files(store, job) == before
    assert len(store.names("attempts")) == 1


def test_what_was_measured_while_the_store_was_away_waits(
    world: Path, store: Store, tmp_path: Path
) -> None:
    job = {**made(world, recipe=QUICK), "keep": "all", "cache_dir": str(tmp_path / "cache")}
    item = measurement(job, "contribution")
    place, away = Path(store.location), tmp_path / "away"
    place.rename(away)
    assert execute({**job, "measures": [item]}, store.location)["status"] == "spooled"
    away.rename(place)
    assert flush(store, tmp_path / "cache") == (4, 0)  # with the predictions and the network
    assert store.names("profiles") == {item["id"]}
    assert store.names("trials") == {job["id"]}
    assert networks.has_network(store, job["id"])
    assert not list(tmp_path.glob("cache/spool/*/weights/*"))
