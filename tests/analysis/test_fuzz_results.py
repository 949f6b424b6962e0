"""Whatever a query gives, it is sound text in every format: no escape sequence reaches a terminal,
no value breaks a table, and JSON is JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from lp_sweep.analysis.render import FORMATS, render_rows
from lp_sweep.storage.errors import QueryError
from tests.support.fuzzing import run
from tests.support.sqlworld import ESCAPES, World, refuse, standing_in


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


EACH = VALUES.strip().splitlines()
columns = st.lists(st.tuples(st.sampled_from(EACH), st.sampled_from(NAMES)), min_size=1, max_size=4)


@pytest.mark.parametrize(
    "examples", [20, pytest.param(5_000, marks=pytest.mark.slow)], ids=["everyday", "long"]
)
def test_results(world: World, examples: int) -> None:
    def law(columns: list[tuple[str, str]], rows: int) -> None:
        rendered(world, columns, rows)

    run(examples, law, columns=columns, rows=st.integers(0, 2))


def test_each_value(world: World) -> None:
    for value in EACH:
        rendered(world, [(value, "a"), ("1", "b")], 1)
