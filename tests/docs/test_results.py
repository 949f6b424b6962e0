"""The tables in docs/results are what their commands print from the records next to them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.everyday import few
from tests.support.program import sweep

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^(lp-sweep (?:table|query) .*--format markdown)$", TEXT, re.MULTILINE)
assert len(COMMANDS) > 30


@pytest.mark.parametrize("command", few(COMMANDS, 2))
def test_a_table_is_what_its_command_prints(command: str) -> None:
    done = sweep(*shlex.split(command)[1:], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    table = "\n".join(line for line in done.stdout.splitlines() if line.startswith("|"))
    assert table
    assert table in TEXT
