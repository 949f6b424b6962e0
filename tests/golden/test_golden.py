"""Identifiers, plans, tables, the report and help must stay as they are while the code changes.

`answers/` has what the commands print about the sweeps and records next to it. All of it is a copy,
so nothing that changes the quickstart or docs/studies changes it. To accept a change that is meant:

    LP_SWEEP_TEST_GOLDEN=write python -m pytest tests/golden

and read the difference before you commit it.
"""

from __future__ import annotations

import difflib
import html
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq

from lp_sweep import Results, open_store
from lp_sweep.storage.store import Store
from tests.support.program import process, sweep

HERE = Path(__file__).parent
ANSWERS = HERE / "answers"
PLANS = (
    "poor-mans-bert",
    "undivided-attention",
    "one-gpu-evening",
    "own-data",
    "embedding",
    "axes",
)
TABLES = (
    *("min-layers", "tasks", "strategies", "speed", "embeddings", "significance", "intervals"),
    *("min-layers-interval", "distillation", "random-control", "setups"),
)
GLUE = {  # task -> the columns of its texts
    "sst2": ["sentence"],
    "mnli": ["premise", "hypothesis"],
    "qnli": ["question", "sentence"],
    "qqp": ["question1", "question2"],
    "stsb": ["sentence1", "sentence2"],
    "rte": ["sentence1", "sentence2"],
    "mrpc": ["sentence1", "sentence2"],
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep files, and small data for those that need GLUE or reviews."""
    folder = tmp_path_factory.mktemp("golden")
    for name in ("sweeps", "quickstart"):
        shutil.copytree(HERE / name, folder / name)
    for name, columns in GLUE.items():
        (folder / "glue" / name).mkdir(parents=True)
        labels = [0.5, 4.5] if name == "stsb" else [0, 1]
        dev = ["validation_matched", "validation_mismatched"] if name == "mnli" else ["validation"]
        for split in ("train", *dev):
            texts = {
                column: [f"{split} {column} {row} of {name}" for row in range(40)]
                for column in columns
            }
            table = pa.table(texts | {"label": labels * 20})
            pq.write_table(table, folder / "glue" / name / f"{split}.parquet")
    for split in ("train", "dev"):
        lines = [f"title {n} of {split},body {n},{'yn'[n % 2]},{n % 7}" for n in range(40)]
        text = "\n".join(["title,body,verdict,helpful_votes", *lines])
        (folder / "sweeps" / f"reviews-{split}.csv").write_text(text, encoding="utf-8")
    return folder


def same(name: str, found: str) -> None:
    found = re.sub(r"[ \t]+$", "", found, flags=re.MULTILINE).rstrip("\n") + "\n"
    file = ANSWERS / name
    if os.environ.get("LP_SWEEP_TEST_GOLDEN") == "write":
        ANSWERS.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    expected = file.read_text(encoding="utf-8")
    if found != expected:
        lines = difflib.unified_diff(
            expected.splitlines(), found.splitlines(), name, "now", lineterm="", n=1
        )
        changed = [*lines]
        pytest.fail("\n".join([*changed[:60], f"({len(changed)} lines)", __doc__ or ""]), False)


def rounded(text: str) -> str:
    """A sum depends on the order of its terms in the last digits, and SQL runs in threads."""
    return re.sub(r"-?\d+\.\d{9,}(?:e-?\d+)?", lambda found: f"{float(found[0]):.9g}", text)


def printed(folder: Path, *arguments: str) -> str:
    done = sweep(*arguments, cwd=folder, env={"COLUMNS": "100"})
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.parametrize("name", ["quickstart", *PLANS])
def test_plan(world: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which cells, trials and measurements a sweep has, and what is said of its data; not how long
    it takes."""
    # the hours of `precision: auto` are of fp32, whatever this CPU has
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    file = "quickstart/sweep.yaml" if name == "quickstart" else f"sweeps/{name}.yaml"
    told = printed(world, "plan", file, "--data-dir", "glue", "--store", "none", "--json")
    plan: dict[str, Any] = json.loads(told)
    lines = []
    for key in ("cells", "profiles", "speeds", "data", "notes"):
        lines += [key, *(json.dumps(item, ensure_ascii=False) for item in plan[key])]
    same(f"plan-{name}.jsonl", "\n".join([*lines, "totals", json.dumps(plan["totals"])]))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    shutil.copytree(HERE / "records", folder / "store")
    return folder


@pytest.fixture(scope="module")
def results(records: Path) -> Iterator[Results]:
    with open_store(records / "store") as results:
        yield results


@pytest.mark.parametrize("name", TABLES)
def test_table(results: Results, name: str) -> None:
    """As the command prints it: `test_a_table_is_that_of_the_command_line`."""
    table = results.table(name)
    same(f"table-{name}.txt", rounded(table.text()))
    same(f"table-{name}.json", rounded(table.text("json")))


@pytest.mark.parametrize("view", ["cells", "min_layers"])
def test_view(records: Path, view: str) -> None:
    text = printed(records, "query", f"FROM {view}", "--store", "store", "--format", "csv")
    same(f"query-{view}.csv", "\n".join(sorted(rounded(text).splitlines())))


@pytest.mark.slow  # every day: its tables above, and its sentences in test_report.py
def test_report(records: Path) -> None:
    printed(records, "report", "--store", "store", "--out", "report.html")
    page = (records / "report.html").read_text(encoding="utf-8")
    body = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]+>", "\n", body)).replace(str(records), "FOLDER")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", text)
    same("report.txt", "\n".join(line.strip() for line in text.splitlines() if line.strip()))


def test_help(tmp_path: Path) -> None:
    text = printed(tmp_path, "help", "more")
    same("help.txt", text)


def test_a_store_of_version_1_opens(records: Path) -> None:
    """Written by 0.1.0. Every later version reads it whole, and none adds a column that a record
    must have."""
    store = Store(records / "store")
    tables = {name: store.read_all(name) for name in ("trials", "profiles", "predictions")}
    assert {name: len(found.rows) for name, found in tables.items()} == {
        "trials": 162,
        "profiles": 10,
        "predictions": 197_635,
    }
    assert not any(found.unreadable for found in tables.values())
    packs = [*(records / "store").rglob("*.parquet")]
    versions = {pq.read_schema(pack).metadata[b"lp_sweep.schema_version"] for pack in packs}
    assert versions == {b"1"}


def scores(folder: Path) -> str:
    asked = "SELECT trial_id, round(last, 14) AS last, train_losses FROM trials ORDER BY 1"
    return printed(folder, "query", asked, "--store", "store", "--format", "csv")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_scores_of_the_quickstart(tmp_path: Path) -> None:
    """Scores, but for what processors round differently, and the losses of training, to the last
    bit on the processor that wrote them, with one thread (conftest.py)."""
    shutil.copytree(HERE / "quickstart", tmp_path / "quickstart")
    words = ("run", "quickstart/sweep.yaml", "--inline", "--store", "store")
    run = process(*words, cwd=tmp_path)
    _, told = run.communicate()
    assert run.returncode == 0, told
    same("scores.csv", scores(tmp_path))
