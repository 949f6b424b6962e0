"""The published format: docs/sweep-file.md and the JSON schema."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.orchestrator.sweepfile.reference import reference
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from tests.support.program import sweep
from tests.support.sweepfiles import PLAIN

PAGE = Path(__file__).parents[3] / "docs" / "sweep-file.md"
SCHEMA = json.loads(json.dumps(SweepSpec.model_json_schema()))


def test_the_page_is_what_the_command_prints_and_its_file_is_right(tmp_path: Path) -> None:
    assert PAGE.read_text(encoding="utf-8") == sweep("schema", "--markdown", cwd=tmp_path).stdout

    (text,) = re.findall(r"```yaml\n(.*?)```", reference(), re.DOTALL)
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    assert load_sweep(tmp_path / "sweep.yaml").spec.name == "demo"


def test_every_part_is_closed_and_every_key_is_described_on_the_page() -> None:
    page = reference()
    for part in (SCHEMA, *SCHEMA["$defs"].values()):
        assert part["additionalProperties"] is False, part["title"]
        for name, field in part["properties"].items():
            assert field.get("description"), name
            assert f"| `{name}` |" in page
    assert set(SCHEMA["required"]) == {"schema_version", "name", "models", "tasks", "strategies"}


@pytest.mark.parametrize(
    ("section", "value", "right"),
    [
        ("procedures", ["direct", {"name": "iterative", "epochs_per_layer": 3}], True),
        ("feed_forward", ["top 3", [9, 10], {"remove": "all", "second_norm": "drop"}], True),
        ("measure", {"probes": ["pretrained", "full"], "probe_rows": 10}, True),
        ("measure", {"probes": ["fool"]}, False),
        ("strategies", [{"name": "drop", "layers": [3, 5]}], True),
        ("strategies", [{"name": "drop", "layrs": [3, 5]}], False),
    ],
)
def test_the_json_schema_tells_right_from_wrong(section: str, value: Any, right: bool) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    content = yaml.safe_load(PLAIN) | {section: value}
    content["models"] = [{"id": name} for name in content["models"]]
    content["tasks"] = [{"name": name} for name in content["tasks"]]
    errors = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(content))
    assert (errors == []) is right, errors
