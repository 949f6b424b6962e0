"""`compact`, `doctor` and `migrate`: a store kept in order, and what is said of it."""

from __future__ import annotations

import json
import shlex
from typing import NamedTuple

from lp_sweep.orchestrator.cli.verbs import existing
from lp_sweep.storage.identity import IDENTITY_VERSION
from lp_sweep.storage.printable import page


class Report(NamedTuple):
    text: str
    exit_code: int


def compact(location: str, as_json: bool) -> str:
    from lp_sweep.storage.packs import compact as compact_store

    done = compact_store(existing(location))
    if as_json:
        return json.dumps(done._asdict())
    return f"{done.records} records: {done.files_before} files before, {done.files_after} now"


def doctor(location: str, *, fix: bool, as_json: bool) -> Report:
    """Exit code 1 while a finding is left that `--fix` would mend."""
    from lp_sweep.storage.doctor import examine
    from lp_sweep.storage.doctor import fix as fix_store

    store = existing(location)
    findings = examine(store)
    if fix:
        fix_store(store, findings)
    to_fix = [item for item in findings if item.action != "leave"]
    code = int(bool(to_fix) and not fix)
    if as_json:
        return Report(json.dumps([item._asdict() for item in findings]), code)
    lines = [f"{item.location}: {item.reason}; {item.remedy}" for item in findings]
    if not findings:
        lines = [f"{store.location} is in order"]
    elif fix:
        lines.append(f"files dealt with: {len(to_fix)}; the next run does torn trials again")
        if any(item.path.startswith("predictions/") for item in to_fix):
            lines.append("a trial whose own record is whole is not done again for its predictions")
    elif to_fix:
        where = shlex.quote(store.location)
        lines.append(f"to deal with {len(to_fix)} of them: lp-sweep doctor --fix --store {where}")
    return Report(page(lines), code)


def migrate(location: str, as_json: bool) -> str:
    from lp_sweep.storage.migrate import migrate as migrate_store

    done = migrate_store(existing(location))
    if as_json:
        return json.dumps(done._asdict())
    return (
        f"{done.moved} records have identifiers of version {IDENTITY_VERSION} now, {done.kept} had "
        f"them before, {done.unknown} are of a version that can't be migrated"
    )
