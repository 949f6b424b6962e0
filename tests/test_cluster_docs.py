"""What docs/cluster.md shows of a plan's price is what the command beside it prints."""

from __future__ import annotations

import re
from pathlib import Path

from tests.test_cli import sweep

ROOT = Path(__file__).resolve().parent.parent


def test_the_price_of_the_papers_sweep(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = text.partition("## What it costs")[2]
    file, shown = re.findall(r"```(?:yaml)?\n(.*?)```", section, re.DOTALL)[:2]
    (tmp_path / "cluster.yaml").write_text(file, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command, _, output = shown.partition("\n")
    assert command.startswith("$ lp-sweep ")
    arguments = command.removeprefix("$ lp-sweep ").partition(" | ")[0].split()
    done = sweep(*arguments, cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line in output.splitlines()]
    assert "\n".join(lines) + "\n" == output
    assert [line.split()[0] for line in lines] == ["estimate", "cluster", "price"]
