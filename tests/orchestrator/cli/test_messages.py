"""The messages that users meet most, with their exit codes, as one file: tests/messages.golden.

After a change of wording write it again, and read the diff:

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
COMMANDS = """\
plan nope.yaml
plan sweep.yaml tasc=rte
plan bad.yaml --data-dir glue
plan two.yaml --data-dir glue
plan --data-dir nowhere
plan --data-dir glue --store bad.yaml
plan --stoer s
plan --seed 3
plan task=rte
plann
train
sql 'SELECT 1'
run --data-dir nowhere
run bad.yaml
resume bad.yaml
status
status --store store --sweep dmo
status --store bad.yaml
query
query '' --store store
query 'SELECT 1' --store x
query 'SELEC 1' --store store
query 'SELECT nope FROM cells' --store store
query 'DROP VIEW cells' --store store
query 'SELECT 1' --store store --sweep x
table taks --store store
table tasks --store x
table tasks --store store --format markdwn
table min-layers --store store --within one
show t1-nope --store store
logs t1-nope --store store
export t1-nope --store store --out out
export --store store --out out
paper --store x
report --store x
init sweep.yaml
init no/where.yaml
cluster int
cluster init
"""


def said(world: Path, line: str) -> str:
    """The command, what it writes to stderr, and its exit code."""
    done = sweep(*shlex.split(line), cwd=world, env={"COLUMNS": "200"})
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    text = done.stderr.replace(str(world), "FOLDER")
    text = re.sub(r"(Usage: |Try ').*?lp-sweep", r"\1lp-sweep", text)  # pytest's own name
    text = re.sub(r"(\[OPTIONS\])\n\s+", r"\1 ", text)  # wrapped after that name
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    return f"$ lp-sweep {line}\n{text}[exit code {done.returncode}]\n"


def test_messages(tmp_path: Path) -> None:
    world = command_line_world(tmp_path)
    (world / "bad.yaml").write_text(PLAIN.replace("seeds", "sedes"))
    (world / "two.yaml").write_text(PLAIN.replace("rte", "rtee").replace("top", "botom"))
    found = "\n".join(said(world, line) for line in COMMANDS.splitlines())
    if os.environ.get("LP_SWEEP_TEST_GOLDEN") == "write":
        GOLDEN.write_text(found, encoding="utf-8")
    expected = GOLDEN.read_text(encoding="utf-8")
    changed = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "messages.golden", "now", lineterm=""
    )
    if found != expected:
        pytest.fail("\n".join([*changed, (__doc__ or "").strip()]), pytrace=False)
