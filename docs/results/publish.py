"""Adds the records of a finished sweep to records/, and writes the tables of README.md again.

python docs/results/publish.py STORE NAME... copies the records of the sweeps NAME from STORE,
without paths of this machine. Without arguments, it only writes the tables. Run it in the
repository's root. First add NAME.yaml, and a section to README.md with the commands and a line
`| x |` for each table.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact

RESULTS = Path("docs/results")
RECORDS = RESULTS / "records"
IDS = {  # the tables that are copied: predictions are also those of deployments
    "trials": "trial_id",
    "profiles": "profile_id",
    "deployments": "deployment_id",
    "predictions": "trial_id",
}
MOST_LOGITS = 20  # per row; logits of every word, or of 28 emotions, would fill the folder
PRINTS = re.compile(r"lp-sweep (?:table|query) .*--format markdown")


def publish(store: Path, names: list[str]) -> None:
    """Copies the records. Raises SystemExit if a record still names a folder of this machine."""
    target = Store(str(RECORDS))
    there = {id_ for table in IDS for id_ in _ids(RECORDS / table, IDS[table])}
    wanted: set[str] = set()
    for name in names:
        cells = pq.read_table(store / "sweeps" / f"{name}.parquet")
        wanted |= {
            id_ for column in ("trial_id", "profile_id") for id_ in cells[column].to_pylist()
        }
        target.put("sweeps", name, _with(cells, "overrides", None))
        text = (store / "sweeps" / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[2]
        asked = f'# lp-sweep: {{"--file": "{RESULTS}/{name}.yaml", "--data-dir": "GLUE"}}\n'
        (RECORDS / "sweeps" / f"{name}.yaml").write_text(asked + text, encoding="utf-8")
    for table in IDS:
        for file in sorted((store / table).glob("*.parquet")):
            rows = pq.read_table(file)
            of = {*rows[IDS[table]].to_pylist(), *rows["trial_id"].to_pylist()} - {None}
            speed = table == "profiles" and rows["measure"][0].as_py() == "speed"
            if file.stem in there or not (speed or of & (wanted | there)):
                continue
            if "command" in rows.column_names:
                ran = str(rows["command"][0])
                name = next((name for name in names if f"{name}.yaml" in ran), None)
                command = name and f"lp-sweep run {RESULTS}/{name}.yaml --inline --data-dir GLUE"
                rows = _with(rows, "command", command)
                if found := re.findall(r"'/[a-z]+/[^']*'", str(rows.to_pylist())):
                    raise SystemExit(f"{file}: {found[0]} is a folder of this machine")
            if "scores" in rows.column_names:
                longest = pc.max(pc.list_value_length(rows["scores"])).as_py() or 0
                rows = _with(rows, "scores", None) if longest > MOST_LOGITS else rows
            target.put(table, file.stem, rows)
            wanted |= {file.stem} if table == "deployments" else set()
    print(compact(target))


def _ids(folder: Path, column: str) -> set[str]:
    if not folder.is_dir():
        return set()
    return set(pq.read_table(folder, columns=[column])[column].to_pylist())


def _with(rows: pa.Table, column: str, value: str | None) -> pa.Table:
    if column not in rows.column_names:
        return rows
    at, field = rows.column_names.index(column), rows.schema.field(column)
    return rows.set_column(at, field, pa.array([value] * len(rows), field.type))


def print_again(page: Path) -> None:
    """Replaces the tables after each block of commands by those that the commands print."""
    out: list[str] = []
    asked: list[str] = []
    old = False  # inside a table that was replaced
    for line in page.read_text(encoding="utf-8").split("\n"):
        if not line.startswith("|"):
            old = False
            out.append(line)
            asked += [line] if PRINTS.fullmatch(line) else []
        elif asked and not (out[-1].startswith("|") or old):
            old = True
            words = shlex.split(asked.pop(0))
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            out += [row for row in done.stdout.split("\n") if row.startswith("|")]
        elif not old:
            out.append(line)
    page.write_text("\n".join(out), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        publish(Path(sys.argv[1]), sys.argv[2:])
    print_again(RESULTS / "README.md")
