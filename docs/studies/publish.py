"""Adds the records of a sweep to records/, and writes the tables of the pages here again.

python docs/studies/publish.py STORE NAME... copies the records of the sweeps NAME from STORE,
without paths of this machine. Without arguments, it only writes the tables. Run it in the
repository's root. First add NAME.yaml, and a section to a page with the commands and a line
`| x |` for each table.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact, put_pack

STUDIES = Path("docs/studies")
RECORDS = STUDIES / "records"
TABLES = ("trials", "profiles", "deployments", "predictions")  # those of deployments come last
MOST_LOGITS = 20  # per row; logits of every word, or of 28 emotions, would fill the folder
PRINTS = re.compile(r"lp-sweep (?:table|query|paper) .*--format markdown|python \S+/\w+\.py")


def publish(folder: str, names: list[str]) -> None:
    """Copies the records. Raises SystemExit if a record still names a folder of this machine."""
    source, target = Store(folder), Store(RECORDS, create=True)
    wanted: set[str] = set()
    for name in names:
        cells = source.read("sweeps", name)
        ids = (cell[column] for cell in cells for column in ("trial_id", "profile_id"))
        wanted |= {id_ for id_ in ids if id_}
        target.put("sweeps", name, [cell | {"overrides": None} for cell in cells])
        text = (source.read_text("sweeps", f"{name}.yaml") or "").partition("\n")[2]
        asked = f'# lp-sweep: {{"--file": "{STUDIES}/{name}.yaml"}}\n'
        target.put_text("sweeps", f"{name}.yaml", asked + text)
    for table in TABLES:
        for id_ in sorted(source.names(table) - target.names(table)):
            rows = source.read(table, id_)
            of = {id_, *(row.get("trial_id") for row in rows)}
            recipe = rows[0].get("measure") == "recipe"  # saves its tries when a sweep goes on
            if not (recipe or of & wanted):
                continue
            rows = [_public(row, names) for row in rows]
            if found := re.findall(r"'/[a-z]+/[^']*'", str(rows)):
                raise SystemExit(f"{table} {id_}: {found[0]} is a folder of this machine")
            target.put(table, id_, rows)
            wanted |= {id_}
    print(compact(target))
    _pack_deployments(target)


def _pack_deployments(store: Store) -> None:
    """`compact` leaves them as they are, since a machine may measure them again."""
    for table in ("deployments", "predictions"):
        names = [*store.singles(table)]
        rows = store.read_all(table, names).rows.combine_chunks()
        if names and put_pack(store, table, rows):
            for name in names:
                store.delete(table, f"{name}.parquet")


def _public(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if ran := row.get("command"):
        sweep = next((name for name in names if f"{name}.yaml" in ran), None)
        changed["command"] = sweep and f"lp-sweep run {STUDIES}/{sweep}.yaml"
    if len(row.get("scores") or ()) > MOST_LOGITS:
        changed["scores"] = None
    return row | changed


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
        publish(sys.argv[1], sys.argv[2:])
    for page in STUDIES.glob("*.md"):
        print_again(page)
