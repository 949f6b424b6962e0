"""`--inline`: whole runs in this process, without Ray, and the policies that all engines share."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
import yaml

from lp_sweep import Sweep
from lp_sweep.orchestrator.cli.watching import states_text
from lp_sweep.orchestrator.engine import connection
from lp_sweep.orchestrator.watch.states import sweep_states
from lp_sweep.storage import underway
from lp_sweep.storage.errors import GraphRecordingError, SpecError
from lp_sweep.storage.spool import Spool
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker import run as worker
from tests.support.faults import sweep as started
from tests.support.faults import wait_for
from tests.support.program import Done, python, sweep
from tests.support.program import run as as_process
from tests.support.stores import mounted
from tests.support.toyworld import RECIPE, save_world

SHORT = RECIPE | {"epochs": 1, "limit_train": 64}
DIVERGING = SHORT | {"learning_rate": 1e30}
STOPS = {"LP_SWEEP_EVEN_IF_NOT_LEARNED": "0"}  # as for users
FULL = [{"name": "top", "k": [0]}]
# a machine on which Ray is not installed
_WITHOUT_RAY = 'import sys\nsys.modules["ray"] = None\n'
_BREAKS = """
import lp_sweep.trials.worker.run as run
real = run.run_trial
def stopped(*given):
    breakpoint()
    return real(*given)
run.run_trial = stopped
"""
_MAIN = "from lp_sweep.orchestrator.cli.__main__ import main\nmain()\n"


def run(*words: str, cwd: Path, code: int = 0, **settings: str) -> Done:
    env = {"LP_SWEEP_INLINE": "1", "LP_SWEEP_CACHE_DIR": str(cwd / "cache")}
    env |= {"LP_SWEEP_EVEN_IF_NOT_LEARNED": "1"} | settings
    done = sweep(*words, cwd=cwd, env=env)
    assert done.returncode == code, done.stderr
    return done


# -- without Ray


@pytest.mark.slow
def test_the_quickstart_needs_no_ray(tmp_path: Path) -> None:
    small = ("task=toy-sentiment", "seed=1", "strategy=top", "k=4")
    small += ("recipe.epochs=1", "recipe.limit_train=32")
    done = python(_WITHOUT_RAY + _MAIN, "quickstart", *small, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["totals"]["trials_done"] == 2  # and K=0
    folder = tmp_path / "lp-sweep-quickstart"
    held = {"README.md", "data", "lp-sweep-store", "model", "sweep.yaml"}
    assert {path.name for path in folder.iterdir()} == held
    again = python(_WITHOUT_RAY + _MAIN, "run", "sweep.yaml", *small, "--inline", cwd=folder)
    assert "nothing was missing" in again.stderr, "its own store is the default there"
    again = python(_WITHOUT_RAY + _MAIN, "quickstart", *small, cwd=tmp_path)
    assert "nothing was missing" in again.stderr


@pytest.mark.slow
def test_students_learn_from_an_exported_network(tmp_path: Path) -> None:
    save_world(tmp_path, recipe=SHORT, strategies=FULL)
    run("run", "sweep.yaml", "keep=all", cwd=tmp_path)
    run("export", "--best", "--task", "mood", "--out", "taught", cwd=tmp_path)
    students = {"distill": [{"from": "./taught"}], "strategies": [{"name": "top", "k": [2]}]}
    save_world(tmp_path, recipe=SHORT, **students)
    done = run("run", "sweep.yaml", cwd=tmp_path)
    assert "complete" in done.stderr
    records = Store(tmp_path / "lp-sweep-store").read_all("trials", None).rows.to_pylist()
    assert sorted('"distill"' in record["spec"] for record in records) == [False, True, True]  # K=0


@pytest.mark.parametrize(
    "run", [run, pytest.param(as_process, marks=[pytest.mark.ray, pytest.mark.slow])]
)
def test_networks_that_could_not_be_kept_are_counted(tmp_path: Path, run: Any) -> None:
    """On Ray as in this process: the first is named, and the run is complete all the same."""
    save_world(tmp_path, recipe=SHORT, strategies=[{"name": "top", "k": [0, 2]}], keep="all")
    in_the_way = Spool(tmp_path / "cache", str(tmp_path / "lp-sweep-store")).root / "weights"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file")
    told = run("run", "sweep.yaml", cwd=tmp_path).stderr
    assert re.search(r"the network of \S+ could not be kept: .*weights", told)
    assert told.count("could not be kept: ") == 2
    assert "kept: 2, " in told.partition("complete")[0]
    assert "warning" not in told


def test_where_no_graph_can_be_recorded_the_next_run_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first failure ends the run, since its process is unfit."""
    save_world(tmp_path, strategies=[{"name": "top", "k": [0, 2]}], recipe=SHORT)
    real, graphs = worker.run_trial, []

    def refused(given: Any, way: Any, *rest: Any) -> Any:
        graphs.append(way.graphs)
        if way.graphs:
            raise GraphRecordingError("a CUDA graph could not be recorded")
        return real(given, way, *rest)

    monkeypatch.setattr(worker, "run_trial", refused)
    assert "stopped by device" in run("run", "sweep.yaml", cwd=tmp_path, code=3).stderr
    run("run", "sweep.yaml", cwd=tmp_path)
    assert graphs == [True, False, False]
    (attempt,) = Store(tmp_path / "lp-sweep-store").read_all("attempts").rows.to_pylist()
    assert (attempt["error_type"], attempt["final"]) == ("graph_not_recorded", False)


def test_a_sweep_runs_to_its_end_where_ray_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile is measured before the trials that wait for it. A traceback of a step is short."""
    monkeypatch.setitem(sys.modules, "ray", None)
    backward, ours = torch.Tensor.backward, []

    def counted(*given: Any, **named: Any) -> None:
        names = (frame.f_globals["__name__"] for frame, _ in traceback.walk_stack(None))
        ours.append(sum(name.startswith("lp_sweep.") for name in names))
        backward(*given, **named)

    monkeypatch.setattr(torch.Tensor, "backward", counted)
    contribution = {"name": "contribution", "threshold": [0.02]}
    save_world(tmp_path, strategies=[{"name": "top", "k": [0, 2]}, contribution], recipe=SHORT)
    done = run("run", "sweep.yaml", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    totals = told["totals"]
    assert (totals["cells_deferred"], totals["cells_pending"]) == (0, 0)
    assert (totals["profiles_done"], told["stopped_by"]) == (1, None)
    assert re.search("^mood: (needs|keep all|no answer)", done.stderr, re.MULTILINE)
    assert "lp-sweep report --out report.html" in done.stderr
    assert 0 < max(ours) <= 12
    assert len(Store(tmp_path / "lp-sweep-store").names("trials")) == totals["trials"] > 1


def test_without_ray_a_run_names_inline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_world(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(connection, "find_spec", lambda name: None)
    done = sweep("run", "sweep.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert re.search(r"error: Ray is not installed.*--inline", done.stderr)


@pytest.mark.slow
def test_breakpoint_in_a_trial_opens_the_debugger(tmp_path: Path) -> None:
    save_world(tmp_path, recipe=SHORT, strategies=FULL)
    words = ("run", "sweep.yaml", "--inline", "--json")
    done = python(_BREAKS + _MAIN, *words, cwd=tmp_path, typed="p 6 * 7\nc\n")
    assert re.search(r"\(Pdb\) .*42", done.stderr, re.DOTALL)
    assert json.loads(done.stdout)["done"] == 1, "the debugger's words are not among the data"


# -- what a run does, and shows


def test_status_tells_how_far_a_long_trial_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at in the middle of a training, as any other process sees it."""
    save_world(tmp_path, recipe=SHORT, strategies=FULL)
    monkeypatch.setenv("LP_SWEEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(underway, "EVERY_SECONDS", 0.0)
    seen: list[tuple[str, Any]] = []
    write = Store.put_text

    def looked(store: Store, table: str, name: str, text: str) -> str:
        where = write(store, table, name, text)
        if table == underway.FOLDER and not seen:
            states = sweep_states(store)
            seen.append((states_text(states), states.plain()))
        return where

    monkeypatch.setattr(Store, "put_text", looked)
    Sweep.from_yaml(tmp_path / "sweep.yaml").run(inline=True)
    [(text, [plain])] = seen
    assert re.search(r"mood, seed 1: 0:\d\d, step \d+ of \d+, loss \d\.\d+, 0:\d\d left", text)
    [state] = plain["running"]
    [how_far] = state["underway"].values()
    assert 0 < how_far["step"] <= how_far["steps"]
    assert not Store(tmp_path / "lp-sweep-store").texts(underway.FOLDER)


@pytest.mark.slow
def test_a_network_is_measured_once_after_the_trials(tmp_path: Path) -> None:
    top, speed = {"name": "top", "k": 3}, {"speed": "cpu", "speed_length": 8}
    save_world(tmp_path, seeds=[1, 2], strategies=[top], recipe=SHORT, measure=speed)
    done = run("run", "sweep.yaml", cwd=tmp_path)
    ended = re.findall(r"done +model, layer 1 of 4, (\w+)", done.stderr)
    assert ended == ["mood", "mood", "speed"]
    rows = json.loads(run("table", "speed", "--json", cwd=tmp_path).stdout)
    (row,) = (row for row in rows if row["kept_layers"] == [1])
    name = row["profile_id"]
    assert name in Store(tmp_path / "lp-sweep-store").names("profiles")
    assert row["batch"] == 32
    assert row["finetune_speedup"] > 0 < row["inference_speedup"]
    shown = run("show", name, cwd=tmp_path).stdout
    assert re.search("speed of ./model, layers 1, beside all 4.*finetune", shown, re.DOTALL)
    assert "nothing was missing" in run("run", "sweep.yaml", cwd=tmp_path).stderr


@pytest.mark.slow
def test_a_read_only_store(tmp_path: Path) -> None:
    """A finished sweep writes nothing; a missing trial is refused before it is trained."""
    save_world(tmp_path, recipe=SHORT, strategies=FULL)
    with mounted(tmp_path / "disk", "200m"):
        run("run", "sweep.yaml", "--store", "disk/store", cwd=tmp_path)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        done = run("run", "sweep.yaml", "--store", "disk/store", cwd=tmp_path)
        assert "nothing was missing" in done.stderr
        done = run("run", "sweep.yaml", "seed=2", "--store", "disk/store", cwd=tmp_path, code=4)
    assert "is read-only for this user" in done.stderr
    assert "Traceback" not in done.stderr


# -- what ends a run


def test_a_limit_of_hours_ends_a_run(tmp_path: Path) -> None:
    """The command that goes on has none of the cluster settings of the shell."""
    save_world(tmp_path)
    words = ("run", "sweep.yaml", "--max-hours", "0", "--json")
    done = run(*words, cwd=tmp_path, code=3, RAY_ADDRESS="10.0.0.1:6379")
    assert re.search(r"this run has used 0\.\d\d hours; the next one starts counting", done.stderr)
    last = done.stderr.splitlines()[-1]
    assert "stopped by max-hours: 0 done in this run. Go on: lp-sweep run sweep.yaml" in last
    assert " --offline --inline " in last
    assert "--max-hours" not in last, "as few would not do again"
    assert "--address" not in last
    told = json.loads(done.stdout)
    assert told["stopped_by"] == "max-hours"
    assert told["used"]["hours"] > 0


def test_a_full_model_that_did_not_learn_ends_a_run(tmp_path: Path) -> None:
    """Its other trials are not started, by the same command neither; those of a task that it
    learned are, and an option starts all."""
    top = [{"name": "top", "k": [0, 1, 2]}]
    save_world(tmp_path, recipe=RECIPE, strategies=top, seeds=[1, 2])
    content = yaml.safe_load((tmp_path / "sweep.yaml").read_text())
    (mood,) = content["tasks"]
    (tmp_path / "noise.csv").write_text("text,label\n" + "w1 w2,pos\nw3 w1,neg\nw2 w2,neg\n" * 8)
    content["tasks"].append(mood | {"name": "noise", "train": "noise.csv"})
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    started = {"mood": [0, 0, 1, 1, 2, 2], "noise": [0, 0]}
    for _ in range(2):
        done = run("run", "sweep.yaml", cwd=tmp_path, code=3, **STOPS)
        assert re.search(r"note .*did not learn noise.*Try .*recipe\.learning_rate", done.stderr)
        assert "stopped: 4 trials were not started" in done.stderr
        stored = Store(tmp_path / "lp-sweep-store").read_all("trials", columns=["task", "k"]).rows
        for task, ks in started.items():
            assert sorted(stored.filter(pc.equal(stored["task"], task))["k"].to_pylist()) == ks
    (again,) = re.findall("train them all the same: lp-sweep (.*)", done.stderr)
    assert "--even-if-not-learned" in again
    run(*shlex.split(again), cwd=tmp_path, **STOPS)


def test_a_limit_of_failures_ends_a_run_and_its_retry(tmp_path: Path) -> None:
    """What is told to type goes on with the same trials and limits."""
    save_world(tmp_path, seeds=[1, 2, 3], recipe=DIVERGING, strategies=FULL)
    done = run("run", "sweep.yaml", "--max-failures", "2", cwd=tmp_path, code=1)
    assert "stopped after 2 failures. Go on with the rest: lp-sweep run" in done.stderr
    failed = Store(tmp_path / "lp-sweep-store").read_all("attempts").rows["trial_id"].to_pylist()
    assert len(failed) == 2
    limits = ["--max-failures", "1", "--fail-fast"]
    done = run("retry", "sweep.yaml", *failed, *limits, cwd=tmp_path, code=1)
    (again,) = re.findall("Go on with the rest: (.*)", done.stderr)
    (left,) = {*failed} - {*re.findall(r"failed: (\S+) \(", done.stderr)}
    assert again.startswith(f"lp-sweep retry sweep.yaml {left} --store ")
    assert again.endswith(" --fail-fast --max-failures 1")
    done = run("retry", "sweep.yaml", "--type", "diverged", *limits, cwd=tmp_path, code=1)
    assert "Go on with the rest: lp-sweep retry sweep.yaml --type diverged --store" in done.stderr


def test_no_pruned_network_is_trained_where_every_full_model_diverged(tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2], recipe=DIVERGING, strategies=[{"name": "top", "k": [0, 2]}])
    for _ in range(2):
        done = run("run", "sweep.yaml", cwd=tmp_path, code=3, **STOPS)
        assert re.search(
            r"did not learn .*: it diverged\..* Lower recipe\.learning_rate", done.stderr
        )
    assert len(Store(tmp_path / "lp-sweep-store").names("attempts")) == 2


def test_a_failed_trial_ends_no_run_and_is_left_alone_but_by_retry(tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2], recipe=DIVERGING, strategies=FULL)
    first = run("run", "sweep.yaml", cwd=tmp_path, code=1)
    assert first.stderr.count("(diverged)") == 2
    assert "fail again" in first.stderr.splitlines()[-1]
    assert ": lp-sweep retry sweep.yaml --store " in first.stderr
    assert "Traceback (most" not in first.stderr
    store = Store(tmp_path / "lp-sweep-store")
    assert len(store.names("attempts")) == 2
    plan = json.loads(run("plan", "sweep.yaml", "--json", cwd=tmp_path).stdout)
    assert {cell["state"] for cell in plan["cells"]} == {"failed"}
    status = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert status[0]["trials_failed"] == 2
    assert "failed" in run("table", "tasks", cwd=tmp_path).stdout
    again = run("run", "sweep.yaml", cwd=tmp_path, code=1)
    assert "0 done in this run; 2 of the sweep's trials and measurements failed" in again.stderr
    trial = min(row["trial_id"] for row in store.read_all("attempts").rows.to_pylist())
    for words, attempts in (([trial[:12]], 3), (["--type", "bug"], 3), (["--type", "diverged"], 5)):
        run("retry", "sweep.yaml", *words, cwd=tmp_path, code=1)
        assert len(store.names("attempts")) == attempts, words
    logs = run("logs", trial, cwd=tmp_path).stdout
    assert logs.count("  diverged on ") == logs.count("DivergedError: ") == 3
    shown = json.loads(run("show", trial[:12], "--json", cwd=tmp_path).stdout)
    assert (shown["id"], shown["record"]) == (trial, None)
    commands = [attempt["command"] for attempt in shown["attempts"]]
    assert f"lp-sweep retry sweep.yaml {trial[:12]}" in commands


def test_from_python(tmp_path: Path) -> None:
    save_world(tmp_path, recipe=DIVERGING, seeds=[1, 2])
    made = Sweep.from_yaml(tmp_path / "sweep.yaml", "k=0", store=tmp_path / "store")
    cache = tmp_path / "cache"
    with pytest.raises(SpecError, match=r"--inline.*--address"):
        made.run(inline=True, address="auto")
    run = made.run(inline=True, fail_fast=True, cache_dir=cache)
    assert (run.done, run.stopped_by, run.exit_code) == (0, "failures", 1)
    assert list(run.failed.values()) == ["diverged"]
    run = made.run(inline=True, cache_dir=cache)
    assert (len(run.failed), run.stopped_by, run.exit_code) == (1, None, 1), "one is left alone"
    again = made.retry(error_type="diverged", inline=True, cache_dir=cache)
    assert (len(again.failed), again.exit_code) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "by"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 3, "SIGTERM")],
    ids=["ctrl-c", "terminated"],
)
def test_an_interrupted_trial_leaves_its_checkpoint(
    tmp_path: Path, number: signal.Signals, code: int, by: str
) -> None:
    save_world(tmp_path, seeds=[1, 2], recipe=RECIPE | {"epochs": 400}, checkpoint_every="1s")
    checkpoints = tmp_path / "lp-sweep-store" / "checkpoints"
    with started(tmp_path, "sweep.yaml", "k=0", "--inline") as process:
        wait_for(lambda: list(checkpoints.glob("[!.]*")), "a checkpoint", 200)
        process.process.send_signal(number)
        assert process.wait(60) == code
    assert f"stopped by {by}: 0 done in this run. Go on: lp-sweep run" in process.text()
    assert "Traceback" not in process.text()
    assert list(checkpoints.glob("*"))


@pytest.mark.slow
def test_a_run_that_a_batch_system_warns_leaves_a_checkpoint_and_no_claim(tmp_path: Path) -> None:
    """As Slurm does with `--signal=B:USR1@120`: the interval of checkpoints is far longer."""
    save_world(tmp_path, seeds=[1], recipe=RECIPE | {"epochs": 20_000}, checkpoint_every="1h")
    store = tmp_path / "lp-sweep-store"
    with started(tmp_path, "sweep.yaml", "k=0", "--inline") as process:
        wait_for(lambda: list(store.glob("underway/[!.]*")), "a training", 200)
        began = time.monotonic()
        process.process.send_signal(signal.SIGUSR1)
        assert process.wait(60) == 3
        assert time.monotonic() - began < 32
    assert "stopped by SIGUSR1: 0 done in this run. Go on: lp-sweep run" in process.text()
    assert len([*store.glob("checkpoints/[!.]*")]) == 1
    assert not [*store.glob("runs/[!.]*")], "claims end with the announcement of their run"
