"""docs/sweep-file.md is the schema, and says something of every key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.orchestrator.sweepfile.reference import reference
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from tests.support.program import sweep

PAGE = Path(__file__).parents[3] / "docs" / "sweep-file.md"
SCHEMA = SweepSpec.model_json_schema()
PARTS = {"the file": SCHEMA, **SCHEMA["$defs"]}


def test_the_page_is_what_the_command_prints(tmp_path: Path) -> None:
    assert PAGE.read_text(encoding="utf-8") == sweep("schema", "--markdown", cwd=tmp_path).stdout


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_key_is_described_and_on_the_page(part: dict[str, Any]) -> None:
    page = reference()
    for name, field in part["properties"].items():
        assert field.get("description"), name
        assert f"| `{name}` |" in page


def test_the_file_of_the_page_is_right(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", reference(), re.DOTALL)
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    assert load_sweep(tmp_path / "sweep.yaml").spec.name == "demo"
