"""Every format says the same, and the user's own text can't break any of them."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lp_sweep.analysis.render import FORMATS, render, render_rows
from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import QueryError, SpecError
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep
from tests.support.sqlworld import ESCAPES, World, refuse, standing_in

HOSTILE = {
    "quotes": """it's "a" model""",
    "unicode": "модель-模型-é",
    "markdown": "a|b*c*_d_`e`[f](g)<b>",
    "latex": r"50%_of\input{x}$&#~^{}",
    "markup": "[red]bert[/red]",
    "comma-newline": "a,b\nc",
    "escape-sequence": "\x1b[31mred\x07",
    "right-to-left": "abc\u202edef",
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    fake = FakeSweep(tmp_path_factory.mktemp("store"))
    fake.curve({0: 92.43, 6: 90.25})
    fake.cell(k=8, state="failed")
    with open_views(fake.publish()) as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    """A model's name -> the table of that model alone."""
    fake = FakeSweep(tmp_path_factory.mktemp("hostile"))
    for name in HOSTILE.values():
        fake.curve({0: 92.43, 6: 90.25}, model=name)
    with open_views(fake.publish()) as opened:
        return {name: TABLES["tasks"](opened, models=[name]) for name in HOSTILE.values()}


def test_an_empty_store_renders(tmp_path: Path) -> None:
    with open_views(Store(tmp_path, create=True)) as empty:
        for table in [make(empty) for make in TABLES.values()]:
            for format in FORMATS:
                assert render(table, format, terminal=False), format
            assert render(table, terminal=True, width=80)


def test_json_and_csv_are_the_long_form_with_raw_numbers(catalog: Catalog) -> None:
    table = TABLES["tasks"](catalog)
    objects = json.loads(render(table, "json"))
    records = list(csv.DictReader(io.StringIO(render(table, "csv"))))
    assert len(objects) == len(records) == table.long.num_rows == 3
    assert objects[1]["mean"] == pytest.approx(90.25)
    assert objects[1]["kept_layers"] == [1, 2, 3, 4, 5, 6]
    assert objects[2]["mean"] is None
    assert float(records[1]["mean"]) == objects[1]["mean"], "all digits"
    assert records[1]["kept_layers"] == "[1, 2, 3, 4, 5, 6]"
    assert records[2]["mean"] == ""


# query, format -> text
RENDERED = {
    ("SELECT model, k, score FROM cells ORDER BY cell", "table"): (
        "model  k  score\n-----  -  -----\nbert   0  92.43\nbert   6  90.25\nbert   8   NULL\n"
    ),
    ("SELECT unnest(['模型模型', 'ab']) AS name, 1 AS n", "table"): (
        "name      n\n--------  -\n模型模型  1\nab        1\n"
    ),
    ("SELECT 'a_b' AS max_dropped, 1.5 AS x", "markdown"): (
        "| max_dropped | x |\n|---|---:|\n| a_b | 1.5 |\n"
    ),
    ("SELECT 'a_b' AS max_dropped, 1.5 AS x", "latex"): (
        "\\begin{tabular}{lr}\n\\toprule\nmax\\_dropped & x \\\\\n\\midrule\n"
        "a\\_b & 1.5 \\\\\n\\bottomrule\n\\end{tabular}\n"
    ),
}


@pytest.mark.parametrize(("sql", "form"), RENDERED)
def test_the_rows_of_a_query(catalog: Catalog, sql: str, form: str) -> None:
    assert render_rows(catalog.query(sql), form, terminal=False) == RENDERED[sql, form]


def test_a_terminal_breaks_notes_between_words_and_a_pipe_nowhere(catalog: Catalog) -> None:
    table = TABLES["min-layers"](catalog)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", render(table, terminal=True, width=50))
    note = next(note for note in table.notes if len(note) > 100)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 50
    assert note in " ".join(" ".join(lines).split())
    assert note in render(table, terminal=False).splitlines()


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_name_breaks_no_format(hostile: dict[str, Table], name: str) -> None:
    def body(format: str = "table", **where: Any) -> str:
        """The row, and what is said once above it: the name."""
        text = render(hostile[name], format, **where)
        assert not any(control in text for control in ("\x1b[31m", "\x07", "\u202e"))
        if format == "table":  # names the model once, above
            return text
        lines = text.splitlines()
        (row,) = [number for number, line in enumerate(lines) if "92.43" in line]
        above = next(line for line in lines if "model " in line)
        assert lines[row].count("|") == lines[row - 2].count("|")  # the heading
        assert lines[row].count(" & ") == lines[row - 2].count(" & ")
        return lines[row] if format == "latex" else above + lines[row]

    assert json.loads(render(hostile[name], "json"))[0]["model"] == name
    assert next(csv.DictReader(io.StringIO(render(hostile[name], "csv"))))["model"] == name
    for terminal in (False, True):
        shown = body(terminal=terminal, width=200)
        assert name in shown or not name.isprintable()
    bare = body("markdown").replace("\\\\", "").replace("\\|", "")
    assert bare.count("|") == 4
    assert "<b>" not in bare.replace("\\<", "")
    known = r"\\text[a-z]+\{\}|\\[{}$&#%_]|\{[\[\]]\}|\$-\$| & | \\\\$"
    assert not re.search(r"[\\{}$&#%_^~<>\[\]|]", re.sub(known, "", body("latex")))


def test_values_for_people() -> None:
    shown: list[tuple[Any, str]] = [
        *((2e-05, "2e-05"), (107_000_000.0, "107000000.0"), (1e300, "1e+300")),
        *((0.1 + 0.2, "0.3"), (0.0, "0.0"), (math.nan, "NULL"), ("2", "2"), (True, "true")),
        (["a", None], '["a", null]'),
    ]
    for value, said in shown:
        text = render_rows(pa.table({"value": [value]}), terminal=False)
        assert text.splitlines()[2].strip() == said


def test_an_unknown_format_is_the_users_error(catalog: Catalog) -> None:
    with pytest.raises(SpecError, match=r"unknown format 'xlsx'\. Choose one of: table"):
        render(TABLES["tasks"](catalog), "xlsx")


# -- whatever a query gives is sound text in every format


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with standing_in(tmp_path_factory.mktemp("world")) as world:
        yield world


VALUES = r"""
chr(27) || '[31m'
chr(155) || '2J'
chr(8238)
chr(0)
chr(10)
'a|b'
'</td><script>'
'=1+1'
'\input{x}'
'"'
'[red]x[/]'
'é🙂'
'x'::BLOB
uuid()
'NaN'::DOUBLE
'inf'::FLOAT
-0.0
1e308 * 10
['nan'::DOUBLE, 1]
{'a': 'inf'::DOUBLE}
MAP {1: 'nan'::DOUBLE}
'infinity'::DATE
'-infinity'::TIMESTAMP
TIMESTAMPTZ 'infinity'
'0044-03-15 (BC)'::DATE
['infinity'::DATE]
{'a': ['290000-01-01'::TIMESTAMP]}
MAP {'a': 'infinity'::DATE}
['infinity'::DATE, NULL]::DATE[2]
TIME '24:00:00'
'12:00:00+02'::TIMETZ
INTERVAL 3 MONTH
2::HUGEINT ** 120
'0101'::BIT
1.5::DECIMAL(38, 10)
170141183460469231731687303715884105727
NULL
[]
[NULL]
[[1], NULL]
union_value(a := 1)
'a'::ENUM ('a')
true
to_json({'a': 1})
['a', 'b']::VARCHAR[2]
now()
DATE '2020-01-01'
error(chr(27) || '[31m')
repeat('x', 100000)
"""
NAMES = ["a", "b c", "a", "|", "\\", "<b>", "%", "\x1b[31m", "é", "=1"]


def rendered(world: World, columns: list[tuple[str, str]], rows: int) -> None:
    listed = ", ".join(f'{value} AS "{name}"' for value, name in columns)
    result = world.ask(f"SELECT {listed} FROM range({rows})")
    if isinstance(result, QueryError):
        return
    for form in FORMATS:
        for terminal in (False, True):
            text = render_rows(result, form, terminal=terminal, width=80)
            assert text.endswith("\n")
            text.encode()
            drawn = form == "table" and terminal  # by rich, with colours of its own
            if (terminal or form != "csv") and not drawn:
                assert not ESCAPES.search(text), (form, text)
    objects = json.loads(render_rows(result, "json"), parse_constant=refuse)
    assert len(objects) == rows
    assert all(len(item) == len(columns) for item in objects)
    lines = list(csv.reader(io.StringIO(render_rows(result, "csv"), newline="")))
    assert {len(line) for line in lines} <= {len(columns), 0}  # a lone null is an empty line
    markdown = render_rows(result, "markdown").splitlines()
    assert len(markdown) == rows + 2
    bars = re.compile(r"(?<!\\)(?:\\\\)*\|")
    assert {len(bars.findall(line)) for line in markdown} == {len(columns) + 1}


def test_each_value_under_each_kind_of_name(world: World) -> None:
    rendered(world, [("1", name) for name in NAMES], 0)
    names = itertools.cycle(NAMES)
    for value in VALUES.strip().splitlines():
        rendered(world, [(value, next(names)), ("1", "a"), (value, next(names))], 2)
