"""Every format says the same, and the user's own text can't break any of them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lp_sweep.analysis.render import FORMATS, render, render_rows
from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.catalog import Catalog
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep

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
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with open_views(Store(tmp_path_factory.mktemp("empty"), create=True)) as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Table]:
    """A model's name -> the table of that model alone."""
    fake = FakeSweep(tmp_path_factory.mktemp("hostile"))
    for name in HOSTILE.values():
        fake.curve({0: 92.43, 6: 90.25}, model=name)
    with open_views(fake.publish()) as opened:
        return {name: TABLES["tasks"](opened, models=[name]) for name in HOSTILE.values()}


@pytest.mark.parametrize(
    "name", sorted(TABLES.keys() - {"random-control", "distillation", "embeddings", "setups"})
)
def test_each_table_in_each_format_ends_in_one_newline(catalog: Catalog, name: str) -> None:
    table = TABLES[name](catalog)
    for format in FORMATS:
        text = render(table, format, terminal=False)
        assert "bert" in text, format
        assert text.endswith("\n"), format
        assert not text.endswith("\n\n"), format


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_store_renders(empty: Catalog, name: str) -> None:
    table = TABLES[name](empty)
    for format in FORMATS:
        assert render(table, format, terminal=False), format
        assert render(table, format, terminal=True, width=80), format


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


def test_the_plain_table_is_aligned(catalog: Catalog) -> None:
    sql = "SELECT model, k, score FROM cells ORDER BY cell"
    assert render_rows(catalog.query(sql), "table", terminal=False) == (
        "model  k  score\n-----  -  -----\nbert   0  92.43\nbert   6  90.25\nbert   8   NULL\n"
    )


def test_a_terminal_breaks_notes_between_words_and_a_pipe_nowhere(catalog: Catalog) -> None:
    table = TABLES["min-layers"](catalog)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", render(table, terminal=True, width=50))
    note = next(note for note in table.notes if len(note) > 100)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 50
    assert note in " ".join(lines)
    assert note in render(table, terminal=False).splitlines()


def test_wide_characters_are_aligned(catalog: Catalog) -> None:
    rows = catalog.query("SELECT unnest(['模型模型', 'ab']) AS name, 1 AS n")
    assert render_rows(rows, terminal=False).splitlines()[2:] == ["模型模型  1", "ab        1"]


def test_markdown_and_latex_of_a_query(catalog: Catalog) -> None:
    rows = catalog.query("SELECT 'a_b' AS max_dropped, 1.5 AS x")
    assert render_rows(rows, "markdown") == "| max_dropped | x |\n|---|---:|\n| a_b | 1.5 |\n"
    assert render_rows(rows, "latex") == (
        "\\begin{tabular}{lr}\n\\toprule\nmax\\_dropped & x \\\\\n\\midrule\n"
        "a\\_b & 1.5 \\\\\n\\bottomrule\n\\end{tabular}\n"
    )


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
class TestHostileNames:
    def test_json_and_csv_keep_it(self, hostile: dict[str, Table], name: str) -> None:
        table = hostile[name]
        assert json.loads(render(table, "json"))[0]["model"] == name
        assert next(csv.DictReader(io.StringIO(render(table, "csv"))))["model"] == name

    @pytest.mark.parametrize("terminal", [False, True], ids=["plain", "terminal"])
    def test_a_terminal_gets_one_line_and_no_control(
        self, hostile: dict[str, Table], name: str, terminal: bool
    ) -> None:
        table = hostile[name]
        text = render(table, terminal=terminal, width=200)
        body = [line for line in text.splitlines() if "92.43" in line]
        assert len(body) == 1
        for control in ("\x1b[31m", "\x07", "\u202e"):
            assert control not in text
        if name.isprintable():
            assert name in body[0]

    def test_markdown_has_as_many_cells_as_columns(
        self, hostile: dict[str, Table], name: str
    ) -> None:
        table = hostile[name]
        (body,) = [line for line in render(table, "markdown").splitlines() if "92.43" in line]
        bare = body.replace("\\\\", "").replace("\\|", "")
        assert bare.count("|") == len(table.columns) + 1
        assert "<b>" not in bare.replace("\\<", "")

    def test_latex_has_no_bare_special_character(
        self, hostile: dict[str, Table], name: str
    ) -> None:
        table = hostile[name]
        (body,) = [line for line in render(table, "latex").splitlines() if "92.43" in line]
        assert body.count(" & ") == len(table.columns) - 1
        known = r"\\text[a-z]+\{\}|\\[{}$&#%_]|\{[\[\]]\}|\$-\$| & | \\\\$"
        assert not re.search(r"[\\{}$&#%_^~<>\[\]|]", re.sub(known, "", body))


def test_values_that_json_has_no_word_for(catalog: Catalog) -> None:
    sql = """SELECT 'nan'::DOUBLE AS nan, 'inf'::DOUBLE AS inf, sum(k) AS total, 1 AS a, 2 AS a,
             min(ended_at) AS at, any_value(versions) AS versions, true AS yes, NULL AS nothing,
             1.25::DECIMAL(9, 2) AS decimal, INTERVAL 3 DAY AS gap, 'x'::BLOB AS bytes
             FROM trials"""
    (found,) = json.loads(render_rows(catalog.query(sql), "json"))
    assert (found["nan"], found["inf"], found["nothing"]) == (None, None, None)
    assert (found["total"], found["decimal"]) == (6, 1.25)
    assert (found["a"], found["a_2"]) == (1, 2)
    assert found["at"].startswith("2026-01-05T09:3")
    assert found["versions"] == {"lp_sweep": "0.1.0", "torch": "2.13.0"}
    for format in FORMATS:
        assert render_rows(catalog.query(sql), format, terminal=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(2e-05, "2e-05", id="small"),
        pytest.param(107_000_000.0, "107000000.0", id="large"),
        pytest.param(1e300, "1e+300", id="huge"),
        pytest.param(0.1 + 0.2, "0.3", id="noise"),
        pytest.param(0.0, "0.0", id="zero"),
        pytest.param(math.nan, "NULL", id="nan"),
        pytest.param("2", "2", id="text"),
        pytest.param(["a", None], '["a", null]', id="list"),
        pytest.param(True, "true", id="bool"),
    ],
)
def test_values_for_people(value: Any, shown: str) -> None:
    text = render_rows(pa.table({"value": [value]}), terminal=False)
    assert text.splitlines()[2].strip() == shown


def test_an_unknown_format_is_the_users_error(catalog: Catalog) -> None:
    with pytest.raises(SpecError, match=r"unknown format 'xlsx'\. Choose one of: table"):
        render(TABLES["tasks"](catalog), "xlsx")
