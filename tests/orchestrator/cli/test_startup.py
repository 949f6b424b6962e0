"""A command that only reads loads few modules, so it starts in a fraction of a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_records import FakeSweep

_NOT_NEEDED = ("pandas", "yaml", "torch", "ray", "transformers", "datasets", "scipy", "statsmodels")
_CODE = """
import sys
from lp_sweep.orchestrator.cli.__main__ import main
sys.argv = ["lp-sweep", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("loaded", *sys.modules, file=sys.stderr)
import pyarrow as pa
print("pandas of 3:", int(pa.table({"a": [1, 2]}).to_pandas()["a"].sum()), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["status", "table tasks"])
def test_what_is_not_needed_is_not_imported(tmp_path: Path, command: str) -> None:
    fake = FakeSweep(tmp_path / "store")
    fake.curve({0: 90.0})
    fake.publish()
    words = [*command.split(), "--store", str(tmp_path / "store"), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *words], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)
    loaded, of_pandas = done.stderr.splitlines()
    assert set(loaded.split()) & set(_NOT_NEEDED) == set()
    assert of_pandas == "pandas of 3: 3", "who needs it later has it"


def test_a_driver_computes_nothing() -> None:
    """A mistake is reported at once, without the seconds that these imports take; Ray is loaded
    only when there is something to train."""
    code = (
        "import sys, lp_sweep.orchestrator.service.run, lp_sweep.orchestrator.engine.driver;"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & {"torch", "ray", "transformers", "datasets"} == set()
