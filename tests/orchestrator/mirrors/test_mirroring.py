"""A run that mirrors its trials: each as it ends, and a mirror that is gone holds nothing up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from lp_sweep.orchestrator.engine.progress import PlainReporter, Reporter
from lp_sweep.orchestrator.mirrors.copying import Mirror, MirroredRun
from lp_sweep.orchestrator.options import MirrorKind
from lp_sweep.orchestrator.watch import mirroring
from lp_sweep.orchestrator.watch.mirroring import mirrored
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.faults import wait_for
from tests.support.mirrorkinds import FakeWandb, mirrored_store
from tests.support.program import run
from tests.support.toyworld import save_world


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


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return mirrored_store(tmp_path / "store")


class Told(PlainReporter):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str, about: str = "", ends: bool = False) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "_PAUSE", 0.0)
    monkeypatch.setattr(mirroring, "_SHARE", 0)


@contextmanager
def following(
    store: Store, monkeypatch: pytest.MonkeyPatch, opened: Callable[[], Mirror]
) -> Iterator[tuple[Reporter, list[str]]]:
    """A run's reporter, and its notes."""
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
            raise LpSweepError("mlflow: no server at http://127.0.0.1:1")
        return kept

    with following(store, monkeypatch, opened) as (reporter, notes):
        reporter.ended("t1-a", "done", "")
        assert asked.wait(20)
        wait_for(lambda: bool(reporter.tick() or notes), "the note")
        there.set()
        reporter.ended("t1-b", "done", "")
    assert len(kept.runs) == 3
    assert len(notes) == 2
    assert "the run continues: mlflow: no server at" in notes[0]
    assert notes[1] == "wandb takes trials again"


def test_what_a_mirror_throws_is_a_note(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: MirroredRun) -> None:
        raise RuntimeError("a bug\nof theirs")

    with following(store, monkeypatch, lambda: Kept(broken)) as (reporter, notes):
        reporter.ended("t1-a", "done", "")
    first, last = notes
    assert first == "wandb takes no trials for now; the run continues: a bug\\nof theirs"
    assert last.startswith("not every trial is in wandb")


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


@pytest.mark.ray
@pytest.mark.slow
def test_a_mirror_that_can_not_be_written_harms_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_world(tmp_path)
    FakeWandb(tmp_path, monkeypatch)
    (tmp_path / "wandb").write_text("a file", encoding="utf-8")
    done = run("run", "sweep.yaml", cwd=tmp_path, LP_SWEEP_MIRROR="wandb")
    assert "complete: 2 done in this run" in done.stderr
    assert done.stderr.count("wandb takes no trials for now") == 1
    told = [line for line in done.stderr.splitlines() if "lp-sweep mirror --to" in line]
    assert len(told) == 1
