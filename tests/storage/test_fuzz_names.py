"""Names of anything, typed or stored by anyone: no file outside the store, no escape sequence on a
screen, and JSON that any program can read."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from lp_sweep.orchestrator.cli.output import complain, emit, say
from lp_sweep.orchestrator.engine.progress import PlainReporter
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate import Rates
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.storage.errors import LpSweepError
from lp_sweep.storage.printable import listed, printable, short, short_model, shown
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.fuzzing import AWKWARD, awkward, fuzz
from tests.support.program import sweep
from tests.support.sqlworld import ESCAPES, refuse
from tests.support.sweepfiles import PLAIN, answer_of, find, make_inputs

HOSTILE = [
    *AWKWARD,
    "..",
    "../store/trials/x",
    "t1-../../x",
    "a/../../b",
    "\udcff",
    "x.parquet",
    ".x",
]
TYPED = [name for name in HOSTILE if "\0" not in name and not name.startswith("-")]


def tree(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose records say what no number should be, and names that no one should."""
    folder = tmp_path_factory.mktemp("names") / "deep" / "inside"
    fake = FakeSweep(folder / "store")
    odd = {"model": "\x1b[31mbert\n", "task": "\x9b2J\u202etask"}
    fake.cell(k=0, score=90.0, **odd)
    fake.cell(k=1, score=math.nan, **odd, seconds_train=math.inf, params_total=None)
    fake.cell(k=2, score=math.inf, **odd, train_losses=[math.nan], best=-math.inf)
    fake.cell(k=3, state="failed", **odd)
    fake.publish()
    make_inputs(folder)
    return folder


# -- on the command line


NAME = "<name>"
ASKED_FOR = [
    ["show", NAME, "--store", "store"],
    ["logs", NAME, "--store", "store"],
    ["status", "--store", "store", "--sweep", NAME],
    ["status", "--store", NAME],
    ["query", "FROM trials", "--store", "store", "--format", NAME],
    ["plan", NAME],
    ["plan", "sweep.yaml", f"task={NAME}", "--data-dir", "glue"],
    ["plan", "sweep.yaml", "--data-dir", NAME],
    ["plan", "sweep.yaml", "--data-dir", "glue", "--store", NAME],
]


@pytest.mark.parametrize(
    "names",
    [pytest.param(TYPED[::16], id="some"), pytest.param(TYPED, id="all", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("words", ASKED_FOR, ids=" ".join)
def test_any_name_is_answered(world: Path, words: list[str], names: list[str]) -> None:
    before = tree(world.parents[1])
    for name in names:
        done = sweep(*(word.replace(NAME, name) for word in words), cwd=world)
        assert done.returncode in (0, 2, 4), (name, done)
        if words[0] != "plan":  # which can go on without what it does not find
            assert done.returncode, name
            assert done.stdout == ""
        assert not ESCAPES.search(done.stdout + done.stderr), done
        assert "Traceback" not in done.stderr
    assert tree(world.parents[1]) == before


@pytest.mark.parametrize("name", ["~no-such-user/x", "a\0b"], ids=ascii)
def test_a_cache_folder_that_can_be_none_is_refused_before_a_run(world: Path, name: str) -> None:
    before = tree(world.parents[1])
    given = ("--data-dir", "glue", "--cache-dir", name)
    done = sweep("run", "sweep.yaml", *given, cwd=world)
    assert done.returncode in (2, 4), done
    assert not ESCAPES.search(done.stderr)
    assert tree(world.parents[1]) == before


# -- on the screen


def hostile_plan(folder: Path, name: str) -> Plan:
    task = f"{{name: {json.dumps(name)}, train: t.csv, dev: d.csv, text: text}}"
    for table in ("t.csv", "d.csv"):
        (folder / table).write_text(f"text,label\n{table},0\nb,1\n")
    found = find(make_inputs(folder, PLAIN.replace("rte, mrpc", task)))
    found.notes.append(f"a note on {name}")
    return make_plan(found, WorkHistory.nothing())


@pytest.mark.parametrize("name", ["\x1b[31mred\x9b2J\u202ertl\x07\x7f", "a\nb\r\tc"], ids=ascii)
def test_no_name_reaches_the_screen_raw(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = hostile_plan(tmp_path, name)
    rates = Rates([], gpu=False)
    page = answer_of(plan, rates).text()
    reporter = PlainReporter()
    reporter.planned(plan)
    reporter.opened(WorkQueue(plan, Store(tmp_path, create=True), rates, lambda plan: None), 1)
    for work in plan.trials.values():
        reporter.started(work)
        reporter.ended(work.id, "failed", f"{name}\nTraceback")
    reporter.note(name)
    say(name)
    complain(f"{name}\nand {name}")
    output = capsys.readouterr()
    for text in (page, output.err, output.out):
        assert not ESCAPES.search(text), ascii(text)
        text.encode("utf-8")
    assert f"tasks {printable(name)}\n" in page
    assert json.loads(json.dumps(answer_of(plan, rates).to_dict()))["cells"][0]["task"] == name


def shortened(folder: Path, text: str, number: int) -> None:
    """One line, printable, of bounded length; what is harmless stays as it is."""
    in_bytes = shown(text.encode("utf-8", "replace"))
    for line in (short(text), shown(text), in_bytes, listed([text] * 30)):
        assert line.isprintable()
        assert len(line) <= 2000
        line.encode()
    assert shown(number * 10**5000)
    assert printable(text).isprintable()
    assert printable(text, keep="\n").count("\n") == text.count("\n")
    if text.isprintable():
        assert printable(text) == text


test_quoting = fuzz(
    shortened,
    10_000,
    text=awkward | st.text(st.characters(), max_size=500),
    number=st.integers(1, 9),
)


def test_a_terminal_of_another_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", newline="\n"))
    emit("90.0 ±1.2 日本 \udcff")
    assert raw.getvalue() == rb"90.0 \xb11.2 \u65e5\u672c \udcff" + b"\n"


# -- in the store


NO_STORES = [
    *("gs://bucket/x", "file:///x", "s3:/x", "S3://b/x", "~no-such-user/x", "a\0b", "", "/proc/x")
]


@pytest.mark.parametrize("location", NO_STORES, ids=ascii)
def test_what_can_be_no_store_is_said_and_not_made(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LpSweepError, match=r"a store|can't be the name|home directory"):
        Store(location, create=True)
    assert list(tmp_path.iterdir()) == []


NOW = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
RUN = {
    "run_id": "r", "sweep": "\x1b[31ms", "host": "\x9bh", "machine": "m", "pid": 1, "process": "p",
    "started_at": NOW, "updated_at": NOW, "beat": 1, "held": {"t1-0c1f": NOW},
    "done": 1, "failed": 0, "left": 3, "slots": 2, "seconds_left": 60.0, "low_seconds": 50.0,
    "high_seconds": 90.0,
}  # fmt: skip
ODD = [
    *(None, 1, -1, 1.5, True, "x", "\x1b[31m", [], [1], {}),
    *(2**70, 10**400, 1e300, math.inf, math.nan),
]


def test_whatever_a_run_announces_status_is_shown(tmp_path: Path) -> None:
    contents = ["", "{", "[]", "null", "1", "[" * 100_000, json.dumps(RUN)]
    contents += [json.dumps(RUN | {name: odd}) for name in RUN for odd in ODD]
    contents += [json.dumps({key: RUN[key] for key in RUN.keys() - {name}}) for name in RUN]
    store = Store(tmp_path / "store", create=True)
    for number, content in enumerate(contents):
        store.put_text("runs", f"{number}.json", content)
    done = sweep("status", "--store", "store", cwd=tmp_path)
    assert done.returncode == 0, done
    assert not ESCAPES.search(done.stdout + done.stderr)


# -- as JSON

ASKED = [
    ["status", "--json"],
    ["show", NAME, "--json"],
    ["query", "FROM trials", "--json"],
    ["query", "FROM epochs", "--json"],
    *(["table", name, "--json"] for name in ("min-layers", "tasks", "speed")),
    ["plan", "sweep.yaml", "--data-dir", "glue", "--json"],
]


@pytest.mark.parametrize("arguments", ASKED, ids=" ".join)
def test_json_is_json_whatever_the_records_say(world: Path, arguments: list[str]) -> None:
    answers: list[Any] = []
    ids: list[str] = [""]
    if arguments[0] == "show":
        ids = Store(world / "store").read_all("trials").rows["trial_id"].to_pylist()
    for id_ in ids:
        given = [part.replace(NAME, id_) for part in arguments]
        done = sweep(*given, "--store", "store", cwd=world)
        assert done.returncode == 0, done
        assert not ESCAPES.search(done.stdout)
        answers.append(json.loads(done.stdout, parse_constant=refuse))
    assert answers
    assert all(answers)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert-base-cased", "bert-base-cased"),
        ("org/encoder", "org/encoder"),
        ("/data/minilm/", "minilm"),
        ("/data/minilm/model", "minilm"),
        ("./model", "model"),
        ("/hub/models--org--name/snapshots/0a1b", "org/name"),
    ],
)
def test_a_model_has_a_short_name_that_says_something(name: str, said: str) -> None:
    assert short_model(name) == said
