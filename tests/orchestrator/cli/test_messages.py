"""The messages that users meet most, with their exit codes, as one file: tests/messages.golden.

It is also the list of the commands: add one as a line `$ lp-sweep ...`. After that, or a change of
wording, write it again, and read the diff:

    LP_SWEEP_TEST_GOLDEN=write pytest tests/orchestrator/cli/test_messages.py
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.support.fake_records import command_line_world
from tests.support.program import sweep
from tests.support.sweepfiles import PLAIN

GOLDEN = Path(__file__).parents[2] / "messages.golden"
SEARCH = PLAIN.replace("[0, 2]", "all, until: min_layers")
FILES = {  # each is wrong in its way
    "bad.yaml": PLAIN.replace("seeds", "sedes"),
    "two.yaml": PLAIN.replace("rte", "rtee").replace("top", "botom"),
    "few.yaml": SEARCH.replace("min_layers", "min_layers, max_seeds: 3"),
    "others.yaml": f"{SEARCH}feed_forward: [none, top 2, all]\n",
    "huge.yaml": PLAIN.replace("42, 43", "0-9999").replace(
        "top, k: [0, 2]", "random, k: all, draws: 0-2"
    ),
}


def said(world: Path, line: str) -> str:
    """The command, what it writes to stderr, and its exit code. It leaves nothing behind."""
    variable, _, command = line.rpartition("lp-sweep ")
    name, _, value = variable.strip().partition("=")
    env = {"COLUMNS": "200"} | ({name: value} if name else {})
    before = {path: path.stat().st_mtime_ns for path in world.rglob("*")}
    done = sweep(*shlex.split(command), cwd=world, env=env)
    assert {path: path.stat().st_mtime_ns for path in world.rglob("*")} == before, line
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    text = done.stderr.replace(str(world), "FOLDER")
    text = re.sub(r"(Usage: |Try ').*?lp-sweep", r"\1lp-sweep", text)  # pytest's own name
    text = re.sub(r"(\[OPTIONS\])\n\s+", r"\1 ", text)  # wrapped after that name
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return f"$ {variable}lp-sweep {command}\n{text}[exit code {done.returncode}]\n"


def test_messages(tmp_path: Path) -> None:
    world = command_line_world(tmp_path)
    for name, text in FILES.items():
        (world / name).write_text(text)
    for name, alike in (("data", {}), ("one", {"verdict": "good"}), ("same", {"user": "u"})):
        rows = [
            {"text": f"text {i}", "verdict": "bad" if i % 3 else "good", "user": f"u{i % 10}"}
            | {"name": f"n{i}"}
            | alike
            for i in range(30)
        ]
        lines = [",".join(row) for row in (rows[0], *(row.values() for row in rows))]
        (world / f"{name}.csv").write_text("\n".join(lines) + "\n")
    expected = GOLDEN.read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.*)$", expected, re.MULTILINE)
    found = "\n".join(said(world, line) for line in commands)
    if os.environ.get("LP_SWEEP_TEST_GOLDEN") == "write":
        expected = found
        GOLDEN.write_text(found, encoding="utf-8")
    changed = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "messages.golden", "now", lineterm=""
    )
    if found != expected:
        pytest.fail("\n".join([*changed, (__doc__ or "").strip()]), pytrace=False)
