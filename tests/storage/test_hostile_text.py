"""Text that anyone may have written, in every text column of a store: no verb lets it act on the
terminal, or begin a line of its own."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest

from lp_sweep.analysis.tables import TABLES as TABLES_SHOWN
from lp_sweep.orchestrator import options
from lp_sweep.orchestrator.cli.output import complain, emit, say
from lp_sweep.storage.printable import on_terminal, page
from lp_sweep.storage.schema import TABLES
from lp_sweep.storage.store import Store
from tests.support.everyday import few
from tests.support.fake_records import FakeSweep
from tests.support.program import Terminal, sweep
from tests.support.sqlworld import ESCAPES
from tests.support.sweepfiles import make_inputs

# title, clear screen, link; C1; bell; return; a line of its own; bidi; markup; very long
EVIL = (
    "\x1b]0;owned\x07\x1b[2J\x1b[8m\x1b]8;;http://x\x1b\\\x9b2J\x9d\x07\r\nPLANTED\x0b\x85\u2028"
    "PLANTED\u202e\u2066\x00\t<b>[red]|`" + "w" * 500
)
IN_A_NAME = EVIL.replace("\x00", "").replace("\\", "").replace("/", "")[:80]
NAMES = frozenset({"trial_id", "profile_id", "attempt_id", "sweep"})  # of records
STYLE = re.compile(r"\x1b\[[0-9;]*m")  # what rich writes for a terminal


def spoilt(value: Any, kind: pa.DataType, evil: str) -> Any:
    """The value with `evil` at the end of every text in it."""
    if pa.types.is_string(kind):
        return (value or "") + evil
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: spoilt(value[field.name], field.type, evil) for field in kind}
    if pa.types.is_map(kind):
        return [(key + evil, text + evil) for key, text in value]
    if pa.types.is_list(kind):
        return [spoilt(item, kind.value_type, evil) for item in value]
    return value


def hostile_store(folder: Path, keep: frozenset[str]) -> Store:
    """Records of every kind with EVIL in every text column but those of `keep`; in what names a
    record as much of it as a file's name can hold."""
    fake = FakeSweep(folder / "plain")
    for seed in (1, 2):
        fake.curve({0: 92.0, 2: 91.0, 6: 88.0}, model="bert-base-cased", seed=seed)
    fake.cell(k=8, state="failed")
    fake.cell(k=9)
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    fake.profile([0.5] * 12)
    fake.speed(1.9, 2.0)
    for row in fake.cells[:6]:
        fake.predictions(row["trial_id"], [True, False] * 20)
    plain, store = fake.publish(), Store(folder / "store", create=True)

    def spoil(row: dict[str, Any], item: pa.Field) -> Any:
        if item.name in keep or item.name == "spec":  # else no record's identifier fits
            return row[item.name]
        evil = IN_A_NAME if item.name in NAMES else EVIL
        return spoilt(row[item.name], item.type, evil)

    for table, schema in TABLES.items():
        for name in plain.names(table):
            rows = [
                {item.name: spoil(row, item) for item in schema} for row in plain.read(table, name)
            ]
            store.put(table, name if schema.names[0] in keep else name + IN_A_NAME, rows)
    store.put("trials", f"misnamed{IN_A_NAME}", [{"trial_id": f"t1-{EVIL}", "model": EVIL}])
    return store


class World(NamedTuple):
    folder: Path
    names: dict[str, str]


# what programs of ours compare with words of their own, and answers depend on
STRUCTURE = frozenset(
    {"trial_id", "profile_id", "attempt_id", "metric", "epoch_metrics", "measure", "quantity"}
    | {"timings", "error_type", "procedure", "cell", "split", "setup"}
)
# then figures are drawn, and the paper's numbers compared
AXES = frozenset(["sweep", "model", "task", "device_type", "model_fingerprint", "precision_used"])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(frozenset(), id="all", marks=pytest.mark.slow),
        pytest.param(STRUCTURE | AXES, id="strategies"),
    ],
)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("hostile")
    store = hostile_store(folder, request.param)
    for suffix in ("txt", "parquet"):
        (folder / "store" / "trials" / f"x{IN_A_NAME}.{suffix}").write_text("")
    make_inputs(folder)
    failed = min(store.names("attempts")).rpartition(".")[0]
    speed, profile = sorted(
        store.names("profiles"), key=lambda name: store.read("profiles", name)[0]["layers"] is None
    )
    names = {"TRIAL": min(store.names("trials")), "FAILED": failed}
    names |= {"SPEED": speed, "PROFILE": profile}
    return World(folder, names)


EVERY_DAY = [
    *("status", "status --json", "query FROM+trials", "query FROM+trials --format latex"),
    *("table min-layers", "table tasks", "table speed", "paper --check", "show TRIAL"),
    *("show FAILED", "show PROFILE", "logs FAILED", "doctor"),
]
OTHERS = [
    *(f"query FROM+{view}" for view in ("cells", "attempts", "layers", "epochs")),
    *(f"query FROM+trials --format {form}" for form in ("json", "markdown", "csv")),
    *(f"table {name}" for name in TABLES_SHOWN if f"table {name}" not in EVERY_DAY),
    *("paper", "paper --table 1", "show TRIAL --json", "show SPEED", "show t1", "show"),
    *("logs TRIAL", "report --figures figures", "plan sweep.yaml --data-dir glue"),
    *("export TRIAL --out exported", "doctor --json"),
]
DRAWN = [verb for verb in EVERY_DAY + OTHERS if verb.startswith(("query", "table", "paper"))]


@pytest.mark.parametrize(
    ("verb", "screen"),
    [
        *((verb, False) for verb in EVERY_DAY),
        *(pytest.param(verb, False, marks=pytest.mark.slow) for verb in OTHERS),
        *few(((verb, True) for verb in DRAWN), 4),
        ("compact", False),
        pytest.param("doctor --fix", False, marks=pytest.mark.slow),
    ],
)
def test_nothing_of_it_acts(world: World, verb: str, screen: bool) -> None:
    words = [world.names.get(word, word.replace("+", " ")) for word in verb.split()]
    done = sweep(*words, "--store", "store", cwd=world.folder, screen=screen)
    assert done.returncode in (0, 1, 2, 4), done.stderr[-2000:]
    assert "Traceback (" not in done.stderr
    shown = STYLE.sub("", done.stdout) if screen else done.stdout
    data = verb.endswith("csv") and not screen  # a file or a pipe gets the values as they are
    for text in (done.stderr, *([] if data else [shown])):
        assert not ESCAPES.search(text.replace("\t", " ")), ascii(text)
        if not verb.startswith("logs"):  # which prints tracebacks in their own lines
            assert not re.search("^PLANTED", text, re.MULTILINE), text
    assert "\x1b[8m" not in done.stdout or data


def test_a_pages_lines_are_ours() -> None:
    assert page(["a\nb", f"c{EVIL}"]).count("\n") == 1


def test_a_verb_that_forgets_is_clean_all_the_same() -> None:
    for screen in (False, True):
        kind = Terminal if screen else io.StringIO
        out, err = kind(), kind()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            emit(EVIL)
            emit(EVIL, form="table")
            say(EVIL)
            complain(EVIL)
        assert not ESCAPES.search(out.getvalue().replace("\t", "").replace("\x1b[8m", ""))
        assert not ESCAPES.search(err.getvalue())
        assert ("\x1b[8m" in out.getvalue()) == screen  # a table's own styles


def test_what_goes_to_stderr_is_ours_and_clean() -> None:
    """A bug's traceback and our warnings; not what libraries log, nor what fails in their threads
    and destructors."""
    code = f"""
import logging, threading, warnings
from lp_sweep.orchestrator.cli import output
from lp_sweep.storage.errors import SweepWarning
output.guard()
class Theirs:
    def __del__(self): raise TimeoutError("theirs: the head is dead")
class Ours:
    def __del__(self): output.emit(None)
logging.getLogger("matplotlib.font_manager").warning("theirs: building the cache")
from transformers import logging as transformers
transformers.get_logger("transformers.x").warning("theirs: weights")
Theirs(), Ours()
thread = threading.Thread(target=lambda: 1 // 0)
thread.start()
thread.join()
warnings.warn({EVIL!r}, SweepWarning)
warnings.warn("theirs: of a library")
raise RuntimeError({EVIL!r})
"""
    done = subprocess.run([sys.executable, "-c", code.replace("\0", "")], capture_output=True)
    text = done.stderr.decode()
    assert all(word in text for word in ("in emit", "RuntimeError", "warning: "))
    assert not [word for word in ("theirs", "ZeroDivision") if word in text]
    assert not ESCAPES.search(text.replace("\t", ""))


def test_completion_offers_no_such_name(tmp_path: Path) -> None:
    hostile_store(tmp_path, frozenset())
    context = mock.Mock(params={"store": str(tmp_path / "store")})
    assert options.sweeps(context) == []


def test_prose_is_broken_between_words_on_a_terminal_alone(tmp_path: Path) -> None:
    """A command stays whole, to be copied; in backticks it is a word."""
    leader, follower = os.openpty()
    prose = "  estimate   at most 22 min on one slot: `lp-sweep run sweep.yaml` does it"
    command = "Go on: lp-sweep run sweep.yaml --store /a/b/c"
    with os.fdopen(follower, "w") as terminal, os.fdopen(leader):
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert on_terminal(prose, terminal) == prose, "it tells no size"
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        prose_lines = on_terminal(f"{prose}\n{command}", terminal).split("\n")
    assert prose_lines == [
        "  estimate   at most 22 min on",
        "    one slot:",
        "    `lp-sweep run sweep.yaml`",
        "    does it",
        command,
    ]
    with (tmp_path / "log").open("w") as log:
        assert on_terminal(prose, log) == prose
