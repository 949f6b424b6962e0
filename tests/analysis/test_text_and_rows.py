"""What a table says in text is in its rows, in every format.

For each entry of TABLES, on the records of docs/results and on a store in which much is missing.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from lp_sweep.analysis.render import markdown_escape, render, render_rows
from lp_sweep.analysis.tabledef import Row, Table, context
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.store import Store
from tests.support.answered import network, right
from tests.support.docpages import ROOT
from tests.support.fake_records import FakeSweep

RECORDS = ROOT / "docs" / "results" / "records"
FEW = "minilm-distill-mrpc"  # for the tables that read predictions


@pytest.fixture(scope="module")
def gaps(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with each kind of gap and doubt."""
    fake = FakeSweep(tmp_path_factory.mktemp("gaps"))
    for seed in (1, 2):
        for k, n_right in ((0, 90), (2, 88), (4, 50)):
            network(fake, right(n_right), k=k, seed=seed)
            network(fake, right(n_right), k=k, seed=seed, procedure="direct distill logits")
        fake.cell(k=6, seed=seed, score=80.0 if seed == 1 else None)
        for draw in (0, 1):
            fake.cell(strategy=f"random {draw}", k=2, dropped=(3, 5), seed=seed, score=85.0 + draw)
    fake.cell(k=8, state="failed")
    fake.cell(k=6, procedure="direct distill logits")
    fake.cell(strategy="random 0", k=4, dropped=(3, 5, 7, 8))
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    fake.cell(strategy="contribution", threshold=0.1, dropped=range(1, 13))
    fake.curve({0: 50.0, 2: 50.0}, task="unlearned")
    fake.curve({0: 52.0, 2: 49.0, 11: 51.5}, task="near")
    fake.curve({2: 52.0}, task="no full model")
    fake.curve({0: 80.0, 2: 79.0}, task="vectors", metric="spearman", vector_width=8)
    for k, setup in ((0, "a"), (2, "b")):
        fake.cell(k=k, score=90.0, task="mixed", setup=setup)
    return fake.publish()


@functools.cache
def made(store: Store, name: str) -> tuple[Table, pa.Table | None]:
    """The table, and its view's rows as SQL has them, unless Python adds to them."""
    table = TABLES[name]
    sweep = FEW if "predictions" in table.views and store.location == str(RECORDS) else None
    with open_views(store, sweep=sweep, only={*table.views, "min_layers"}) as catalog:
        of = {"min_layers_by_unit": "min_layers"}.get(table.view, table.view)
        rows = catalog.query(f"FROM {of}") if table.fetch is None else None
        return table(catalog), rows


@pytest.fixture(scope="module", params=["the records of docs/results", "gaps"])
def store(request: pytest.FixtureRequest, gaps: Store) -> Store:
    return gaps if request.param == "gaps" else Store(RECORDS)


def from_csv(text: str, schema: pa.Schema) -> list[dict[str, Any]]:
    read = {"string": str, "int64": int, "int32": int, "double": float}
    return [
        {
            field.name: read.get(str(field.type), json.loads)(row[field.name])
            if row[field.name]
            else None
            for field in schema
        }
        for row in csv.DictReader(io.StringIO(text))
    ]


@pytest.mark.parametrize("name", TABLES)
def test_the_text_is_made_of_the_rows_that_machines_read(store: Store, name: str) -> None:
    table = TABLES[name]
    shown, in_sql = made(store, name)
    formats = {
        "json": json.loads(render(shown, "json", terminal=False)),
        "csv": from_csv(render(shown, "csv", terminal=False), shown.long.schema),
        "df": pa.Table.from_pandas(shown.long.to_pandas(), schema=shown.long.schema).to_pylist(),
    }
    for form, rows in formats.items():
        worded = table.worded(rows)
        assert (worded.columns, worded.rows, worded.lead) == (
            shown.columns,
            shown.rows,
            shown.lead,
        ), form
    if in_sql is not None:
        key = sorted(map(json.dumps, json.loads(render_rows(in_sql, "json", terminal=False))))
        assert key == sorted(map(json.dumps, formats["json"])), "query"
    markdown = render(shown, "markdown")
    assert all(markdown_escape(cell) in markdown for line in shown.rows for cell in line)


NUMBER = re.compile(r"(?<![<\d.])\d[\d,]*(?:\.\d+)?")  # not the bound in p <0.0001
WORD = re.compile(r"[^\W\d_]{3,}|†")
# what a column's heading or unit says as well; no caveat is among them
SAID_BY_UNITS = "all layers point points seeds thread threads most least set"
# how the lead puts an answer; `untried` and equal bounds make an answer `enough`
SAID_BY_LEADS = (
    "needs lose loses one seed with distillation are enough keep nothing smaller that was the may "
    "bring trials answer yet score compare full model only above guessing did not learn its lists"
)
# a caveat of the text, by the column that has it under another name: a number that is null or false
SAID_BY_NOTHING = {
    "not measured": (
        "inference_speedup",
        "finetune_speedup",
        "texts_per_second_1",
        "texts_per_second_64",
    ),
    "unsteady": ("finetune_steady", "inference_steady"),
    "missing": ("mean", "random_mean", "mean_plain", "mean_distilled"),
    "other models": ("seed_sd_from",),
    "†": ("n_learned_nothing",),
}


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from flat(item)
    elif value is not None:
        yield value


def words_of(text: str) -> set[str]:
    return {*WORD.findall(text.lower().replace("_", " "))}


def told(rows: Iterable[Row]) -> tuple[set[float], set[str]]:
    """The numbers and words of rows: values, and names of columns that are neither null, zero nor
    false."""
    numbers, words = set[float](), set[str]()
    for row in rows:
        for name, value in row.items():
            values = [*flat(value)]
            words |= words_of(name) if any(values) else set()
            for one in values:
                if isinstance(one, str):
                    words |= words_of(one)
                    numbers |= {float(number.replace(",", "")) for number in NUMBER.findall(one)}
                elif not isinstance(one, bool):
                    left = (row.get("depth") or 0) - one  # layers that stay
                    numbers |= {
                        scale * abs(n) for n in (one, left) for scale in (1, 1 / 60, 1e-3, 1e-6)
                    }
        for said, names in SAID_BY_NOTHING.items():
            if any(name in row and (not row[name]) == (said != "†") for name in names):
                words |= words_of(said)
    return numbers, words


def untold(text: str, numbers: set[float], words: set[str]) -> Iterator[str]:
    """The numbers and words of a text that are not among these."""
    for number in NUMBER.findall(re.sub(r"(?<=\d),(?=\d{1,2}\b)", " ", text)):
        value, step = float(number.replace(",", "")), 10.0 ** -len(number.partition(".")[2])
        if not any(abs(known - value) <= 0.501 * step for known in numbers):
            yield number
    for word in words_of(text):
        if not any(word.startswith(known) or known.startswith(word) for known in words):
            yield word


@pytest.mark.parametrize("name", TABLES)
def test_each_number_and_caveat_of_the_text_is_in_its_row(store: Store, name: str) -> None:
    table = TABLES[name]
    shown, _ = made(store, name)
    raw = shown.long.to_pylist()
    known = words_of(SAID_BY_UNITS)
    for row in table.prepare(raw):
        numbers, words = told([{name: row[name] for name in shown.long.column_names}])
        texts = {
            **context([row]),
            **table.columns,
            **({"": table.by_task} if table.by_task else {}),
        }
        for heading, text in texts.items():
            if heading != "kept":  # over all tasks
                assert [*untold(text(row), numbers, words | known)] == [], (heading, text(row), row)
    numbers, words = told(raw)
    for line in shown.lead:
        assert [*untold(line, numbers, words | known | words_of(SAID_BY_LEADS))] == [], line


@pytest.mark.parametrize("name", [name for name in TABLES if "strategy" in TABLES[name].takes])
def test_what_is_not_comparable_is_in_its_row_as_in_the_notes(gaps: Store, name: str) -> None:
    shown, _ = made(gaps, name)
    rows = [row for row in shown.long.to_pylist() if row.get("task", "mixed") == "mixed"]
    marks = [row["mixed"] if "mixed" in row else "not comparable" in row["caveats"] for row in rows]
    assert not rows or (all if "task" in rows[0] else any)(marks), rows
    others = (row for row in shown.long.to_pylist() if row.get("task", "mixed") != "mixed")
    assert not any(row.get("mixed") or "not comparable" in row.get("caveats", ()) for row in others)


def test_the_check_finds_a_number_and_a_caveat_that_the_row_lacks() -> None:
    row = {"depth": 12, "max_dropped_low": 6, "caveats": ["not tried"], "busy": False}
    said = told([row])
    assert [*untold("6 of 12 not tried", *said)] == []
    assert sorted(untold("4–6 of 12 (K=7-8 busy)", *said)) == ["4", "7", "8", "busy"]
