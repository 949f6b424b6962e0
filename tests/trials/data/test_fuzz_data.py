"""Task files of any content: examples that can be trained on, or one message with file and row."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet as pq

from lp_sweep.storage.errors import LpSweepError, MissingInputError
from lp_sweep.trials.data.datasource import LoadedTask, Split, data_fingerprint, load_task
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.spec.specs import TaskDefinition
from tests.support.everyday import few
from tests.support.fuzzing import AWKWARD, assert_good_message, awkward, fuzz, outcome
from tests.support.rows import GOOD, HEADER, NAMED, NUMBERS, ONE, files, parquet

KINDS = ("csv", "tsv", "jsonl", "parquet")
DEFINITIONS = (ONE, NAMED, NUMBERS, replace(ONE, text_columns=("text", "other"), metric="f1"))


def check_split(split: Split, task: LoadedTask) -> None:
    """Checks everything that a training run relies on."""
    assert {len(texts) for texts in split.texts} == {len(split.labels)}
    assert all(text.encode() is not None for texts in split.texts for text in texts)
    if task.definition.kind == "regression":
        assert split.labels.dtype == np.float32
        assert np.isfinite(split.labels).all()
    else:
        assert split.labels.dtype == np.int64
        assert 0 <= split.labels.min() <= split.labels.max() < len(task.label_names)
        assert len(set(task.label_names)) == len(task.label_names) >= 2
        assert all(isinstance(name, str) and name for name in task.label_names)


def lawful(source: TaskSource, definition: TaskDefinition) -> Any:
    """Reads as the plan does, then as a trial does."""
    said = Path(source.files["train"]).read_bytes().decode(errors="replace")
    planned = outcome(lambda: data_fingerprint(source, definition))
    result = outcome(lambda: load_task(definition, source))
    for found in (planned, result):
        if isinstance(found, LpSweepError):
            assert isinstance(found, MissingInputError)
            assert_good_message(found, re.escape(str(Path(source.files["train"]).parent)), said)
    if isinstance(result, LoadedTask):
        assert not isinstance(planned, LpSweepError), planned
        assert len(result.train) > 0
        for split in result.splits.values():
            check_split(split, result)
    return result


# -- any bytes, any cells

cells = st.one_of(
    awkward,
    st.sampled_from(
        ["a", "neg", "pos", "0", "1", "1.5", "-1", "true", '"', '"a', 'a"', "a,b", "\t"]
    ),
    st.integers().map(str),
    st.floats().map(str),
)
rows = st.lists(st.lists(cells, min_size=1, max_size=3), max_size=6)


def read_bytes(folder: Path, content: bytes, kind: str, definition: TaskDefinition) -> None:
    lawful(files(folder, content, content, kind=kind), definition)


def read_cells(folder: Path, lines: list[list[str]], kind: str, definition: TaskDefinition) -> None:
    comma = "\t" if kind == "tsv" else ","
    text = comma.join(("text", "label")) + "\n" + "\n".join(comma.join(line) for line in lines)
    lawful(files(folder, text.encode("utf-8", "replace"), GOOD, kind=kind), definition)


def read_values(folder: Path, lines: list[Any], definition: TaskDefinition) -> None:
    text = "\n".join(json.dumps(line) for line in lines).encode("utf-8", "replace")
    lawful(files(folder, text, text, kind="jsonl"), definition)


some = st.sampled_from(DEFINITIONS)
heads = st.sampled_from(
    [b"", GOOD.encode(), b'{"text": "a", "label": 1}\n', b"text\tlabel\na\t1\n"]
)
test_bytes = fuzz(
    read_bytes,
    10_000,
    content=st.tuples(heads, st.binary(max_size=60), heads).map(b"".join),
    kind=st.sampled_from(KINDS),
    definition=some,
)
test_cells = fuzz(
    read_cells, 10_000, lines=rows, kind=st.sampled_from(["csv", "tsv"]), definition=some
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | awkward,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(awkward, inner, max_size=2),
    max_leaves=3,
)
test_json = fuzz(
    read_values,
    10_000,
    lines=st.lists(
        st.fixed_dictionaries({}, optional={"text": awkward | values, "label": values}) | values,
        max_size=5,
    ),
    definition=some,
)


def good_parquet(folder: Path) -> bytes:
    texts, labels = pa.array(["a", "bb", "", "é🙂"] * 3), pa.array([0, 1, 1, 0] * 3)
    source = parquet(folder, ["neg", "pos"], text=texts, label=labels, other=texts)
    return Path(source.files["train"]).read_bytes()


def read_torn(folder: Path, cut: float, flips: list[tuple[float, int]]) -> None:
    content = bytearray(good_parquet(folder))
    for place, byte in flips:
        content[int(place * (len(content) - 1))] = byte
    del content[int(cut * len(content)) :]
    path = folder / "torn.parquet"
    path.write_bytes(bytes(content))
    lawful(TaskSource(files={"train": str(path), "validation": str(path)}), ONE)


test_torn_parquet = fuzz(
    read_torn,
    20_000,
    cut=st.sampled_from([1.0, 1.0, 1.0]) | st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=3),
)

T, L = pa.array(["a", "b", "c"]), pa.array([0, 1, 0])
KINDS_OF_COLUMN = {
    "list": pa.array([["x"]] * 3),
    "null": pa.nulls(3),
    "not-utf-8": pa.array([b"\xff", b"b", b"c"]),
    "broken-text": pa.StringArray.from_buffers(
        3, pa.py_buffer(np.arange(4, dtype=np.int32).tobytes()), pa.py_buffer(b"\xffab")
    ),
    "view": T.cast(pa.string_view()),
    "large": T.cast(pa.large_string()),
    "dictionary": T.dictionary_encode(),
    "dictionary-of-numbers": L.dictionary_encode(),
    "dictionary-with-null": pa.array(["a", None, "b"]).dictionary_encode(),
    "uint64": pa.array([2**64 - 1, 0, 0], pa.uint64()),
    "half": pa.array(np.array([0, 1, 0], np.float16)),
    "infinite": pa.array([0.0, np.inf, 1.0]),
    "huge": pa.array([0.0, 1e300, 1.0]),
    "decimal": pa.array([1, 2, 1]).cast(pa.decimal128(30, 2)),
    "time": pa.array([1, 2, 1], pa.timestamp("us")),
    "bool": pa.array([True, False, None]),
    "uuid": pa.array([b"a" * 16, b"b" * 16, b"a" * 16], pa.uuid()),
    "none": pa.array([], pa.string()),
}


@pytest.mark.parametrize("place", ["text", "label"])
@pytest.mark.parametrize("column", few(KINDS_OF_COLUMN.values()), ids=KINDS_OF_COLUMN.keys())
def test_any_type_of_column(tmp_path: Path, column: pa.Array, place: str) -> None:
    rest = {"text": T[: len(column)], "label": L[: len(column)], "other": T[: len(column)]}
    for definition in DEFINITIONS:
        lawful(parquet(tmp_path, **{**rest, place: column}), definition)


@pytest.mark.parametrize(
    "metadata",
    [
        *(b"{", b'{"info": null}', b"[" * 100_000),
        *(
            json.dumps({"info": {"features": {"label": {"names": names}}}}).encode()
            for names in (["x", "x"], ["", "y"], "ab")
        ),
    ],
    ids=lambda metadata: repr(metadata[-30:]),
)
def test_class_names_that_mean_nothing_are_not_used(tmp_path: Path, metadata: bytes) -> None:
    table = pa.table({"text": T, "label": L}).replace_schema_metadata({b"huggingface": metadata})
    pq.write_table(table, tmp_path / "rows.parquet")
    path = str(tmp_path / "rows.parquet")
    task = lawful(TaskSource(files={"train": path, "validation": path}), ONE)
    assert task.label_names == ("0", "1")


# -- what a user should be told

LONG = "word " * 20_000  # 100,000 characters
NAN_IS_MEANT = replace(ONE, labels=("nan", "pos"))
WORKS: dict[str, tuple[str | bytes, str | bytes, TaskDefinition]] = {
    "blank-text": (HEADER + '" \t ",neg\n\u3000,pos\n', GOOD, ONE),
    "long-text": (HEADER + f"{LONG},neg\n{LONG},pos\n", GOOD, ONE),
    "nul-emoji-rtl": (HEADER + "a\0b,neg\n👨‍👩‍👧\u202eabc,pos\nשלום,neg\n", GOOD, ONE),
    "carriage-returns": (GOOD.replace("\n", "\r\n"), GOOD.replace("\n", "\r"), ONE),
    "blank-lines": ("\n" + GOOD.replace("\n", "\n\n"), GOOD, ONE),
    "one-class-dev": (GOOD, HEADER + "a,pos\n", ONE),
    "one-row-dev": (GOOD, HEADER + "a,neg", ONE),
    "versions": (HEADER + "a,1.1\nb,1.10\n", HEADER + "a,1.1\n", ONE),
    "codes": (HEADER + "a,01\nb,1\n", HEADER + "a,1\n", ONE),
    "intervals": (HEADER + 'a,"[0, 10]"\nb,"[10, 20]"\n', HEADER + 'a,"[0, 10]"\n', ONE),
    "ages": (HEADER + "a,[18-25]\nb,[26-35]\n", HEADER + "a,[18-25]\n", ONE),
    "null-as-name": (HEADER + "a,NULL\nb,pos\n", HEADER + "a,pos\n", ONE),
    "nan-that-is-a-class": (HEADER + "a,nan\nb,pos\n", HEADER + "a,pos\n", NAN_IS_MEANT),
}  # fmt: skip


@pytest.mark.parametrize(("train", "dev", "definition"), WORKS.values(), ids=WORKS.keys())
def test_it_just_works(
    tmp_path: Path, train: str | bytes, dev: str | bytes, definition: TaskDefinition
) -> None:
    task = lawful(files(tmp_path, train, dev), definition)
    assert isinstance(task, LoadedTask), task


LATIN_1 = (GOOD + "é,neg\n").encode("latin-1")
UTF16, UTF8_SURROGATE = GOOD.encode("utf-16"), HEADER.encode() + b"\xed\xa0\x80,pos\nb,neg\n"
JSON = '{"text":"a","label":1}\n'
TOLD: dict[str, tuple[str, str | bytes, TaskDefinition, str]] = {
    # file, content, definition, what is said after the file's name
    "nan": ("csv", HEADER + "a,NaN\nb,pos\n", ONE, r"holds 'NaN' \(row 1\): a missing value"),
    "empty": ("csv", HEADER + "a,\nb,pos\n", ONE, "'label' is empty in 1 of 2 rows.*in row 1"),
    "spaces": ("csv", HEADER + "a,pos\nb,pos \n", ONE, r"'pos' \(row 1\) and 'pos ' \(row 2\)"),
    "unknown": ("csv", HEADER + "a,neg\nb,\x1b[31m\n", NAMED, r"'\\x1b\[31m' .* row 2. Known:"),
    "swapped": ("csv", f"label,text\n{LONG},pos\nb,neg\n", NAMED, "class 'word word.* row 1"),
    "alike": ("csv", HEADER + "a,neg\nb,neg\u200b\n", NAMED, r"mean 'neg', not 'neg\\u200b'"),
    "column": ("csv", "text\xa0,label\na,0\n", ONE, r"mean 'text\\xa0', not 'text'"),
    "one-class": ("csv", HEADER + "a,neg\nb,neg\n", NAMED, "every row is of class 'neg'"),
    "typo": ("csv", HEADER + "a,neg\nb,poss\n", NAMED, "'poss'.*row 2.*Did you mean 'pos'"),
    "out-of-range": ("csv", HEADER + "a,0\nb,2\n", NAMED, r"class '2'.*Known: 0, 1\."),
    "one-number": ("csv", HEADER + "a,1\nb,1\n", NUMBERS, "holds 1 in every row"),
    "f1-of-three": ("csv", HEADER + "a,x\nb,y\nc,z\n", replace(ONE, metric="f1"), "Use macro_f1"),
    "word": ("csv", HEADER + "a,1\nb,x\n", NUMBERS, "numbers for regression, and row 2 holds 'x'"),
    "too-large": ("csv", HEADER + "a,1\nb,1e300\n", NUMBERS, "not a finite number.*row 2"),
    "latin-1": ("csv", LATIN_1, ONE, r"line 5 \(b'.xe9,neg.n'\). Save it as UTF-8.*CP1252"),
    "surrogate": ("csv", UTF8_SURROGATE, ONE, "not UTF-8: line 2"),
    "utf-16": ("csv", UTF16, ONE, "is UTF-16, not UTF-8: save it as UTF-8"),
    "gzip": ("csv", gzip.compress(GOOD.encode()), ONE, "by gzip: add .gz to its name"),
    "gzip-parquet": ("parquet", gzip.compress(GOOD.encode()), ONE, "compressed by gzip"),
    "parquet-as-csv": ("csv", b"PAR1" + bytes(60), ONE, "give it the suffix .parquet"),
    "csv-as-parquet": ("parquet", GOOD, ONE, "can't be read as parquet.*whole parquet file"),
    "empty-file": ("csv", "", ONE, "is an empty file"),
    "blank": ("csv", "\n\n", ONE, "empty lines only"),
    "swallowed": ("csv", HEADER + 'a,0\n"b,1\n' + "c,0\n" * 20 + 'd "e",1\n', ONE,
                  "row 2 takes lines 3 to 24: a quotation mark in line 3"),
    "header": ("csv", HEADER, ONE, "has no rows"),
    "ragged": ("csv", HEADER + "a,0\nb\n", ONE, "line 3 has 1 column, not 2"),
    "open-quote": ("csv", HEADER + 'a,0\n"b,1\n' + "c,0\n" * 9999, ONE, "row 2 .*lines 3 .*mark"),
    "open-header": ("csv", '"text,label\n' + "a,0\n" * 99_999, ONE, "quotation mark"),
    "second-header": ("csv", GOOD + GOOD, ONE, "line 5 repeats the names"),
    "ignored": ("csv", HEADER + "a,-100\nb,1\nc,0\n", ONE, r"'-100' \(row 1\): a missing value"),
    "two-values": ("jsonl", JSON + '{"text":"b","text":"c"}', ONE, "line 2: 'text' has two"),
    "bars": ("csv", "text|label\na|0\n", ONE, "no column 'text'"),
    "twice": ("csv", "text,text,label\na,b,0\n", ONE, "two columns 'text'"),
    "other-columns": ("csv", ",".join(f"c{n}" for n in range(5000)) + "\n", ONE, r"c19, \.\.\.\. "),
    "null": ("jsonl", JSON + '{"text":null,"label":2}', ONE, "'text' is empty in 1 of 2.*row 2"),
    "latin-1-json": ("jsonl", b'{"text":"\xff","label":1}', ONE, "Save it as UTF-8"),
    "list": ("jsonl", JSON + '[{"text": "a", "label": 1}]', ONE, "line 2 is no JSON object"),
    "texts": ("jsonl", '["a", "b"]', ONE, "row 1 is 'a', not an object"),
    "broken-array": ("jsonl", '[\n{"text": "a"},\n{"text" "b"}]', ONE, "line 3 is not JSON"),
    "not-a-number": ("jsonl", '{"text":NaN,"label":2}\n' + JSON, ONE, "'text' is empty.*row 1"),
    "odd-first": ("jsonl", JSON.replace("1", "[]") + JSON * 2, ONE, "line 1: 'label' is .*most"),
    "spans": ("jsonl", '{"text":"a","label":[[0,1,"X"]]}\n' * 2, ONE, "Spans of characters"),
    "first-lacks": ("jsonl", '{"text":"b"}\n' + JSON, ONE, "'label' is empty in 1 of 2.*row 1"),
    "mixed": ("jsonl", JSON + '{"text":"b","label":"x"}', ONE, "line 2: 'label' is 'x', a value"),
    "wide": ("jsonl", '{"text":"a","label":' + "9" * 30 + "}", ONE, "line 1: 'label' .*64 bits"),
    "comma": ("jsonl", '{"text": "a"},\n{"text": "b"},\n', ONE, "line 1 .* ends in a comma"),
    "python": ("jsonl", "{'text': 'a'}\n{'text': 'b'}\n", ONE, "single quotes.*json.dumps"),
    "one-odd-text": ("jsonl", JSON.replace("1", '["a"]') * 2 + JSON.replace("1", '"a"'), ONE,
                     "line 3: 'label' is 'a', a value of another kind.*as lists"),
    "items": ("jsonl", JSON.replace("1", '["In", 1999]') * 2, ONE, "Write all of them as texts"),
    "sets": ("json", '{"train": [{"text": "a"}], "test": [{"text": "b"}]}', ONE, "sets of rows"),
    "columns": ("json", '{"text": {"0": "a"}, "label": {"0": 1}}', ONE, "orient="),
    "index": ("json", '{"0": {"text": "a"}, "1": {"text": "b"}}', ONE, "orient='records'"),
    "lists": ("json", '{"text": ["a b", "c"], "label": [1, 2]}', ONE, "rows are spread over one"),
    "split": ("json", '{"columns": ["text"], "data": [["a"], ["b"]]}', ONE, "an object for each"),
    "pointer": ("jsonl", "version https://git-lfs.github.com/spec/v1\n", ONE, "git lfs pull"),
    "page": ("csv", "<!DOCTYPE HTML>\n<html>", ONE, "is a web page"),
    "signs": ("csv", HEADER + "a,1\nb,+1\n", ONE, r"'1' \(row 1\) and '\+1' \(row 2\)"),
    "hive-null": ("csv", HEADER + "a,\\N\nb,pos\n", ONE, "a missing value"),
    "close": ("csv", HEADER + "a,1700000001\nb,1700000002\n", NUMBERS, "32 bits.*Subtract"),
    "words-as-txt": ("txt", "-DOCSTART- -X- -X- O\n\na B C O\n", ONE, "of words is named .conll"),
    "deep": ("jsonl", '{"text":' + "[" * 100_000, ONE, "line 1 is not JSON"),
    "half": ("jsonl", '{"text":"\\ud800","label":1}', ONE, "line 1: 'text' .*half a character"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "content", "definition", "message"), TOLD.values(), ids=TOLD)
def test_the_message_says_where_and_what_to_do(
    tmp_path: Path, kind: str, content: str | bytes, definition: TaskDefinition, message: str
) -> None:
    dev = JSON if kind == "jsonl" else GOOD
    result = lawful(files(tmp_path, content, dev, kind=kind), definition)
    assert isinstance(result, MissingInputError), result
    assert str(result).startswith(f"{tmp_path}/train.{kind}: ")
    assert re.search(message, str(result)), str(result)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.csv", Path.mkdir, "is a folder without rows. Name a file"),
        ("a.csv", lambda path: path.symlink_to(path), "no such file"),
        ("a\0.csv", lambda path: None, "no such file"),
        ("x" * 300 + ".csv", lambda path: None, "can't be read as csv: .*too long"),
        ("a.csv.gz", Path.touch, "is an empty file"),
        ("a.csv.gz", lambda path: path.write_text(GOOD), "Not a gzipped file"),
        ("a.csv.zip", Path.touch, r"ends in '\.zip'.*\.parquet, \.arrow, \.csv"),
        ("a-*.csv", lambda path: None, "no file has such a name"),
    ],
    ids=["folder", "loop", "nul", "long", "gz", "no-gz", "zip", "pattern"],
)
def test_what_is_no_file(
    tmp_path: Path, name: str, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / name)
    path = f"{tmp_path}/{name}"
    with pytest.raises(MissingInputError, match=message):
        load_task(ONE, TaskSource(files={"train": path, "validation": path}))


@pytest.mark.parametrize(
    "name", few(name for name in AWKWARD if name and not {"/", "\0"} & {*name}), ids=repr
)
def test_a_file_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name[:200]}.csv"
    path.write_text(GOOD, encoding="utf-8")
    source = TaskSource(files={"train": str(path), "validation": str(path)})
    assert data_fingerprint(source, ONE).startswith("sha256:")
    assert len(load_task(ONE, source).train) == 3
