"""The whole path on a real local Ray: run, run again, amend, fail, interrupt, go on."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.store import Store
from tests.toyworld import RECIPE, save_world

pytestmark = pytest.mark.ray

CONTRIBUTION = {"name": "contribution", "threshold": [0.2, 0.21, 0.999]}


def lp_sweep(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "lp_sweep.orchestrator.cli", *map(str, arguments)]


def run(*arguments: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        lp_sweep(*arguments),
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment(cwd),
        timeout=300,
    )
    assert done.returncode == code, done.stderr
    return done


def environment(cwd: Path) -> dict[str, str]:
    settings = {"LP_SWEEP_CACHE_DIR": str(cwd / "cache"), "RAY_worker_niceness": "0"}
    return os.environ | settings | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep of two seeds, two rules and a deferred strategy that has been run."""
    folder = tmp_path_factory.mktemp("a 'sweep' with  spaces")
    save_world(
        folder,
        seeds=[1, 2],
        strategies=[{"name": "top", "k": [0, 2]}, {"name": "bottom", "k": [0, 1]}, CONTRIBUTION],
    )
    run("run", "sweep.yaml", cwd=folder)
    return folder


def record_path(store: Store, name: str) -> Path:
    return Path(store.location, "trials", f"{name}.parquet")


def cells(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    plan = json.loads(run("plan", "sweep.yaml", *overrides, "--json", cwd=folder).stdout)
    return list(plan["cells"])


def test_every_cell_is_done(finished: Path) -> None:
    made = cells(finished)
    assert len(made) == 2 * (2 + 2 + 3)
    assert {cell["state"] for cell in made} <= {"done", "impossible"}
    store = Store(finished / "lp-sweep-store")
    wanted = {cell["trial_id"] for cell in made if cell["trial_id"]}
    assert store.names("trials") == store.names("predictions") == wanted
    assert len(store.names("profiles")) == 1


def test_shared_networks_are_trained_once(finished: Path) -> None:
    made = [cell for cell in cells(finished) if cell["trial_id"]]
    networks = {(tuple(cell["kept_layers"]), cell["seed"]) for cell in made}
    assert len(Store(finished / "lp-sweep-store").names("trials")) == len(networks) < len(made)


def test_a_finished_sweep_is_a_no_op(finished: Path) -> None:
    store = Store(finished / "lp-sweep-store")
    before = {name: record_path(store, name).stat().st_mtime for name in store.names("trials")}
    done = run("resume", "sweep.yaml", cwd=finished)
    assert "nothing was missing" in done.stderr
    assert before == {
        name: record_path(store, name).stat().st_mtime for name in store.names("trials")
    }


def test_tables_and_sql_of_a_real_run(finished: Path) -> None:
    rows = json.loads(
        run(
            "query",
            "SELECT strategy, k, count(*) AS n FROM cells WHERE score IS NOT NULL GROUP BY ALL",
            "--json",
            cwd=finished,
        ).stdout
    )
    assert {(row["strategy"], row["k"]): row["n"] for row in rows}["top", 2] == 2
    table = run("table", "min-layers", cwd=finished).stdout
    assert "of 4" in table
    predicted = run(
        "query",
        "SELECT t.trial_id, max(abs(t.last - p.right)) AS off FROM trials t JOIN (SELECT trial_id, "
        "avg((label = prediction)::int) AS right FROM predictions GROUP BY 1) p USING (trial_id) "
        "GROUP BY 1",
        "--json",
        cwd=finished,
    )
    assert all(row["off"] < 1e-9 for row in json.loads(predicted.stdout))


def test_workers_are_reused(finished: Path) -> None:
    """More trials than slots, and no more worker processes than slots did them."""
    store = Store(finished / "lp-sweep-store")
    records = store.read_all("trials").rows.to_pylist()
    slots = max(1, os.cpu_count() or 1)
    # a fresh process takes seconds to import torch: between trials of a reused one nothing does
    assert len(records) > slots
    starts = sorted(record["started_at"] for record in records)
    ends = sorted(record["ended_at"] for record in records)
    gaps = [
        (start - max(end for end in ends if end <= start)).total_seconds()
        for start in starts[slots:]
        if any(end <= start for end in ends)
    ]
    assert sorted(gaps)[len(gaps) // 2] < 2


def test_an_amended_sweep_trains_the_difference(finished: Path) -> None:
    store = Store(finished / "lp-sweep-store")
    before = store.names("trials")
    done = run("run", "sweep.yaml", "seed=1,2,3", "strategy=top", cwd=finished)
    assert "2 done in this run" in done.stderr
    added = store.names("trials") - before
    assert {store.read("trials", name)[0]["seed"] for name in added} == {3}


@pytest.mark.slow
def test_a_part_of_a_sweep_leaves_the_other_cells_listed(tmp_path: Path) -> None:
    save_world(tmp_path, seeds=[1, 2])
    run("run", "sweep.yaml", "seed=1", "k=0", cwd=tmp_path)
    run("run", "sweep.yaml", "seed=2", "k=0", cwd=tmp_path)
    status = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert (status[0]["cells"], status[0]["cells_done"]) == (2, 2)
    run("run", "sweep.yaml", cwd=tmp_path)
    status = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert (status[0]["cells"], status[0]["cells_done"]) == (4, 4)


@pytest.mark.slow
def test_a_record_that_a_crash_emptied_is_made_again(tmp_path: Path) -> None:
    save_world(tmp_path, strategies=[{"name": "top", "k": [0]}])
    run("run", "sweep.yaml", cwd=tmp_path)
    store = Store(tmp_path / "lp-sweep-store")
    path = record_path(store, next(iter(store.names("trials"))))
    path.write_bytes(b"")
    assert "1 done in this run" in run("run", "sweep.yaml", cwd=tmp_path).stderr
    assert path.stat().st_size > 0


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, 3, id="terminated", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_sweep_goes_on(tmp_path: Path, number: signal.Signals, code: int) -> None:
    save_world(tmp_path, seeds=list(range(4)), name="broken-off")
    log = tmp_path / "log.txt"
    with log.open("w") as stream:
        process = subprocess.Popen(
            lp_sweep("run", "sweep.yaml"),
            cwd=tmp_path,
            env=environment(tmp_path),
            stderr=stream,
            start_new_session=True,
            # a shell's background job inherits an ignored SIGINT; a terminal's job does not
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        wait_for(lambda: log.read_text().count("] done ") >= 2, process)
        process.send_signal(number)
        assert process.wait(60) == code, log.read_text()
    assert f"stopped by {number.name}" in log.read_text()
    assert "Traceback (most" not in log.read_text()
    store = Store(tmp_path / "lp-sweep-store")
    kept = {name: record_path(store, name).stat().st_mtime for name in store.names("trials")}
    assert 2 <= len(kept) < 8
    done = run("run", "sweep.yaml", cwd=tmp_path)
    told = re.search(r"(\d+) done in this run", done.stderr)
    assert told
    assert int(told[1]) <= 8 - len(kept)  # a worker may record its trial after the driver has ended
    assert len(store.names("trials")) == 8
    assert (
        kept.items()
        <= {
            name: record_path(store, name).stat().st_mtime for name in store.names("trials")
        }.items()
    )


@pytest.mark.parametrize("seconds", [0.0, 1.5], ids=["at once", "while Ray starts"])
@pytest.mark.slow
def test_a_signal_while_ray_starts(tmp_path: Path, seconds: float) -> None:
    """Ray's own handler would end the process at once, with the number of the signal."""
    save_world(tmp_path)
    with (tmp_path / "log.txt").open("w") as stream:
        process = subprocess.Popen(
            lp_sweep("run", "sweep.yaml"), cwd=tmp_path, env=environment(tmp_path), stderr=stream
        )
        announced = tmp_path / "lp-sweep-store" / "runs"
        wait_for(lambda: list(announced.glob("*.json")), process)
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 3, (tmp_path / "log.txt").read_text()
    assert "stopped by SIGTERM" in (tmp_path / "log.txt").read_text()


@pytest.mark.slow
def test_a_lost_worker_is_a_failed_attempt_and_the_sweep_goes_on(tmp_path: Path) -> None:
    """A worker that dies at each try: the model's folder holds a file that kills its reader."""
    save_world(tmp_path, seeds=[1], strategies=[{"name": "top", "k": [0]}])
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'default_worker.py' in ' '.join(sys.orig_argv):\n"
        "    import importlib.abc\n"
        "    class Killer(importlib.abc.MetaPathFinder):\n"
        "        def find_spec(self, name, path=None, target=None):\n"
        "            if name == 'lp_sweep.trials.run':\n"
        "                os._exit(9)\n"
        "    sys.meta_path.insert(0, Killer())\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        lp_sweep("run", "sweep.yaml"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(tmp_path) | {"PYTHONPATH": str(tmp_path)},
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    assert "worker_lost" in done.stderr
    store = Store(tmp_path / "lp-sweep-store")
    rows = store.read_all("attempts").rows.to_pylist()
    assert {row["error_type"] for row in rows} == {"worker_lost"}
    assert sorted(row["final"] for row in rows) == [False, False, False, True]
    assert re.search("died|lost|exit", rows[0]["traceback"])


BREAKS = """
import importlib.abc, os, sys
class Breaks(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "lp_sweep.trials.finetune":
            raise RuntimeError("this node has a broken driver")
if os.environ.get("LP_SWEEP_TEST_BROKEN"):
    sys.meta_path.insert(0, Breaks())
"""


@pytest.mark.slow
def test_a_node_on_which_trials_fail_in_a_row_is_set_aside(tmp_path: Path) -> None:
    """Of two nodes one fails at each trial; the sweep is done on the other, complete."""
    from ray.cluster_utils import Cluster

    # long enough that the bad node fails thrice, each time in a new process, before all is done
    save_world(tmp_path, seeds=[1, 2, 3, 4], recipe=RECIPE | {"epochs": 25})
    (tmp_path / "sitecustomize.py").write_text(BREAKS, encoding="utf-8")
    broken = {"LP_SWEEP_TEST_BROKEN": "1", "PYTHONPATH": str(tmp_path)}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        cluster.add_node(num_cpus=1, num_gpus=1)
        cluster.add_node(num_cpus=1, num_gpus=1, env_vars=broken)
        done = run("run", "sweep.yaml", "--address", cluster.address, cwd=tmp_path)
    finally:
        cluster.shutdown()
    assert "is set aside: 3 different trials failed on it in a row" in done.stderr
    assert "8 done in this run" in done.stderr
    store = Store(tmp_path / "lp-sweep-store")
    assert len(store.names("trials")) == 8
    attempts = store.read_all("attempts").rows.to_pylist()
    assert all("broken driver" in row["traceback"] for row in attempts)


def diverging(folder: Path) -> None:
    """Six trials, of which each diverges."""
    recipe = {"learning_rate": 1e30, "epochs": 1, "batch_size": 16}
    save_world(folder, seeds=[1, 2, 3], recipe=recipe)


@pytest.mark.parametrize(
    ("options", "fewest", "most"),
    [
        pytest.param(["--fail-fast"], 1, 1, id="fail-fast"),
        pytest.param(["--max-failures", "2"], 2, 3, id="max-failures"),
    ],
)
@pytest.mark.slow
def test_a_limit_of_failures_stops_the_run(
    tmp_path: Path, options: list[str], fewest: int, most: int
) -> None:
    diverging(tmp_path)
    done = run("run", "sweep.yaml", *options, cwd=tmp_path, code=1)
    assert re.search(
        f"stopped after [{fewest}-{most}] failures. Go on with the rest: lp-sweep run", done.stderr
    )
    attempts = Store(tmp_path / "lp-sweep-store").read_all("attempts").rows
    assert fewest <= len(set(attempts["trial_id"].to_pylist())) <= most + 1


def test_failed_trials_do_not_stop_the_sweep_and_are_tried_again(tmp_path: Path) -> None:
    diverging(tmp_path)
    first = run("run", "sweep.yaml", cwd=tmp_path, code=1)
    assert first.stderr.count("(diverged)") == 6
    assert "Try the failed again: lp-sweep retry sweep.yaml --store " in first.stderr
    assert "Traceback (most" not in first.stderr
    store = Store(tmp_path / "lp-sweep-store")
    assert len(store.names("attempts")) == 6
    assert {cell["state"] for cell in cells(tmp_path)} == {"failed"}
    status = json.loads(run("status", "--json", cwd=tmp_path).stdout)
    assert status[0]["trials_failed"] == 6
    assert "failed" in run("table", "tasks", cwd=tmp_path).stdout
    again = run("run", "sweep.yaml", cwd=tmp_path, code=1)  # it would only diverge again
    assert "0 done in this run; of the sweep 6 have failed" in again.stderr
    assert len(store.names("attempts")) == 6
    trial = sorted(row["trial_id"] for row in store.read_all("attempts").rows.to_pylist())[0]
    run("retry", "sweep.yaml", trial[:12], cwd=tmp_path, code=1)
    assert len(store.names("attempts")) == 7
    run("retry", "sweep.yaml", "--type", "bug", cwd=tmp_path, code=1)
    assert len(store.names("attempts")) == 7
    logs = run("logs", trial, cwd=tmp_path).stdout
    assert logs.count("  diverged on ") == 2
    assert logs.count("DivergedError: ") == 2
    shown = json.loads(run("show", trial[:12], "--json", cwd=tmp_path).stdout)
    assert shown["id"] == trial
    assert shown["record"] is None
    assert len(shown["attempts"]) == 2
    command = shown["attempts"][-1]["command"]
    assert command == f"lp-sweep retry sweep.yaml {trial[:12]}"


def test_a_cluster_is_joined_and_runs_one_trial_per_gpu(tmp_path: Path) -> None:
    """Two nodes, the head without a GPU, the other with two (fake) ones: two slots there."""
    from ray.cluster_utils import Cluster

    save_world(tmp_path, seeds=[1, 2])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0})
    try:
        cluster.add_node(num_cpus=2, num_gpus=2)
        done = run("run", "sweep.yaml", "--address", cluster.address, cwd=tmp_path)
    finally:
        cluster.shutdown()
    assert "4 to do on 2 slots" in done.stderr
    assert "4 done in this run" in done.stderr


def test_a_limit_of_hours_stops_the_run(tmp_path: Path) -> None:
    save_world(tmp_path)
    done = run("run", "sweep.yaml", "--max-hours", "0", "--json", cwd=tmp_path, code=3)
    assert re.search(r"this run has used 0\.\d\d hours; the next one counts anew", done.stderr)
    assert "stopped by max-hours: 0 done in this run. Go on: lp-sweep run sweep.yaml" in done.stderr
    assert done.stderr.splitlines()[-1].endswith(" --max-hours 0.0")
    told = json.loads(done.stdout)
    assert told["stopped_by"] == "max-hours"
    assert told["used"]["hours"] > 0
    assert "2 done in this run" in run("run", "sweep.yaml", "--max-hours", "9", cwd=tmp_path).stderr


def test_an_address_without_a_cluster_is_a_preflight_error(tmp_path: Path) -> None:
    save_world(tmp_path)
    done = run("run", "sweep.yaml", "--address", "127.0.0.1:1", cwd=tmp_path, code=4)
    assert "no Ray at 127.0.0.1:1" in done.stderr
    assert "Check --address or RAY_ADDRESS" in done.stderr


@pytest.mark.slow
def test_a_node_out_of_memory_ends_the_trial_and_not_the_sweep(tmp_path: Path) -> None:
    """Ray's memory monitor kills the workers at once, each time: tried with three smaller
    micro-batches, then failed; `run` leaves it alone then, `retry` does not."""
    save_world(tmp_path, seeds=[1], strategies=[{"name": "top", "k": [0]}])
    pressed = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "50"}
    done = subprocess.run(
        lp_sweep("run", "sweep.yaml"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(tmp_path) | pressed,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    assert "(out_of_memory)" in done.stderr
    assert "Traceback (most" not in done.stderr
    attempts = Store(tmp_path / "lp-sweep-store").read_all("attempts").rows.to_pylist()
    assert {row["error_type"] for row in attempts} == {"out_of_memory"}
    assert sorted(row["final"] for row in attempts) == [False, False, False, True]
    again = run("run", "sweep.yaml", cwd=tmp_path, code=1)
    assert "0 done in this run; of the sweep 1 have failed" in again.stderr
    run("retry", "sweep.yaml", "--type", "out_of_memory", cwd=tmp_path)  # memory is there again
    assert json.loads(run("status", "--json", cwd=tmp_path).stdout)[0]["trials_failed"] == 0


@pytest.mark.slow
def test_a_terminal_gets_the_live_display(tmp_path: Path) -> None:
    """On a real pseudo-terminal: slots, counts and the end; stdout stays clean."""
    save_world(tmp_path)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        lp_sweep("run", "sweep.yaml", "--json"),
        cwd=tmp_path,
        env=environment(tmp_path) | {"TERM": "xterm", "COLUMNS": "120", "LINES": "30"},
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    screen = b""
    with contextlib.suppress(OSError):  # the terminal ends with the process
        while part := os.read(ours, 65536):
            screen += part
    output, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0, screen.decode()
    shown = screen.decode()
    for text in ("slot 0", "ETA", "running", "2 done in this run"):
        assert text in shown, text
    assert json.loads(output)["totals"]["trials_done"] == 2
    assert json.loads(output)["done"] == 2


def wait_for(condition: Any, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        assert process.poll() is None, "ended too early"
        time.sleep(0.1)
    raise AssertionError("waited in vain")
