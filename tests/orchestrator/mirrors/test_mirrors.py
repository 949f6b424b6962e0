"""Each mirror takes the right values from a store; which trials are copied; the command; and a run
that mirrors its trials: each as it ends, and a mirror that is gone holds nothing up."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from lp_sweep.orchestrator.engine.progress import PlainReporter, Reporter
from lp_sweep.orchestrator.mirrors import copying
from lp_sweep.orchestrator.mirrors.copying import Mirror, MirroredRun, mirrored_run
from lp_sweep.orchestrator.options import MirrorKind
from lp_sweep.orchestrator.watch import mirroring
from lp_sweep.orchestrator.watch.mirroring import mirrored
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.faults import wait_for
from tests.support.mirrorkinds import (
    SECRET,
    FakeWandb,
    MLflow,
    Trackio,
    client,
    mirrored_store,
    trial_of,
)
from tests.support.program import run, sweep
from tests.support.toyworld import save_world

KINDS = {"fake": FakeWandb, "mlflow": MLflow, "trackio": Trackio}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mirrored_store(tmp_path / "store")


@pytest.fixture(params=["fake", "mlflow", pytest.param("trackio", marks=pytest.mark.slow)])
def mirror(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeWandb:
    kind = request.param
    if kind != "fake":  # which needs no package
        pytest.importorskip(kind, reason=f"needs {kind}: pip install 'lp-sweep[{kind}]'")
    return KINDS[kind](tmp_path, monkeypatch)


# -- every kind of mirror


def test_each_trial_is_a_run_with_its_curves_or_its_failure(
    mirror: FakeWandb, store: Store
) -> None:
    pending = next(row for row in store.read("sweeps", "demo") if row["k"] == 10)
    FakeSweep(store.location).failure(pending["trial_id"], pending, "node_lost", final=False)
    assert mirror.copy(store) == (3, 1, 0)  # a try that another will follow is no run
    found = mirror.runs()
    assert len(found) == 3
    top = trial_of(store, strategy="top", k=4)
    (record,) = store.read("trials", top)
    run = found[top]
    assert run.name == "bert layers 1-8 of 12 SST-2 seed 42"
    assert run.settings.items() >= {
        "model": "bert", "task": "SST-2", "seed": "42", "k": "4", "kept_layers": "1-8",
        "dropped_layers": "9-12", "strategies": "top K=4", "learning_rate": "3e-05",
        "lp_sweep.sweep": "demo", "lp_sweep.trial_id": top,
    }.items()  # fmt: skip
    assert [step for step, _ in run.losses] == [1, 2, 3]
    assert [loss for _, loss in run.losses] == pytest.approx([0.6, 0.4, 0.3])
    assert (run.last, run.failure) == (pytest.approx(0.9), "")
    ended_ms = int(1000 * record["ended_at"].timestamp())
    assert run.ended_ms == (None if mirror.name == "wandb" else ended_ms)
    assert found[trial_of(store, k=0)].settings["strategies"] == "bottom K=0, top K=0"
    (failed,) = (run for key, run in found.items() if key.startswith(trial_of(store, k=8)))
    assert failed.failure == "out_of_memory: the device has no room for a batch of 32"
    assert failed.settings.items() >= {
        "lp_sweep.error_type": "out_of_memory", "kept_layers": "1-4",
        "lp_sweep.trial_id": trial_of(store, k=8),
    }.items()  # fmt: skip


def test_nothing_is_written_twice_and_no_secret(mirror: FakeWandb, store: Store) -> None:
    mirror.copy(store)
    before = mirror.runs()
    assert mirror.copy(store) == (0, 0, 3)
    assert mirror.runs() == before
    assert mirror.content()
    assert SECRET.encode() not in mirror.content()


def test_wandb_without_a_login_says_so_and_asks_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = FakeWandb(tmp_path, monkeypatch)
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(LpSweepError, match=r"no API key\. Log in with `wandb login`"):
        mirror.copy(store)


# -- what to copy is decided alike for all


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    return FakeWandb(tmp_path, monkeypatch)


def test_a_trial_of_two_sweeps_is_a_run_in_each(fake: FakeWandb, store: Store) -> None:
    other = FakeSweep(store.location, "other")
    other.cell(k=4, score=90.0)
    other.publish()
    assert fake.copy(store) == (3, 1, 0)
    assert fake.copy(store, "other") == (1, 0, 0)
    assert fake.copy(store, "other") == (0, 0, 1)


def test_a_trial_that_failed_and_is_done_later_is_another_run(
    fake: FakeWandb, store: Store
) -> None:
    assert fake.copy(store) == (3, 1, 0)
    row = next(row for row in store.read("sweeps", "demo") if row["k"] == 8)
    done = store.read("trials", trial_of(store, strategy="top", k=4))[0]
    of_row = {"trial_id": row["trial_id"], "kept_layers": row["kept_layers"]}
    store.put("trials", row["trial_id"], [done | of_row])
    assert fake.copy(store) == (1, 0, 2)
    assert row["trial_id"] in fake.runs()


def test_a_run_that_was_not_written_whole_is_written_again(
    fake: FakeWandb, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["wandb"].Run, "finish", full)
        with pytest.raises(LpSweepError, match="wandb: No space left on device"):
            fake.copy(store)
    assert fake.runs() == {}
    assert fake.copy(store) == (3, 1, 0)


def test_what_is_no_number_is_left_out(store: Store) -> None:
    (record,) = store.read("trials", trial_of(store, strategy="top", k=4))
    nan = float("nan")
    broken = {**record, "last": nan, "best": None, "train_losses": [0.5, nan]}
    run = mirrored_run("demo", broken, [])
    assert "last" not in run.results
    assert "best" not in run.results
    assert [epoch for epoch, values in run.curves.items() if "train/loss" in values] == [1]


# -- the command


def test_the_command(fake: FakeWandb, store: Store, tmp_path: Path) -> None:
    env = {"LP_SWEEP_STORE": "store"}
    done = sweep("mirror", "--to", "wandb", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "wandb  demo: 3 trials written, 1 of them failures; 0 were there\n"
    again = sweep("mirror", "--to", "wandb", "--json", cwd=tmp_path, env=env)
    assert json.loads(again.stdout) == [
        {"to": "wandb", "sweep": "demo", "written": 0, "failures": 0, "there": 3}
    ]


@pytest.mark.parametrize("arguments", [["mirror", "--to"], ["run", "--mirror"]], ids=" ".join)
def test_a_missing_package_is_told_before_anything_begins(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(copying, "find_spec", lambda name: None)
    done = sweep(*arguments, "mlflow", cwd=tmp_path, env={"LP_SWEEP_STORE": "store"})
    assert (done.returncode, done.stdout) == (4, "")
    assert re.search("package mlflow.*pip install 'lp-sweep.mlflow.'", done.stderr)


# -- what only MLflow has: times and numbers of a run, and a server that goes away


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MLflow:
    pytest.importorskip("mlflow", reason="needs MLflow: pip install 'lp-sweep[mlflow]'")
    return MLflow(tmp_path, monkeypatch)


def test_a_run_begins_when_its_trial_did_and_has_its_numbers(mlflow: MLflow, store: Store) -> None:
    mlflow.copy(store)
    trial = trial_of(store, strategy="top", k=4)
    (record,) = store.read("trials", trial)
    run = client().get_run(mlflow.runs()[trial].id)
    assert run.info.start_time == int(record["started_at"].timestamp() * 1000)
    assert run.data.metrics["seconds_total"] == record["seconds_total"]
    assert run.data.metrics["params_total"] == 79_000_000


def test_a_run_that_was_broken_off_is_written_anew(
    mlflow: MLflow, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    def away(*_: object, **__: object) -> None:
        raise MlflowException("the server has gone")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", away)
        with pytest.raises(LpSweepError, match="mlflow: the server has gone"):
            mlflow.copy(store)
    (half,) = mlflow.found().values()
    assert half.info.status == "RUNNING"
    assert mlflow.copy(store) == (3, 1, 0)
    assert half.info.run_id not in [run.id for run in mlflow.runs().values()]


def test_a_server_that_is_not_there_is_one_sentence_without_its_password(
    mlflow: MLflow, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@127.0.0.1:1")
    with pytest.raises(LpSweepError, match=r"^mlflow: .*127\.0\.0\.1") as told:
        mlflow.copy(store)
    assert SECRET not in str(told.value)
    assert "\n" not in str(told.value)


# -- mirrors of a run


class Kept(Mirror):
    """A mirror that keeps its runs, and does before each what it is told."""

    kind, refusals = MirrorKind.wandb, (OSError,)

    def __init__(self, before: Callable[[MirroredRun], object] = lambda run: None) -> None:
        self.runs: dict[str, MirroredRun] = {}
        self.before = before
        super().__init__("demo")

    def complete(self) -> set[str]:
        return {*self.runs}

    def put(self, run: MirroredRun) -> None:
        self.before(run)
        self.runs[run.key] = run


class Told(PlainReporter):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        self.notes.append(text)


@contextmanager
def following(
    store: Store, monkeypatch: pytest.MonkeyPatch, opened: Callable[[], Mirror]
) -> Iterator[tuple[Reporter, list[str]]]:
    """A run's reporter, and its notes."""
    monkeypatch.setattr(mirroring, "_PAUSE", 0.0)
    monkeypatch.setattr(mirroring, "_SHARE", 0)
    monkeypatch.setattr(mirroring, "open_mirror", lambda *_: opened())
    told = Told()
    with mirrored(told, [MirrorKind.wandb], store.location, "demo") as reporter:
        yield reporter, told.notes


def test_trials_are_written_while_the_run_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Event()
    kept = Kept(lambda run: written.set())
    with following(store, monkeypatch, lambda: kept) as (reporter, notes):
        reporter.ended("t1-a", "lost", "")
        assert not written.wait(0.5)
        reporter.ended("t1-a", "done", "")
        assert written.wait(20)
        fake = FakeSweep(store.location, "other")
        added = fake.cell(k=2, score=91.0)
        store.put("sweeps", "demo", [*store.read("sweeps", "demo"), added | {"sweep": "demo"}])
        reporter.ended("t1-b", "failed", "")
    assert len(kept.runs) == 4
    assert sum(run.failure is not None for run in kept.runs.values()) == 1
    assert notes == []


def test_a_mirror_that_hangs_is_left_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "AT_THE_END", 0.05)
    release, began = Event(), Event()

    def hangs(run: MirroredRun) -> None:
        began.set()
        release.wait(60)

    with following(store, monkeypatch, lambda: Kept(hangs)) as (reporter, notes):
        reporter.ended("t1-a", "done", "")
        assert began.wait(20)
    (told,) = notes
    release.set()
    assert told.startswith("not every trial is in wandb. Copy the others: ")
    assert f"lp-sweep mirror --to wandb --store {store.location} --sweep demo" in told


def test_a_mirror_that_is_away_is_told_once_and_catches_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, there, asked = Kept(), Event(), Event()

    def opened() -> Mirror:
        asked.set()
        if not there.is_set():
            raise RuntimeError("no server at http://127.0.0.1:1\nof theirs")
        return kept

    with following(store, monkeypatch, opened) as (reporter, notes):
        reporter.ended("t1-a", "done", "")
        assert asked.wait(20)
        wait_for(lambda: bool(reporter.tick() or notes), "the note")
        there.set()
        reporter.ended("t1-b", "done", "")
    assert len(kept.runs) == 3
    assert len(notes) == 2
    assert r"the run continues: no server at http://127.0.0.1:1\nof theirs" in notes[0]
    assert notes[1] == "wandb takes trials again"


# -- on a real Ray


@pytest.mark.slow
@pytest.mark.ray
def test_a_run_shows_its_trials_as_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_world(tmp_path)
    fake = FakeWandb(tmp_path, monkeypatch)
    run("run", "sweep.yaml", "--mirror", "wandb", cwd=tmp_path)
    runs = fake.runs()
    assert runs.keys() == Store(tmp_path / "lp-sweep-store").names("trials")
    assert {seen.settings["strategies"] for seen in runs.values()} == {"top K=0", "top K=2"}
    again = run("mirror", "--to", "wandb", cwd=tmp_path)
    assert again.stdout == "wandb  toy: 0 trials written, 0 of them failures; 2 were there\n"
