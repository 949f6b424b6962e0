"""What a store has lost, what is in the place of its folders, and records that can't be true: each
is named by what reads the store, and done again by the next run."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.runs import Presence, Progress
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact, examine, lost, put_pack, set_aside
from lp_sweep.trials.spec.identity import canonical_json, trial_id
from lp_sweep.trials.spec.specs import TaskDefinition, TrialSpec
from tests.support.fake_records import FakeSweep, command_line_world
from tests.support.program import sweep
from tests.support.stores import cell

READING = (
    ("doctor",),
    ("status",),
    ("status", "--json"),
    ("table", "min-layers"),
    ("table", "tasks", "--json"),
    ("query", "FROM cells"),
    ("export", "--best", "--task", "SST-2", "--out", "network"),
    ("plan", "sweep.yaml", "--data-dir", "glue"),
    ("report", "--out", "page.html"),
)


def told_by(verb: tuple[str, ...], folder: Path) -> tuple[int, str]:
    done = sweep(*verb, "--store", "store", cwd=folder)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return command_line_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Path:
    """A sweep file and a store that nothing is wrong with."""
    return Path(shutil.copytree(world, tmp_path / "world"))


# -- lost


@pytest.mark.parametrize("table", ["trials", "predictions", "sweeps"])
def test_every_reader_names_what_is_gone(folder: Path, table: str) -> None:
    place = folder / "store" / table
    assert told_by(("doctor",), folder)[0] == 0
    shutil.rmtree(place)
    if table == "predictions":  # emptied only
        place.mkdir()
    for verb in READING[:5] if table == "trials" else READING[:2]:
        code, text = told_by(verb, folder)
        assert f"{place}: " in text, verb
        assert "backup" in text
        if verb[0] != "export":
            assert code == (verb[0] == "doctor"), verb
    assert "no sweep in this store" not in text


def test_every_reader_names_what_can_not_be_true(folder: Path) -> None:
    store = Store(folder / "store")
    first = min(store.names("trials"))
    store.put("trials", first, [store.read("trials", first)[0] | {"kept_layers": None}])
    for verb in READING[:-1]:  # a report takes seconds, and says what its tables say
        code, text = told_by(verb, folder)
        assert f"{first}.parquet" in text, verb
        assert "kept_layers" in text
        assert code == (verb[0] == "doctor") or verb[0] == "export"


def test_what_is_lost(location: str) -> None:
    fake = FakeSweep(location)
    fake.curve({0: 90.0, 6: 88.0})
    profile = fake.profile([0.5] * 12)
    fake.cell(strategy="contribution", threshold=0.9, dropped=[1], score=80.0)
    store = fake.publish()
    store.put_text("sweeps", "demo.yaml", "name: demo\n")
    first, second, _ = (cell["trial_id"] for cell in fake.cells)
    assert lost(store) == []
    store.delete("profiles", f"{profile}.parquet")
    store.delete("predictions", f"{second}.parquet")
    store.delete("trials", f"{first}.parquet")
    told = {item.location: item.reason for item in lost(store)}
    for table, name in (("trials", first), ("predictions", second), ("profiles", profile)):
        assert name in told.pop(store.files.where(table))
    assert not told
    store.delete("sweeps", "demo.parquet")
    named = [item.location for item in lost(store)]
    assert store.files.where("sweeps") in named
    assert store.files.where("sweeps/demo.parquet") in named


def test_a_trial_that_is_being_recorded_is_not_lost(store: Store) -> None:
    fake = FakeSweep(store.location)
    trial = fake.cell(k=6)["trial_id"]
    fake.publish()
    store.put("predictions", trial, [])
    assert len(lost(store)) == 1
    presence = Presence(store, "demo", lambda: Progress(0, 0, 1))
    with presence.announced():
        presence.claim([trial])
        presence._write()
        assert lost(store) == []


def test_a_measurement_that_is_not_made_yet_is_not_lost(store: Store) -> None:
    fake = FakeSweep(store.location)
    fake.profile([0.5] * 12)
    fake.cell(strategy="block-influence", dropped=[])
    profile = fake.cells[-1]["profile_id"] = "p1-00000000000000000000"
    fake.publish()
    assert lost(store) == []
    fake.cell(strategy="block-influence", dropped=[1])
    fake.cells[-1]["profile_id"] = profile
    fake.publish()
    assert profile in lost(store)[0].reason


def test_a_copy_without_empty_folders_is_whole(folder: Path) -> None:
    for table in ("earlier", "teacher_logits"):
        (folder / "store" / table).rmdir()
    assert told_by(("doctor",), folder)[0] == 0


# -- in the place of a folder


@pytest.mark.parametrize(("table", "linked"), [("trials", False), ("predictions", True)])
def test_what_is_no_folder_is_named_at_once(folder: Path, table: str, linked: bool) -> None:
    place = folder / "store" / table
    shutil.rmtree(place)
    if linked:
        place.symlink_to("/nowhere/at/all")
    else:
        place.write_text("")
    begun = time.monotonic()
    verbs = [*READING[::2], ("run", "sweep.yaml", "--data-dir", "glue", "--inline")]
    for verb in verbs if linked else verbs[:1]:
        code, text = told_by(verb, folder)
        assert code == 4, verb
        assert f"{place} is not a folder" in text
    assert time.monotonic() - begun < 60, "it is not waited for"
    for refused in (folder / "store", place) if linked else (folder / "store",):
        with pytest.raises(StoreError, match=f"{table} is not a folder"):
            Store(refused, create=refused != place, patience=600)


# -- what can't be true


def spec_of(seed: int, kept: tuple[int, ...] = (1, 2)) -> TrialSpec:
    return TrialSpec(
        model_fingerprint="sha256:m",
        kept_layers=kept,
        task=TaskDefinition(text_columns=("sentence",)),
        data_fingerprint="sha256:d",
        seed=seed,
    )


def row_of(seed: int, **changes: Any) -> dict[str, Any]:
    spec = spec_of(seed)
    return {
        "trial_id": trial_id(spec),
        "identity_version": 1,
        "spec": canonical_json(spec),
        "model": "bert",
        "model_fingerprint": spec.model_fingerprint,
        "data_fingerprint": spec.data_fingerprint,
        "kept_layers": spec.kept_layers,
        "depth": 4,
        "seed": seed,
        "task": "any",
        "metric": "accuracy",
        "last": 0.5,
        **changes,
    }


def put(store: Store, *rows: dict[str, Any]) -> str:
    name = str(rows[0]["trial_id"])
    store.put("predictions", name, [])
    store.put("trials", name, rows)
    return name


def pack_of(store: Store, *rows: dict[str, Any]) -> str:
    before = store.packs("trials")
    for row in rows:
        store.put("predictions", str(row["trial_id"]), [])
    put_pack(store, "trials", pa.Table.from_pylist(list(rows), TABLES["trials"]))
    (path,) = {*store.packs("trials")} - {*before}
    return path


SENSELESS: dict[str, dict[str, Any]] = {
    "kept_layers": {"kept_layers": None},
    "no kept_layers": {"kept_layers": []},
    "kept_layers is not": {"kept_layers": [1, 3]},
    "no last": {"last": None},
    "its score": {"last": float("nan")},
    "score": {"last": 50.0},
    "its score is none": {"last": -0.25},
    "score is none that": {"last": float("inf"), "metric": "mcc"},
    "its kept_layers": {"kept_layers": [1, None]},
    "seed": {"seed": 2},
    "model_fingerprint": {"model_fingerprint": "sha256:\u00e9"},
    "data_fingerprint": {"data_fingerprint": "sha256:other"},
    "last epoch": {
        "epoch_metrics": [
            {"epoch": epoch, "split": "validation", "metric": "accuracy", "value": value}
            for epoch, value in ((1, 0.5), (2, 0.75))
        ]
    },
    "its majority": {"majority": 1e300},
    "identifier is not that of its spec": {"spec": canonical_json(spec_of(3))},
}


@pytest.fixture
def sound(store: Store) -> Store:
    store.put("sweeps", "demo", [cell()])
    for seed in (7, 8, 9):
        put(store, row_of(seed))
    return store


def test_records_that_can_not_be_true(sound: Store) -> None:
    """Each reader leaves them out, whatever columns it reads."""
    paths = {}
    for number, (reason, changes) in enumerate(SENSELESS.items(), 10):
        bad = row_of(number) | changes
        paths[sound.files.where(f"trials/{put(sound, bad)}.parquet")] = reason
        assert sound.find("trials", bad["trial_id"]) is None, reason
    ids = {row_of(seed)["trial_id"] for seed in (7, 8, 9)}
    for columns in (None, ["trial_id"], ["last"]):
        listing = sound.read_all("trials", columns=columns)
        assert {*listing.rows["trial_id"].to_pylist()} == ids
        if columns:
            assert {*listing.rows.column_names} == {"trial_id", *columns}
        named = {item.location: item.reason for item in listing.unreadable}
        assert named.keys() == paths.keys()
        assert all(reason in named[path] for path, reason in paths.items())


@pytest.mark.parametrize("packed", [False, True], ids=["single", "packed"])
def test_a_record_that_can_not_be_true_is_moved_and_trained_again(
    sound: Store, packed: bool
) -> None:
    """Doctor moves it, and the rest stays."""
    bad = row_of(1) | SENSELESS["no last"]
    path = pack_of(sound, bad, row_of(4)) if packed else f"trials/{put(sound, bad)}.parquet"
    ids = {row_of(seed)["trial_id"] for seed in ((4, 7, 8, 9) if packed else (7, 8, 9))}
    assert sound.find("trials", bad["trial_id"]) is None
    compact(sound)
    (finding,) = examine(sound)
    assert finding.location == sound.files.where(path)
    assert "no last" in finding.reason
    set_aside(sound, [finding])
    again = Store(sound.location)
    assert examine(again) == []
    assert {*again.read_all("trials").rows["trial_id"].to_pylist()} == ids
    put(again, row_of(1))  # trained again
    assert again.find("trials", bad["trial_id"])


def test_scores_that_a_metric_can_have(sound: Store) -> None:
    put(sound, row_of(1, metric="mcc", last=-1.0))
    put(sound, row_of(2, metric="accuracy", last=1.0))
    put(sound, row_of(3, spec=None, identity_version=None))  # from before there were specs
    assert len(sound.read_all("trials").rows) == 6
    assert examine(sound) == []


def test_a_fingerprint_whose_json_has_escapes(sound: Store) -> None:
    spec = replace(spec_of(1), model_fingerprint='hub:\u00e9/"x"@1')
    row = row_of(1, trial_id=trial_id(spec), spec=canonical_json(spec))
    name = put(sound, row | {"model_fingerprint": spec.model_fingerprint})
    assert sound.find("trials", name)


def test_two_rows_of_one_trial(sound: Store) -> None:
    name = put(sound, row_of(1), row_of(1, last=0.75))
    (named,) = sound.read_all("trials").unreadable
    assert name in named.location
    assert "2 rows" in named.reason
    assert sound.find("trials", name) is None


@pytest.mark.parametrize("packed", [False, True], ids=["beside-a-file", "in-two-packs"])
def test_files_with_different_scores_of_a_trial(sound: Store, packed: bool) -> None:
    """Nobody knows which is right: both are set aside, and it is trained again."""
    name = row_of(1)["trial_id"]
    paths = {pack_of(sound, row_of(1, last=0.75), row_of(2))}
    paths |= {pack_of(sound, row_of(1)) if packed else f"trials/{put(sound, row_of(1))}.parquet"}
    for columns in (None, ["trial_id"]):
        listing = sound.read_all("trials", columns=columns)
        assert name not in listing.rows["trial_id"].to_pylist()
        assert {item.location for item in listing.unreadable} == {*map(sound.files.where, paths)}
    compact(sound)
    assert {item.record for item in sound.read_all("trials").unreadable} == {name}, "is kept"
    assert {item.location for item in examine(sound)} == {*map(sound.files.where, paths)}
    set_aside(sound, sound.read_all("trials").unreadable)
    again = Store(sound.location)
    assert name not in again.names("trials")
    assert row_of(2)["trial_id"] in again.names("trials")
    put(again, row_of(1))
    assert examine(again) == []
    assert again.read("trials", name)[0]["last"] == 0.5


SENSELESS_CELLS: dict[str, dict[str, Any]] = {
    "no depth": {"depth": None},
    "its depth is no": {"depth": 2**31 - 1},
    "no strategy": {"strategy": None},
    "no kept_layers": {"trial_id": "t1-a"},
    "not those of its depth": {"kept_layers": [1, 2], "dropped_layers": [3]},
    "not K": {"kept_layers": [1, 2], "dropped_layers": [3, 4], "k": 3},
    "its K": {"k": -5},
}
SPEED = {"profile_id": "p1-a", "measure": "speed", "depth": 4}
SENSELESS_MEASUREMENTS: dict[str, dict[str, Any]] = {
    "speed-up": {"timings": [{"quantity": "inference", "speedup": -5.0}]},
    "values": {"measure": "contribution", "layers": [{"layer": 1, "value": float("nan")}]},
    "of its layers": {"measure": "contribution", "layers": [{"layer": 9, "value": 0.5}]},
}


def test_cells_and_measurements_that_can_not_be_true(sound: Store) -> None:
    told = [("sweeps", reason, cell("other", **own)) for reason, own in SENSELESS_CELLS.items()]
    told += [("profiles", why, SPEED | own) for why, own in SENSELESS_MEASUREMENTS.items()]
    for number, (table, _, row) in enumerate(told):
        key = TABLES[table].names[0]
        sound.put(table, f"bad-{number}", [row | {key: f"bad-{number}"}])
    found = {item.location.rpartition("/")[2]: item.reason for item in examine(sound)}
    assert found.keys() == {f"bad-{number}.parquet" for number in range(len(told))}
    for number, (table, reason, _) in enumerate(told):
        assert reason in found[f"bad-{number}.parquet"]
        assert f"bad-{number}" not in sound.read_all(table).rows.column(0).to_pylist()


def test_a_trial_of_other_layers_is_no_cells_result(folder: Path) -> None:
    """A cell that names the trial of another network shows no score."""
    store = Store(folder / "store")
    (name,) = store.names("sweeps")
    cells = store.read("sweeps", name)
    full = {row["seed"]: row["trial_id"] for row in cells if row["k"] == 0}
    last = max(row["k"] or 0 for row in cells)
    changed = [row | {"trial_id": full[row["seed"]]} if row["k"] == last else row for row in cells]
    store.put("sweeps", name, changed)
    _, text = told_by(("query", f"SELECT DISTINCT score FROM cells WHERE k = {last}"), folder)
    assert text.split()[-1] == "NULL"
