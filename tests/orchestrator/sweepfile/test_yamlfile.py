"""Sweep files as YAML: values, their lines, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.sweepfile.yamlfile import (
    parse_value,
    parse_yaml,
    read_yaml,
    yaml_text,
)
from lp_sweep.storage.errors import SpecError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-5", 2e-5),
        ("1_000", 1000),
        ("0x1f", 31),
        ("042", "042"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("true", True),
        ("~", None),
    ],
)
def test_scalars(text: str, value: object) -> None:
    parsed = parse_yaml(f"a: {text}\n", "f").content["a"]
    assert parsed == parse_value(text, "f") == value
    assert type(parsed) is type(value)


READ_OTHERWISE = """\
1E50 2e5 6e01 .5 5. .inf .NaN 012 0x1f 0o17 0b1 1_000 12:30 no Yes off ON y ~ null NULL true
2024-01-01 2001-12-14t21:59:43Z = << - ? : --- ... # & * ! | > % @ ` ' \" [] {} , a:b
"""
LOOKALIKES = READ_OTHERWISE.split()
TEXTS = st.one_of(
    st.sampled_from(LOOKALIKES),
    st.from_regex(r"[-+]?[0-9_.:xobeE+-]{1,8}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.sampled_from([*LOOKALIKES, "a", " ", "\n", "\t", "\0", "\u2028", "\xa0"])).map(
        "".join
    ),
)
SCALARS = (
    TEXTS | st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.floats(allow_nan=False)
)


@given(st.dictionaries(TEXTS, SCALARS | st.lists(SCALARS, max_size=4), max_size=4), SCALARS)
def test_what_is_written_is_read_as_it_was(content: dict[str, Any], one: object) -> None:
    assert repr(parse_yaml(yaml_text(content), "f").content) == repr(content)
    in_line = yaml_text([one], in_line=True)
    assert in_line.count("\n") == 1
    parsed = parse_yaml(f"a:\n  - b: {in_line[1:-2]}   # c\n    d: 1\n", "f").content
    assert repr(parsed["a"]) == repr([{"b": one, "d": 1}])


def test_every_value_knows_its_line_and_aliases_are_copies() -> None:
    document = parse_yaml("# comment\na: 1\nb:\n  - x: 2\n    y: 3\n  -\n    z\n", "s.yaml")
    assert document.content == {"a": 1, "b": [{"x": 2, "y": 3}, "z"]}
    lines = {("a",): 2, ("b",): 3, ("b", 0): 4, ("b", 0, "y"): 5, ("b", 1): 7}
    lines |= {("b", 0, "missing"): 4, ("missing",): 2}
    assert {at: document.where(at) for at in lines} == {
        at: f"s.yaml:{line}" for at, line in lines.items()
    }

    assert parse_yaml("a: &x [1]\nb: *x\n", "f").content == {"a": [1], "b": [1]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [1\nb: 2\n", r"s\.yaml:2: not valid YAML: ", id="unclosed"),
        pytest.param("a: 1\n\tb: 2\n", r"s\.yaml:2: not valid YAML: a tab\. .*spaces", id="tab"),
        pytest.param('a: "1\nb: 2\nc: 3\n', r"s\.yaml:1: not valid YAML: a quote", id="quote"),
        pytest.param("a: 1\n---\nb: 2\n", r"s\.yaml:2: not valid YAML: .*document", id="two"),
        pytest.param("a: 1\nb: '\x01'\n", r"s\.yaml:2: not valid YAML: .*#x0001", id="control"),
        pytest.param("a: 1\nb: 2\na: 3\n", r"s\.yaml:3: the key 'a' is listed twice", id="twice"),
        pytest.param("", r"s\.yaml:1: a sweep file is a mapping", id="empty"),
        pytest.param("- a\n", r"s\.yaml:1: a sweep file is a mapping", id="list"),
        pytest.param("a: 1\nb: !x {}\n", r"s\.yaml:2: '!x' is not known here", id="tag"),
        pytest.param(
            "a: !!python/object/apply:os.system [ls]", "apply:os.system.* not known", id="call"
        ),
        pytest.param("a: 0x" + "f" * 40, r"s\.yaml:1: .* is no int .*18 digits", id="large"),
        pytest.param("a: 1\nb: &x [*x]\n", r"s\.yaml:2: .*may not hold itself", id="recursive"),
    ],
)
def test_bad_yaml_names_the_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_yaml(text, "s.yaml")


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    with pytest.raises(SpecError, match=r"no sweep file at .*sweep\.yaml.*lp-sweep init"):
        read_yaml(file)
    with pytest.raises(SpecError, match="can't read"):
        read_yaml(tmp_path)
    file.write_bytes(b"a: 1\nb: \xff\xfe")
    with pytest.raises(SpecError, match=r"sweep\.yaml:2: can't read it.*as UTF-8"):
        read_yaml(file)
    file.write_bytes(b"\xef\xbb\xbfname: x\n")  # a byte order mark
    assert read_yaml(file).content == {"name": "x"}
    with file.open("r+b") as stream:
        stream.truncate(8 << 30)  # a wrong name may be a model's weights
    with pytest.raises(SpecError, match="has more than 128 KiB"):
        read_yaml(file)
