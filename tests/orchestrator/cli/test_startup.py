"""A command that only reads loads few modules, so it starts in a fraction of a second."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.fake_records import store_with_scores
from tests.support.sweepfiles import make_inputs

# what no driver needs: a mistake is reported without the seconds that these take to load
HEAVY = ["torch", "ray", "transformers", "datasets", "sklearn", "mlflow"]
READING = [*HEAVY, "pandas", "yaml", "scipy"]
AT = ["--store", "store"]
# in this order: what one has loaded the next ones may need
COMMANDS = [
    (["--help"], [*READING, "numpy", "pyarrow", "duckdb"]),
    (["status", *AT, "--json"], READING),
    (["table", "tasks", *AT, "--json"], READING),
    (["schema"], HEAVY),
    (["init", "new.yaml"], HEAVY),
    (["plan", "sweep.yaml", "--data-dir", "glue", "--json"], HEAVY),
    (["run", "sweep.yaml", "--data-dir", "glue", "--dry-run"], HEAVY),
    (["query", "SELECT count(*) FROM cells", *AT], HEAVY),
    (["table", "min-layers", *AT], HEAVY),
]
_CODE = """
import json, sys
from lp_sweep.orchestrator.cli.__main__ import main
def check(words, not_needed):
    assert not {*not_needed} & {*sys.modules}, (words, {*not_needed} & {*sys.modules})
commands = json.loads(sys.argv[1])
for words, not_needed in commands:
    sys.argv = ["lp-sweep", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
    check(words, not_needed)
import lp_sweep.orchestrator.service.run, lp_sweep.orchestrator.engine.driver
check("a driver", not_needed)
import pyarrow as pa
assert pa.table({"a": [1, 2]}).to_pandas()["a"].sum() == 3, "who needs pandas later has it"
"""


def test_what_is_not_needed_is_not_imported(tmp_path: Path) -> None:
    make_inputs(tmp_path)
    store_with_scores(tmp_path)
    code = [sys.executable, "-c", _CODE, json.dumps(COMMANDS)]
    done = subprocess.run(code, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
