"""Measures which seeded bugs the everyday tests catch.

    python -m benchmarks.protection --tree . --out benchmarks/results/protection.json
    python -m benchmarks.protection --tree ../old --label before --out ... [--all] [--bug NAME]

The tree is copied to a scratch folder. For each bug of `protection_bugs.py`, the wrong line is
written there. A fork of this process, which has loaded the libraries once, runs the test files that
should catch it, up to the first failure. With `--all`, the other everyday tests also run for a bug
that these files miss. A test that also fails without a bug does not count. Results are added to the
file under a label, so that an old tree and a new one are in one table. An interrupted run can be
continued: a bug that has a row is skipped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.protection_bugs import BUGS, Bug

ROOMS = ("api", "analysis", "orchestrator", "quickstart", "storage", "trials")
EVERYDAY = "not slow and not gpu and not ray"
SETTINGS = {  # set before the libraries are loaded: see tests/conftest.py
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
LIBRARIES = (
    *("hypothesis", "numpy", "pytest", "torch", "transformers", "datasets", "pyarrow.parquet"),
    *("duckdb", "matplotlib", "pydantic", "rich", "scipy.stats", "sklearn.metrics", "typer"),
    "yaml",
)
SECONDS = 900  # time limit for one bug; longer than pytest's limit for one test
OUT_OF_TIME = "(out of time)"
# Processes that tests start must find the package in the scratch folder, not in the checkout.
_SITE = """\
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("__editable___lp_sweep"):
        module.MAPPING.update({mapping})
"""
_PLUGIN = """\
import json, os
def pytest_runtest_logreport(report):
    if report.failed:
        with open(os.environ["PROTECTION_FAILED"], "a") as file:
            file.write(json.dumps(report.nodeid) + "\\n")
def pytest_collectreport(report):
    pytest_runtest_logreport(report)
"""


class Tree:
    """A scratch copy of a checkout, in which bugs are written and removed again."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.root = folder / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=source, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (source / name).is_file():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, target)
        self.site = folder / "site"
        self.site.mkdir()
        self.mapping = {"lp_sweep": str(self.root / "api")}
        self.mapping |= {f"lp_sweep.{room}": str(self.root / room) for room in ROOMS[1:]}
        (self.site / "sitecustomize.py").write_text(_SITE.format(mapping=self.mapping))
        (self.site / "protection_plugin.py").write_text(_PLUGIN)
        self._changes = 0

    def test_files(self, names: Sequence[str]) -> list[str]:
        """The test files with these names; a name that the tree does not have is skipped."""
        files = sorted((self.root / "tests").rglob("test_*.py"))
        return [
            str(path.relative_to(self.root))
            for name in names
            for path in files
            if path.name == name
        ]

    @contextmanager
    def with_bug(self, bug: Bug) -> Iterator[None]:
        """The tree with the bug. Raises LookupError unless its text is in exactly one place."""
        path, old = self._place(bug)
        text = path.read_text(encoding="utf-8")
        try:
            self._write(path, text.replace(old, bug.changes[old]))
            yield
        finally:
            self._write(path, text)

    def _place(self, bug: Bug) -> tuple[Path, str]:
        texts = {
            path: path.read_text(encoding="utf-8")
            for room in ROOMS
            for path in (self.root / room).rglob("*")
            if path.suffix in (".py", ".sql")
        }
        for old in bug.changes:
            places = [path for path, text in texts.items() for _ in range(text.count(old))]
            if len(places) == 1:
                return places[0], old
        raise LookupError("its text is not in exactly one place")

    def _write(self, path: Path, text: str) -> None:
        """Write with a new modification time, so that Python does not use old byte code."""
        self._changes += 1
        path.write_text(text, encoding="utf-8")
        moment = time.time() + self._changes
        os.utime(path, (moment, moment))

    def failures(self, arguments: Sequence[str], seconds: float = SECONDS) -> list[str]:
        """The tests that fail if pytest runs with these arguments in a fork of this process."""
        failed = self.site.parent / "failed.jsonl"
        failed.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            self._run(arguments, failed)
        end = time.monotonic() + seconds
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > end:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return [*_read(failed), OUT_OF_TIME]
            time.sleep(0.1)
        found, code = _read(failed), os.waitstatus_to_exitcode(ended[1])
        return found or ([f"(pytest ended with {code})"] if code not in (0, 5) else [])

    def _run(self, arguments: Sequence[str], failed: Path) -> None:
        """Run pytest in the fork. Does not return."""
        os.setpgid(0, 0)
        log = os.open(failed.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(self.root)
        os.environ["PYTHONPATH"] = str(self.site)
        os.environ["PROTECTION_FAILED"] = str(failed)
        sys.path[:0] = [str(self.site)]
        for name, module in list(sys.modules.items()):
            if name.startswith("__editable___lp_sweep"):
                vars(module)["MAPPING"].update(self.mapping)
        import pytest

        fixed = ["-p", "protection_plugin", "-p", "no:cacheprovider", "-q", "-m", EVERYDAY]
        code = 1
        try:
            code = int(pytest.main([*fixed, *arguments]))
        finally:
            os._exit(code)


def _read(failed: Path) -> list[str]:
    return [json.loads(line) for line in failed.read_text().splitlines()] if failed.exists() else []


def first_failure(tree: Tree, bug: Bug, files: Sequence[str], sound: dict[str, bool]) -> list[str]:
    """The first test of these files that fails with the bug and not without it. `sound`: the known
    results of tests without a bug."""
    while True:
        aside = [f"--deselect={name}" for name, passes in sound.items() if not passes]
        with tree.with_bug(bug):
            found = tree.failures(["-x", *aside, *files])
        if not found or "::" not in found[0]:
            return found
        if found[0] not in sound:
            sound[found[0]] = not tree.failures([found[0]])
        if sound[found[0]]:
            return found


def judged(tree: Tree, bug: Bug, sound: dict[str, bool], *, everything: bool) -> dict[str, Any]:
    """A row of the table: which test catches the bug."""
    begun = time.monotonic()
    try:
        files, looked = tree.test_files(bug.tests), "named files"
        found = first_failure(tree, bug, files, sound) if files else []
        if not found and everything:
            found, looked = first_failure(tree, bug, ["tests"], sound), "all everyday tests"
    except LookupError as error:
        return {"bug": bug.name, "area": bug.area, "caught": None, "by": str(error)}
    return {
        "bug": bug.name,
        "area": bug.area,
        "caught": None if found == [OUT_OF_TIME] else bool(found),
        "by": found[0] if found else None,
        "looked_at": looked,
        "seconds": round(time.monotonic() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tree", type=Path, default=Path())
    parser.add_argument("--label", default="now")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--all", action="store_true", help="survivors: all everyday tests")
    parser.add_argument("--bug", action="append", help="this one alone, again")
    asked = parser.parse_args()
    os.environ.update(SETTINGS)
    for name in LIBRARIES:
        importlib.import_module(name)
    table = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    rows = {row["bug"]: row for row in table.get(asked.label, {}).get("rows", [])}
    bugs = [bug for bug in BUGS if bug.name in (asked.bug or ()) or bug.name not in rows]
    bugs = [bug for bug in bugs if not asked.bug or bug.name in asked.bug]
    commit = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(commit, cwd=asked.tree, capture_output=True, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(asked.tree.resolve(), Path(folder))
        sound: dict[str, bool] = {}
        for bug in bugs:
            row = rows[bug.name] = judged(tree, bug, sound, everything=asked.all)
            print(json.dumps(row), file=sys.stderr, flush=True)
            found = [rows[bug.name] for bug in BUGS if bug.name in rows]
            table[asked.label] = {
                "commit": done.stdout.strip(),
                "bugs": len(found),
                "caught": sum(bool(row["caught"]) for row in found),
                "failing_without_a_bug": [name for name, passes in sound.items() if not passes],
                "rows": found,
            }
            asked.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
