"""`--processes`: real processes of this machine that share a run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from lp_sweep import Sweep
from lp_sweep.orchestrator.engine import processes
from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.course import Budget, StopSignals
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.store import Store
from tests.support.faults import sweep as started
from tests.support.faults import wait_for
from tests.support.program import Done, sweep
from tests.support.stores import answers_in
from tests.support.toyworld import RECIPE, save_world

SHORT = RECIPE | {"epochs": 1, "limit_train": 64}
LONG = RECIPE | {"epochs": 20_000}


def run(cwd: Path, *words: str, code: int = 0, **settings: str) -> Done:
    env = {"LP_SWEEP_CACHE_DIR": str(cwd / "cache"), "LP_SWEEP_EVEN_IF_NOT_LEARNED": "1"}
    env |= settings
    done = sweep("run", "sweep.yaml", *words, cwd=cwd, env=env)
    assert done.returncode == code, done.stderr
    return done


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(one) for one in listed.split()]


def test_two_processes_share_a_run_with_the_answers_of_one(tmp_path: Path) -> None:
    """Whatever files of the user are beside the sweep file, and whatever an import prints."""
    save_world(tmp_path, seeds=[1, 2], recipe=SHORT)
    (tmp_path / "queue.py").write_text("raise RuntimeError('the wrong queue')\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('hello', end='')\n")
    done = run(tmp_path, "--processes", "2", "--store", "two", PYTHONPATH=str(tmp_path / "own"))
    assert "on 2 slots" in done.stderr
    run(tmp_path, "--inline", "resources_per_trial.cpu=1", "--store", "one")
    assert len(answers_in(tmp_path / "one")) == 4
    assert answers_in(tmp_path / "two") == answers_in(tmp_path / "one")
    hosts = Store(str(tmp_path / "two")).read_all("trials").rows.to_pylist()
    assert {row["threads"] for row in hosts} == {1}


def test_a_trial_that_does_not_fit(tmp_path: Path) -> None:
    save_world(tmp_path)
    words = ("--processes=2", "resources_per_trial.cpu=1000")
    assert "no slot" in run(tmp_path, *words, code=4).stderr


@pytest.mark.parametrize("number", ["0", "-1", "all", "1.5"])
def test_what_is_no_number_of_processes(number: str, tmp_path: Path) -> None:
    save_world(tmp_path)
    done = run(tmp_path, f"--processes={number}", code=2)
    assert "a number from 1, or gpus" in done.stderr
    assert not (tmp_path / "lp-sweep-store").exists()


def test_one_place_to_train_in(tmp_path: Path) -> None:
    save_world(tmp_path)
    assert "--inline" in run(tmp_path, "--processes=2", "--inline", code=2).stderr
    assert "--address" in run(tmp_path, "--processes=2", "--address=10.0.0.1:1", code=2).stderr


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_gpus_without_a_gpu(tmp_path: Path) -> None:
    save_world(tmp_path)
    with pytest.raises(PreflightError, match="--processes"):
        Sweep.from_yaml(tmp_path / "sweep.yaml", store=tmp_path / "st").run(
            processes="gpus", cache_dir=tmp_path / "cache"
        )


def test_the_gpus_of_a_process_are_those_that_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "count_gpus", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert processes.gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5daf")
    assert processes.gpus() == ["3", "GPU-5daf"]


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 16)
    spec = SweepSpec(
        schema_version=1,
        name="s",
        models=["m"],
        tasks=["sst2"],
        strategies=[{"name": "top", "k": [1]}],
    )
    assert processes._slots(spec, "gpus", 4) == Slots(4, 1.0, 1.0)
    shared = spec.model_copy(update={"trials_per_gpu": 3})
    assert processes._slots(shared, "gpus", 2).number == 6
    assert processes._slots(spec, "4", 0) == Slots(4, 4.0, 0.0)
    assert processes._slots(spec, "3", 1) == Slots(3, 5.0, 1 / 3)
    with pytest.raises(PreflightError, match="at most 64"):
        processes._slots(spec, "65", 0)


def test_under_nohup_a_closed_terminal_is_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(Budget()).caught() as signals:
            signals.arm()
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signals.received == ["SIGTERM"]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lost_process_is_replaced_and_a_lost_driver_leaves_none(tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2], recipe=RECIPE | {"epochs": 60}, checkpoint_every=0.1)
    store = tmp_path / "st"
    with started(tmp_path, "sweep.yaml", "--processes=2", f"--store={store}") as driver:
        wait_for(lambda: len([*store.glob("checkpoints/[!.]*")]) >= 2, "two checkpoints", 60)
        first = driver.relatives()
        assert len(first) == 2
        first[0].kill()
        wait_for(lambda: {*driver.relatives()} - {*first}, "a new process", 60)
        driver.kill()
        wait_for(lambda: not driver.relatives(), "the end of its processes", 20)
    attempts = Store(str(store)).read_all("attempts").rows.to_pylist()
    assert [row["error_type"] for row in attempts] == ["worker_lost"]
    run(tmp_path, "--processes=2", f"--store={store}")
    assert len(answers_in(store)) == 4


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_ends_a_run_and_its_processes(number: signal.Signals, tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2], recipe=LONG, checkpoint_every=100)
    store = tmp_path / "lp-sweep-store"
    with started(tmp_path, "sweep.yaml", "--processes=2") as driver:
        wait_for(lambda: len([*store.glob("underway/[!.]*")]) == 2, "trainings", 60)
        begun = time.monotonic()
        driver.process.send_signal(number)
        assert driver.wait(60) == (130 if number == signal.SIGINT else 3), driver.text()
        assert time.monotonic() - begun < 30
        assert not driver.relatives()
        assert number.name in driver.text() or number == signal.SIGINT
        assert "Traceback" not in driver.text()
    written = len([*store.glob("checkpoints/[!.]*")])
    assert written == (2 if number == signal.SIGUSR1 else 0)
