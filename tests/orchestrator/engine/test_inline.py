"""`--inline`: the same queue in one process, without Ray."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lp_sweep import Sweep
from lp_sweep.orchestrator.cli.store import states_text
from lp_sweep.orchestrator.service.store import sweep_states
from lp_sweep.storage import underway
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.store import Store
from tests.support.program import sweep
from tests.support.toyworld import RECIPE, save_world

SHORT = RECIPE | {"epochs": 1}
# a machine on which Ray is not installed
_WITHOUT_RAY = """
import importlib.abc, sys
class Without(importlib.abc.MetaPathFinder):
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            return None
        return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from lp_sweep.orchestrator.cli.__main__ import main
main()
"""


def lp_sweep(
    folder: Path, *words: str, program: str = _WITHOUT_RAY, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        input=typed,
        env=os.environ | {"LP_SWEEP_CACHE_DIR": str(folder / "cache")},
        timeout=300,
    )


@pytest.mark.slow
def test_the_quickstart_needs_no_ray(tmp_path: Path) -> None:
    """And goes on in the folder that it has written."""
    small = ("task=toy-sentiment", "seed=1", "strategy=top", "k=4")  # of no speed
    short = ("recipe.epochs=1", "recipe.limit_train=32")
    done = lp_sweep(tmp_path, "quickstart", *small, *short, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["totals"]["trials_done"] == 1
    folder = tmp_path / "lp-sweep-quickstart"
    held = {"README.md", "data", "lp-sweep-store", "model", "sweep.yaml"}
    assert {path.name for path in folder.iterdir()} == held
    again = lp_sweep(folder, "run", *("sweep.yaml", *small, *short), "--inline")
    assert "nothing was missing" in again.stderr, "its own store is the default there"
    assert "nothing was missing" in lp_sweep(tmp_path, "quickstart", *small, *short).stderr


def test_the_quickstart_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sweep.yaml").write_text("name: mine")
    done = lp_sweep(tmp_path, "quickstart", "--out", "mine")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"mine exists.*--out", done.stderr)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["sweep.yaml"]


def test_a_sweep_runs_to_its_end_where_ray_is_not_installed(tmp_path: Path) -> None:
    """With a profile before the trials that wait for it."""
    contribution = {"name": "contribution", "threshold": [0.02, 0.1, 0.2, 0.999]}
    save_world(tmp_path, strategies=[{"name": "top", "k": [0, 2]}, contribution], recipe=SHORT)
    done = lp_sweep(tmp_path, "run", "sweep.yaml", "--inline", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    totals = told["totals"]
    assert (totals["cells_deferred"], totals["cells_pending"]) == (0, 0)
    assert (totals["profiles_done"], told["stopped_by"]) == (1, None)
    assert re.search("^mood: (needs|keep all|no answer)", done.stderr, re.MULTILINE)
    assert "lp-sweep report --out report.html" in done.stderr
    store = Store(tmp_path / "lp-sweep-store")
    assert len(store.names("trials")) == totals["trials"] > 1
    assert "nothing was missing" in lp_sweep(tmp_path, "resume", "--inline").stderr


def test_without_ray_a_run_names_inline(tmp_path: Path) -> None:
    save_world(tmp_path)
    done = lp_sweep(tmp_path, "run", "sweep.yaml")
    assert (done.returncode, done.stdout) == (4, "")
    [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.search(r"Ray is not installed.*--inline", error)
    assert "Traceback" not in done.stderr


def test_a_full_model_that_learns_nothing_is_told_and_can_end_the_run(tmp_path: Path) -> None:
    """At a rate of nearly 0, and with labels of which one is far the most common."""
    save_world(
        tmp_path, recipe=SHORT | {"learning_rate": 1e-12}, strategies=[{"name": "top", "k": [0, 2]}]
    )
    words = ("run", "sweep.yaml", "--inline", "--stop-if-nothing-learned")
    done = sweep(*words, cwd=tmp_path, env={"LP_SWEEP_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 3, done.stderr
    assert re.search(
        r"note .*learned nothing on mood.*Try .*recipe\.(epochs|learning_rate)", done.stderr
    )
    assert "a full model learned nothing" in done.stderr
    assert "--stop-if-nothing-learned" not in done.stderr.rpartition("go on as it is")[2]
    store = Store(tmp_path / "lp-sweep-store")
    kept = store.read_all("trials", columns=["k"]).rows["k"].to_pylist()
    assert set(kept) == {0}


def test_status_tells_how_far_a_long_trial_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at in the middle of a training, as any other process sees it."""
    save_world(tmp_path, recipe=SHORT, strategies=[{"name": "top", "k": [0]}], seeds=[1])
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
    assert re.search(r"mood, seed 1: step \d+ of \d+, loss \d\.\d+, 0:\d\d left", text)
    [run] = plain["running"]
    [how_far] = run["underway"].values()
    assert 0 < how_far["step"] <= how_far["steps"]
    assert not Store(tmp_path / "lp-sweep-store").texts(underway.FOLDER)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--address", "auto"], "--address"),
        (["--cluster", "cluster.yaml"], "--cluster"),
        (["--detach"], "--detach"),
        (["--max-cost", "3"], "--max-cost"),
    ],
)
def test_what_needs_a_cluster_is_refused(tmp_path: Path, words: list[str], option: str) -> None:
    save_world(tmp_path)
    done = sweep("run", "sweep.yaml", "--inline", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert re.search(f"--inline.*{option}", done.stderr)


def test_what_a_shell_says_of_all_runs_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_world(tmp_path, recipe=SHORT, strategies=[{"name": "top", "k": [0]}])
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    cache = {"LP_SWEEP_CACHE_DIR": str(tmp_path / "cache")}
    env = cache | {"LP_SWEEP_CLUSTER": "./no-such.yaml", "LP_SWEEP_MAX_COST": "3.0"}
    words = ("run", "sweep.yaml", "--inline")
    done = sweep(*words, "--fail-fast", "--max-hours", "0", cwd=tmp_path, env=env)
    assert done.returncode == 3, done.stderr
    again = re.search(r"Go on: (.*)", done.stderr)
    assert again
    assert "--inline" in again[1]
    assert not re.search("--(address|cluster|max-cost)", again[1])
    assert sweep(*words, cwd=tmp_path, env=env).returncode == 0


@pytest.mark.slow
def test_breakpoint_in_a_trial_opens_the_debugger(tmp_path: Path) -> None:
    save_world(tmp_path, recipe=SHORT, strategies=[{"name": "top", "k": [0]}])
    stop = "import lp_sweep.trials.worker.run as run\nreal = run.run_trial\n"
    stop += (
        "def stopped(*given):\n    breakpoint()\n    return real(*given)\nrun.run_trial = stopped\n"
    )
    program = stop + "from lp_sweep.orchestrator.cli.__main__ import main\nmain()\n"
    words = ("run", "sweep.yaml", "--inline", "--json")
    done = lp_sweep(tmp_path, *words, program=program, typed="p 6 * 7\nc\n")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\(Pdb\) .*42", done.stderr, re.DOTALL)
    assert json.loads(done.stdout)["done"] == 1  # the debugger's words are not among the data


def test_from_python(tmp_path: Path) -> None:
    save_world(tmp_path, recipe=SHORT | {"learning_rate": 1e30}, seeds=[1, 2])
    made = Sweep.from_yaml(tmp_path / "sweep.yaml", "k=0", store=tmp_path / "store")
    with pytest.raises(SpecError, match=r"--inline.*--address"):
        made.run(inline=True, address="auto")
    run = made.run(inline=True, fail_fast=True, cache_dir=tmp_path / "cache")
    assert (run.done, run.stopped_by, run.exit_code) == (0, "failures", 1)
    assert list(run.failed.values()) == ["diverged"]
    run = made.run(inline=True, cache_dir=tmp_path / "cache")  # the one is left alone
    assert (len(run.failed), run.stopped_by, run.exit_code) == (1, None, 1)
    again = made.retry(error_type="diverged", inline=True, cache_dir=tmp_path / "cache")
    assert (len(again.failed), again.exit_code) == (2, 1)
    assert len(Store(tmp_path / "store").names("attempts")) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 3, id="terminated"),
    ],
)
def test_an_interrupted_sweep_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    save_world(tmp_path, seeds=[1, 2], recipe=RECIPE | {"epochs": 400}, checkpoint_every="1s")
    words = ("sweep.yaml", "k=0", "--inline")
    with (tmp_path / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lp_sweep.orchestrator.cli", "run", *words],
            cwd=tmp_path,
            env=os.environ | {"LP_SWEEP_CACHE_DIR": str(tmp_path / "cache")},
            stderr=log,
            # a shell's background job inherits an ignored SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        checkpoints = tmp_path / "lp-sweep-store" / "checkpoints"
        end = time.monotonic() + 200
        while not list(checkpoints.glob("[!.]*")) and time.monotonic() < end:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(60) == code
    text = (tmp_path / "log.txt").read_text()
    by = "Ctrl-C" if number == signal.SIGINT else number.name
    assert f"stopped by {by}: 0 done in this run. Go on: lp-sweep run" in text
    assert "Traceback" not in text
    assert list(checkpoints.glob("*"))  # the next run goes on from there
