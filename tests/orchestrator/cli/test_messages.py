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
plan few.yaml --data-dir glue
plan others.yaml --data-dir glue
plan huge.yaml --data-dir glue
plann
train
sql 'SELECT 1'
run --data-dir nowhere
run bad.yaml
LP_SWEEP_MAX_FAILURES=0 lp-sweep run
LP_SWEEP_MIRROR=mlflo lp-sweep run
LP_SWEEP_OFFLINE=maybe lp-sweep plan
run --store ''
run --events --dry-run
run --inline --address auto
resume bad.yaml
retry sweep.yaml --events --json
status
status --store store --sweep dmo
status --store bad.yaml
status --store store --every 5s
status --store store --watch --every soon
status --store store --watch --sweep nope
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
LP_SWEEP_FORMAT=marcdown lp-sweep table tasks
table tasks --store store --model brt
table tasks --store store --strategy topp
table speed --store store --strategy top
table setups --store store --model bert
table min-layers --store store --within one
show t1-nope --store store
show '' --store store
logs t1-nope --store store
export t1-nope --store store --out out
export --store store --out out
export t1-0 --best --task mood --out out
export --best --out out
export t1-0 --private --out out
export t1-0 --push-to-hub me/x --offline --out out
paper --store x
paper --store store --table 7
paper --store store --model bert
paper --store store --model =bert-base-cased
paper --store store --model mine=
paper --store store --model mine=bert-base-cased
paper --store store --model bert=bort
mirror --to wndb --store store
report --store x
quickstart --out glue
help tabel
init sweep.yaml
init no/where.yaml
init new.yaml --data data.csv
init new.yaml --data data.csv --text texts --label verdict
init new.yaml --data data.csv --text text --label verdict --group usr
init new.yaml --data none.csv --text text --label verdict
init new.yaml --data data.xlsx --text text --label verdict
init new.yaml --label verdict
init new.yaml --data one.csv --text text --label verdict
init new.yaml --data same.csv --text text --label verdict --group user
init new.yaml --data data.csv --text text --label text
init new.yaml --data data.csv --text text --text text --label verdict
init new.yaml --data data.csv --text text --label verdict --kind retrieval
init new.yaml --data .
init new.yaml --data data.csv --text text --label name
prune ./folder/of/a/model --offline --out out
prune ./folder/of/a/model --offline --out out --strategy top --layers 1
prune ./folder/of/a/model --offline --out out --layers 1 --k 2
prune ./folder/of/a/model --offline --out out --layers 1,1
prune ./folder/of/a/model --offline --out out --layers 0,13
prune ./folder/of/a/model --offline --out out --strategy top
prune ./folder/of/a/model --offline --out out --strategy top --k 12
prune ./folder/of/a/model --offline --out out --strategy contribution --k 2
"""

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
    found = "\n".join(said(world, line) for line in COMMANDS.splitlines())
    if os.environ.get("LP_SWEEP_TEST_GOLDEN") == "write":
        GOLDEN.write_text(found, encoding="utf-8")
    expected = GOLDEN.read_text(encoding="utf-8")
    changed = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "messages.golden", "now", lineterm=""
    )
    if found != expected:
        pytest.fail("\n".join([*changed, (__doc__ or "").strip()]), pytrace=False)
