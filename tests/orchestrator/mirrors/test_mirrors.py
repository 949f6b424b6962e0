"""Mirrors copy the right values from a store: tested with TensorBoard, which needs no package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lp_sweep.orchestrator.mirrors import kinds
from lp_sweep.orchestrator.mirrors.copying import copy_trials, run_of_record
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind, open_mirror
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.mirrorworld import SECRET, events, mirrored_store, scalars, texts, trial_of
from tests.support.program import sweep

RUNS = "TENSORBOARD_LOGGING_DIR"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv(RUNS, str(tmp_path / "runs"))
    return mirrored_store(tmp_path / "store")


def copied(store: Store, sweep: str = "demo", only: list[str] | None = None) -> tuple[int, ...]:
    return copy_trials(store, sweep, open_mirror(MirrorKind.tensorboard, sweep), only)


def folders(runs: Path) -> dict[str, Path]:
    """By key."""
    return {path.name.rpartition("--")[2]: path for path in runs.iterdir()}


def test_each_trial_is_a_run_with_its_curves(store: Store, tmp_path: Path) -> None:
    pending = next(row for row in store.read("sweeps", "demo") if row["k"] == 10)
    FakeSweep(store.location).failure(pending["trial_id"], pending, "preempted", final=False)
    assert copied(store) == (3, 1, 0)  # a try that another will follow is no run
    found = folders(tmp_path / "runs" / "demo")
    assert len(found) == 3
    run = found[trial_of(store, strategy="top", k=4)]
    assert run.name.startswith("bert_layers_1-8_of_12_SST-2_seed_42--t1-")
    curves = scalars(run)
    assert curves["validation/accuracy"] == [(step, pytest.approx(0.9)) for step in (1, 2, 3)]
    assert [value for _, value in curves["train/loss"]] == pytest.approx([0.6, 0.4, 0.3])
    assert curves["last"] == [(3, pytest.approx(0.9))]
    assert curves["params_total"][0][1] == pytest.approx(79_000_000)
    told = texts(run)
    assert told.items() >= {
        "model": "bert", "kept_layers": "1-8", "learning_rate": "3e-05", "strategies": "top K=4",
        "status": "FINISHED", "lp_sweep.sweep": "demo",
        "lp_sweep.trial_id": trial_of(store, strategy="top", k=4),
    }.items()  # fmt: skip
    assert {event.wall_time for event in events(run) if event.summary.value} == {
        store.read("trials", told["lp_sweep.trial_id"])[0]["ended_at"].timestamp()
    }
    two_cells = texts(found[trial_of(store, k=0)])
    assert two_cells["strategies"] == "bottom K=0, top K=0"
    (key,) = (key for key in found if "." in key)
    failed = texts(found[key])
    assert key.partition(".")[0] == failed["lp_sweep.trial_id"] == trial_of(store, k=8)
    assert failed.items() >= {
        "status": "FAILED out_of_memory: the device has no room for a batch of 32",
        "lp_sweep.error_type": "out_of_memory", "kept_layers": "1-4",
    }.items()  # fmt: skip


def test_nothing_is_written_twice_and_no_secret(store: Store, tmp_path: Path) -> None:
    copied(store)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    assert copied(store) == (0, 0, 3)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")} == before
    content = b"".join(path.read_bytes() for path in (tmp_path / "runs").rglob("*events*"))
    assert content
    assert SECRET.encode() not in content


def test_a_second_sweep_whose_model_is_a_folder(store: Store, tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path / "store", "folders")
    fake.cell(k=4, score=90.0, model="./bert")
    fake.publish()
    assert copied(store) == (3, 1, 0)
    assert copied(store, "folders") == (1, 0, 0)
    (run,) = (tmp_path / "runs" / "folders").iterdir()
    assert run.name.startswith("bert_layers_1-8")  # no hidden folder
    assert copied(store, "folders") == (0, 0, 1)


def test_only_what_is_asked_for_and_known(store: Store) -> None:
    one = trial_of(store, strategy="top", k=4)
    assert copied(store, only=[one, "t1-of-another-sweep"]) == (1, 0, 0)
    assert copied(store) == (2, 1, 1)


def test_a_trial_that_failed_and_was_done_later(store: Store, tmp_path: Path) -> None:
    copied(store)
    row = next(row for row in store.read("sweeps", "demo") if row["k"] == 8)
    done = store.read("trials", trial_of(store, strategy="top", k=4))[0]
    store.put("trials", row["trial_id"], [{**done, "trial_id": row["trial_id"]}])
    assert copied(store) == (1, 0, 2)
    assert row["trial_id"] in folders(tmp_path / "runs" / "demo")


def test_a_run_that_was_not_written_whole_is_written_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lp_sweep.orchestrator.mirrors import to_tensorboard

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(to_tensorboard, "scalar", full)
        with pytest.raises(LpSweepError, match="tensorboard: No space left on device"):
            copied(store)
    assert list((tmp_path / "runs" / "demo").iterdir()) == []
    assert copied(store) == (3, 1, 0)


def test_what_is_no_number_is_left_out(store: Store) -> None:
    (record,) = store.read("trials", trial_of(store, strategy="top", k=4))
    nan = float("nan")
    broken = {**record, "last": nan, "best": None, "train_losses": [0.5, nan]}
    run = run_of_record("demo", broken, [])
    assert "last" not in run.results
    assert "best" not in run.results
    assert [point.epoch for point in run.curves if point.metric == "train/loss"] == [1]


# -- the command


def test_the_command(store: Store, tmp_path: Path) -> None:
    env = {RUNS: str(tmp_path / "runs"), "LP_SWEEP_STORE": "store"}
    done = sweep("mirror", "--to", "tensorboard", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "tensorboard  demo: 3 trials written, 1 of them failures; 0 were there\n"
    )
    again = sweep("mirror", "--to", "tensorboard", "--json", cwd=tmp_path, env=env)
    assert json.loads(again.stdout) == [
        {"to": "tensorboard", "sweep": "demo", "written": 0, "failures": 0, "there": 3}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "tensorbord"], "Did you mean 'tensorboard'"),
        (["--to", "tensorboard", "--sweep", "dmo"], "It has: demo. Did you mean 'demo'"),
    ],
    ids=["mirror", "sweep"],
)
def test_mistakes(store: Store, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = sweep("mirror", *arguments, cwd=tmp_path, env={"LP_SWEEP_STORE": "store"})
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize("arguments", [["mirror", "--to"], ["run", "--mirror"]], ids=" ".join)
def test_a_missing_package_is_told_before_anything_begins(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(kinds, "find_spec", lambda name: None)
    done = sweep(*arguments, "mlflow", cwd=tmp_path, env={"LP_SWEEP_STORE": "store"})
    assert (done.returncode, done.stdout) == (4, "")
    assert re.search("package mlflow.*pip install 'lp-sweep.mlflow.'", done.stderr)
