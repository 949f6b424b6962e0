"""The whole path on a real local Ray: run, ask, run again."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.store import Store
from tests.support.program import command, environment, record_path, run
from tests.support.toyworld import save_world

pytestmark = pytest.mark.ray

CONTRIBUTION = {"name": "contribution", "threshold": [0.2, 0.21, 0.999]}
SCORED = "SELECT strategy, k, count(*) AS n FROM cells WHERE score IS NOT NULL GROUP BY ALL"
OFF = """
SELECT t.trial_id, max(abs(t.last - p.right)) AS off FROM trials t
JOIN (SELECT trial_id, avg((label = prediction)::int) AS right FROM predictions GROUP BY 1) p
USING (trial_id) GROUP BY 1
"""


def answer(folder: Path, *words: str) -> Any:
    return json.loads(run(*words, "--json", cwd=folder).stdout)


def test_a_sweep_is_run_asked_and_run_again(tmp_path: Path) -> None:
    """Two seeds, two rules and a strategy that waits for a profile."""
    folder = tmp_path / "a 'sweep' with  spaces"
    folder.mkdir()
    strategies = [{"name": "top", "k": [0, 2]}, {"name": "bottom", "k": [0, 1]}, CONTRIBUTION]
    save_world(folder, seeds=[1, 2], strategies=strategies)
    run("run", "sweep.yaml", cwd=folder)
    cells = answer(folder, "plan", "sweep.yaml")["cells"]
    assert len(cells) == 2 * (2 + 2 + 3)
    assert {cell["state"] for cell in cells} <= {"done", "impossible"}
    store = Store(folder / "lp-sweep-store")
    wanted = {cell["trial_id"] for cell in cells if cell["trial_id"]}
    assert store.names("trials") == store.names("predictions") == wanted
    assert len(store.names("profiles")) == 1

    rows = answer(folder, "query", SCORED)
    assert {(row["strategy"], row["k"]): row["n"] for row in rows}["top", 2] == 2
    assert "of 4" in run("table", "min-layers", cwd=folder).stdout
    assert all(row["off"] < 1e-9 for row in answer(folder, "query", OFF))

    before = {name: record_path(store, name).stat().st_mtime for name in wanted}
    assert "nothing was missing" in run("resume", "sweep.yaml", cwd=folder).stderr
    assert before == {name: record_path(store, name).stat().st_mtime for name in wanted}


@pytest.mark.slow
def test_a_terminal_gets_the_live_display(tmp_path: Path) -> None:
    """On a real pseudo-terminal: slots, counts and the end; stdout stays clean."""
    save_world(tmp_path)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("run", "sweep.yaml", "--json"),
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
