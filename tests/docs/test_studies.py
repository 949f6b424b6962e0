"""The tables of docs/studies are what their commands print from the records next to them, and the
numbers in its sentences are in these tables."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.everyday import few
from tests.support.program import sweep

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "studies").glob("*.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
COMMANDS = re.findall(r"^(lp-sweep \w+ .*--format markdown)$", TEXT, re.MULTILINE)
SCRIPTS = re.findall(r"^python (docs/studies/\w+\.py)$", TEXT, re.MULTILINE)
assert len(COMMANDS) > 3
assert len(SCRIPTS) > 1


@pytest.mark.parametrize("command", few(COMMANDS, 2))
def test_a_table_is_what_its_command_prints(command: str) -> None:
    done = sweep(*shlex.split(command)[1:], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert table_of(done.stdout) in TEXT


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_table_is_what_its_script_prints(script: str) -> None:
    run = [sys.executable, ROOT / script]
    done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=ROOT)
    assert table_of(done.stdout) in TEXT


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_number_in_a_sentence_stands_in_a_table(page: Path) -> None:
    """Only the tables below a command count: the command printed them."""
    text = page.read_text(encoding="utf-8")
    block = r"^```\n(?:(?!```).*\n)+```\n\n((?:\|.*\n)+)"  # a command and its table
    tables, rest = (
        re.findall(block, text, re.MULTILINE),
        re.sub(block, "", text, flags=re.MULTILINE),
    )
    printed, said = (set(re.findall(r"\d+\.\d+", text)) for text in ("".join(tables), rest))
    assert printed
    assert not said - printed


def table_of(text: str) -> str:
    rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    assert rows
    return rows
