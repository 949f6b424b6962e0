"""In the manner of SQLite's tests: the Nth write, sync, rename or removal fails, or the process
ends there, for every N. After each the store is readable, nothing that it had is lost, and the same
verb again completes it, with the same content as if nothing had happened.

The tries are made by this file as a program, on a disk that can fail:

    LD_PRELOAD=faultdisk.so FAULT_FOLDER=FOLDER \\
        python -m tests.storage.test_fault_injection VERB FOLDER FAULT STEP

It prints JSON: how many changes the verb makes, how many were broken, and what was wrong after
them. Each try is a fork of the process on a copy of the same files.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from lp_sweep.orchestrator.export.folder import ABOUT, staged
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.networks import SUMS, changed_files, write_sums
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.spool import Outbox, Record, Spool, flush
from lp_sweep.storage.store import Store
from lp_sweep.storage.upkeep import compact, examine, put_pack, set_aside
from tests.support.stores import predictions, trial

SOURCE = Path(__file__).parents[1] / "support" / "faultdisk.c"
FAULTS = {
    "full": (errno.ENOSPC, 0),
    "stays full": (errno.ENOSPC, 1),
    "broken": (errno.EIO, 0),
    "killed": (-1, 0),
}
_LIMIT = 60  # seconds for one try
_DISK = ctypes.CDLL(None)


def store_in(folder: Path) -> Store:
    return Store(folder / "store", create=True)


def content(folder: Path) -> dict[str, Any]:
    """The rows of all that can be read, by table and name, as JSON has them."""
    found: dict[str, Any] = {}
    for table in TABLES:
        for row in store_in(folder).read_all(table).rows.to_pylist():
            found.setdefault(f"{table}/{row[TABLES[table].names[0]]}", []).append(row)
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


# -- the verbs: each with what it is given, and what is there after it


def given_little(folder: Path) -> None:
    store = store_in(folder)
    for name in ("t1-a", "t1-b"):
        store.put("trials", name, [trial(name)])
        store.put("predictions", name, predictions(name))


def record(folder: Path) -> None:
    """A worker hands over what it has trained."""
    box = Outbox(str(folder / "store"), folder / "cache")
    rows = [Record("predictions", "t1-x", predictions("t1-x"))]
    box.send(*rows, Record("trials", "t1-x", [trial("t1-x")]))
    if box.refusal:
        raise LpSweepError(box.refusal)


def given_spooled(folder: Path) -> None:
    given_little(folder)
    spool = Spool(folder / "cache", str(folder / "store"))
    for name in ("t1-x", "t1-y"):
        spool.put(Record("predictions", name, predictions(name)))
        spool.put(Record("trials", name, [trial(name)]))
    spool.put_network("t1-x", save_network)


def save_network(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"w" * 100_000)
    (folder / "config.json").write_text("{}")


def spool(folder: Path) -> None:
    """The next worker of a node sends what another left."""
    if flush(store_in(folder), folder / "cache").waiting:
        raise LpSweepError("something waits")


def given_many(folder: Path) -> None:
    store = store_in(folder)
    for i in range(3):
        store.put("trials", f"t1-p{i}", [trial(f"t1-p{i}", i)])
    compact(store)
    given_little(folder)
    # what a compactor leaves that was killed before it deleted
    store.put("trials", "t1-p1", [trial("t1-p1", 1)])


def compaction(folder: Path) -> None:
    compact(store_in(folder))


def given_damaged(folder: Path) -> None:
    given_many(folder)
    store = store_in(folder)
    trials = folder / "store" / "trials"
    (trials / "t1-torn.parquet").write_bytes((trials / "t1-a.parquet").read_bytes()[:-40])
    (trials / "t1-empty.parquet").touch()
    (trials / "notes.txt").write_text("mine")
    store.put("trials", "t1-copied", [trial("t1-only-there"), trial("t1-a")])
    rows = [trial("t1-sound"), trial("t1-senseless") | {"kept_layers": None}]
    put_pack(store, "trials", pa.Table.from_pylist(rows, TABLES["trials"]))


def doctor(folder: Path) -> None:
    store = store_in(folder)
    set_aside(store, examine(store))


def given_export(folder: Path) -> None:
    given_spooled(folder)
    spool(folder)
    _export(folder, "old")


def export(folder: Path) -> None:
    """A new export takes the place of an old one."""
    _export(folder, "new")


def _export(folder: Path, text: str) -> None:
    store = store_in(folder)
    with staged(folder / "exported", force=True) as coming:
        for name in ("model.safetensors", "config.json"):
            assert store.fetch_file("weights/t1-x", name, coming / name)
        for name in (ABOUT, "README.md"):
            (coming / name).write_text(text)
        write_sums(coming)


def export_is_whole(folder: Path) -> list[str]:
    """The old one or the new one; nothing only where a kill came between two renames."""
    out = folder / "exported"
    if not out.exists():
        olds = list(folder.glob(".exported.lp-sweep-old"))
        return [] if olds and not changed_files(olds[0]) else ["no export is left"]
    wrong = [] if (out / SUMS).is_file() else ["no sums"]
    return wrong + [f"changed: {name}" for name in changed_files(out)]


class Verb(NamedTuple):
    given: Callable[[Path], None]
    act: Callable[[Path], None]
    sound: Callable[[Path], list[str]] = lambda folder: []
    settled: Callable[[Path], Any] = lambda folder: None  # must be as after an undisturbed one


VERBS = {
    "record": Verb(given_little, record, settled=lambda f: files(f / "cache", "*.parquet")),
    "spool": Verb(given_spooled, spool, settled=lambda f: files(f, "weights/*/*")),
    "compaction": Verb(
        given_many,
        compaction,
        settled=lambda f: len(files(f / "store", "trials/*.parquet")) > 1,  # one is not packed
    ),
    "doctor": Verb(
        given_damaged,
        doctor,
        settled=lambda f: [item.location for item in examine(store_in(f)) if not item.lost],
    ),
    "export": Verb(
        given_export,
        export,
        sound=export_is_whole,
        settled=lambda f: (f / "exported" / "README.md").read_text(),
    ),
}


def files(folder: Path, pattern: str) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob(pattern)
        if "/." not in str(path) and path.is_file()
    )


# -- one try


def forked(action: Callable[[], Any]) -> tuple[int, Any]:
    """In a process of its own: its exit code, and what the action gave or how it failed."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        with open(reading, "rb") as stream:  # noqa: PTH123
            told = stream.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return code, json.loads(told) if told else None
    signal.alarm(_LIMIT)
    code = 0
    try:
        answer = action()
    except (LpSweepError, OSError) as error:
        code, answer = 1, str(error)
    except BaseException:
        code, answer = 2, traceback.format_exc()
    _DISK.fault_arm(ctypes.c_long(-1), 0, 0)
    os.write(writing, json.dumps(answer, default=str).encode())
    os._exit(code)


def broken(verb: Verb, folder: Path, number: int, fault: str) -> int:
    """The verb with its change of this number broken: how many changes it came to."""
    kind, stays = FAULTS[fault]
    _DISK.fault_arm(ctypes.c_long(number), kind, stays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            verb.act(folder)
        finally:
            made = int(_DISK.fault_count())
            _DISK.fault_arm(ctypes.c_long(-1), 0, 0)
    return made


def lost(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [f"lost or changed: {name}" for name in before if after.get(name) != before[name]]


def wrong_after(verb: Verb, folder: Path, before: dict[str, Any], want: list[Any]) -> list[str]:
    """Lists faults after a broken try, and after a second try that nothing disturbs."""
    found = [*lost(before, content(folder)), *verb.sound(folder)]
    verb.act(folder)
    now = json.loads(json.dumps([content(folder), verb.settled(folder)], default=str))
    if now[0] != want[0]:
        found.append(f"again: other records: {sorted(now[0].keys() ^ want[0].keys())}")
    if now[1] != want[1]:
        found.append(f"again: {now[1]} in place of {want[1]}")
    return found


def main(name: str, root: str, fault: str, step: str) -> None:
    verb, folder = VERBS[name], Path(root)
    given, place = folder / "given", folder / "try"  # a spool is known by its store's place
    place.mkdir()
    code, told = forked(lambda: verb.given(place))
    assert code == 0, told
    place.rename(given)

    def fresh() -> Path:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(given, place)
        return place

    fresh()
    before = forked(lambda: content(place))[1]
    code, total = forked(lambda: broken(verb, place, 10**9, "broken"))
    assert code == 0, total
    want = forked(lambda: [content(place), verb.settled(place)])[1]
    wrong, tried = [], 0
    for number in range(1, total + 1, int(step)):
        fresh()
        code, told = forked(lambda n=number: broken(verb, place, n, fault))
        tried += 1
        found = [str(told)] if code not in (0, 1, 99) else []
        code, told = forked(lambda: wrong_after(verb, place, before, want))
        found += told if code == 0 else [f"not to be read or done: {told}"]
        wrong += [f"change {number}: {text}" for text in found]
    print(json.dumps({"changes": total, "tried": tried, "wrong": wrong}))


# -- the tests


@pytest.fixture(scope="session")
def faulty_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("disk") / "faultdisk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def tried(library: Path, folder: Path, verb: str, fault: str, step: int) -> dict[str, Any]:
    place = {"LD_PRELOAD": str(library), "FAULT_FOLDER": str(folder / "try")}
    program = [sys.executable, "-m", "tests.storage.test_fault_injection"]
    asked = [*program, verb, folder, fault, str(step)]
    done = subprocess.run(asked, env=os.environ | place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


EVERY = itertools.product(VERBS, FAULTS)


@pytest.mark.parametrize(
    ("verb", "fault", "step"),
    [("record", "killed", 19), *(pytest.param(*of, 1, marks=pytest.mark.slow) for of in EVERY)],
)
def test_changes_of_a_verb(
    faulty_disk: Path, tmp_path: Path, verb: str, fault: str, step: int
) -> None:
    told = tried(faulty_disk, tmp_path, verb, fault, step)
    assert told["wrong"] == []
    assert told["changes"] > 15
    assert told["tried"] == len(range(0, told["changes"], step)) > 2


if __name__ == "__main__":
    main(*sys.argv[1:])
