"""Rows and labels of files of every format. Wrong rows of text files: test_fuzz_data."""

import bz2
import gzip
import json
import lzma
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from lp_sweep.orchestrator.export.places import hub_source
from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.datasource import (
    data_fingerprint,
    dev_texts,
    doubtful_rows,
    load_task,
    overlap,
    rules_of,
    unlabelled_fingerprint,
)
from lp_sweep.trials.data.delimited import quoting_of
from lp_sweep.trials.data.tasks import GLUE_REVISION, TASKS, TaskSource, glue_source
from lp_sweep.trials.spec.specs import TaskDefinition
from tests.support.kindworlds import WRITERS
from tests.support.rows import GOOD, HEADER, NUMBERS, ONE, files, parquet

TEXTS = pa.array(["a", "b", "c"])


@pytest.mark.parametrize("kind", WRITERS)
def test_the_first_rows_of_a_large_file(tmp_path: Path, kind: str) -> None:
    """All dev rows are read, and only the first train rows."""
    texts, labels = ["a", 'b "x"', "c", "bad"], ["yes", "no", "yes", "yes"]
    path = tmp_path / f"rows.{kind}"
    WRITERS[kind](path, {"text": texts, "label": labels})
    source = TaskSource(files={"train": str(path), "dev": str(path)})
    part = load_task(ONE, source, most=3)
    assert (part.train.texts, len(part.dev["dev"]), part.looked_at) == ((texts[:3],), 4, 3)
    assert part.label_names == ("no", "yes")
    whole = load_task(ONE, source, most=4)
    assert (whole.train.texts, whole.looked_at) == ((texts,), None)


ALIKE = {
    "accent": ("caf\xe9", "cafe\u0301"),
    "zero-width": ("bad", "ba\u200bd"),
    "mark": ("bad", "\ufeffbad"),
    "cyrillic": ("bad", "b\u0430d"),
    "decimal": ("1", "1.0"),
    "null": ("bad", "bad\0"),
}


def in_one_file(folder: Path, shape: str, names: list[str]) -> tuple[TaskDefinition, TaskSource]:
    """Two rows for each name: as their classes, in lists of labels, or as tags of words."""
    rows = [name for name in names for _ in range(2)]
    if shape == "class":
        return ONE, parquet(folder, None, text=["t"] * len(rows), label=rows)
    if shape == "labels":
        lists = replace(ONE, kind="multi_label", metric="micro_f1")
        return lists, parquet(folder, None, text=["t"] * len(rows), label=[["x", r] for r in rows])
    tags = replace(ONE, kind="tokens", metric="entity_f1")
    marked = [["O", f"B-{row}"] for row in rows]
    return tags, parquet(folder, None, text=[["a", "b"]] * len(rows), label=marked)


@pytest.mark.parametrize(
    ("kind", "shape"), [*((kind, "class") for kind in ALIKE), ("mark", "labels"), ("mark", "tags")]
)
def test_names_that_only_look_alike(tmp_path: Path, kind: str, shape: str) -> None:
    name, other = ALIKE[kind]
    definition, source = in_one_file(tmp_path, shape, [name, other, "good"])
    with pytest.raises(MissingInputError, match="spellings") as caught:
        load_task(definition, source)
    said = str(caught.value)
    assert said.isascii()
    assert all(f"{quoted!a}"[1:-1] in said for quoted in (name, other))
    assert "(row 1" in said
    listed = (
        ("O", f"B-{name}", f"B-{other}", "B-good") if shape == "tags" else (name, other, "good")
    )
    listed = ("x", *listed) if shape == "labels" else listed
    task = load_task(replace(definition, labels=listed), source)  # they are meant
    assert task.label_names == listed


# simpletransformers#51: pandas writes a list into a CSV as text
WRITTEN = {
    "pandas": ["['spam', 'ham']", "['spam']", "[]"],
    "marks": ["[0, 1, 0]", "[1, 1, 0]"],
    "json": ['["spam", "ham"]', '["ham"]'],
    "lines": ["['spam'\n 'ham']", "[0 1\n 0]"],
}


@pytest.mark.parametrize("values", WRITTEN.values(), ids=WRITTEN)
def test_lists_written_as_text(tmp_path: Path, values: list[str]) -> None:
    rows = [*values, "good"] * 2
    source = parquet(tmp_path, None, text=["t"] * len(rows), label=rows)
    with pytest.raises(MissingInputError, match=r"\(row \d\): a list written as text.*JSONL"):
        load_task(ONE, source)
    meant = replace(ONE, labels=(*values, "good"))
    assert load_task(meant, source).label_names == meant.labels
    for kind, metric in (("multi_label", "micro_f1"), ("tokens", "entity_f1")):
        with pytest.raises(MissingInputError, match=r"only reads like a list.*JSONL"):
            load_task(
                replace(ONE, kind=kind, metric=metric, text_columns=("label",)),
                parquet(tmp_path, None, label=values * 2),
            )


def test_names_in_brackets_are_no_lists(tmp_path: Path) -> None:
    names = ("(other)", "[CLS]", "[1] apple", "{a}", "[0", "0]", "(1)", "a [1]", "(a, b)")
    source = parquet(tmp_path, None, text=["t"] * 2 * len(names), label=[*names, *names])
    assert set(load_task(ONE, source).label_names) == set(names)


@pytest.mark.parametrize("shape", ["class", "labels", "tags"])
def test_names_that_differ_in_case_are_noted(tmp_path: Path, shape: str) -> None:
    definition, source = in_one_file(tmp_path, shape, ["Stra\xdfe", "STRASSE", "C", "C++", "\xb5g"])
    [note] = doubtful_rows(load_task(definition, source), source)
    assert re.search(r"case: '(B-)?STRASSE' and '(B-)?Stra\xdfe'", note)


# -- files


def test_a_mark_after_a_blank_is_odd_but_one_that_closes_a_field_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for row, odd in (('"a, b , ",0', 0), ('a, "b"', 2)):
        path.write_text(f"text,label\n{row}\n", encoding="utf-8")
        assert quoting_of(str(path), "csv").odd_line == odd


def test_formats_agree(tmp_path: Path) -> None:
    texts = ["plain", "", "ünï 🙂", "x" * 100_000]
    labels = ["pos", "neg", "neg", "pos"]
    csv = HEADER + "".join(f"{text},{label}\n" for text, label in zip(texts, labels, strict=True))
    rows = [{"text": t, "label": y, "more": 1} for t, y in zip(texts, labels, strict=True)]

    def folder() -> Path:
        made = tmp_path / str(len([*tmp_path.iterdir()]))
        made.mkdir()
        return made

    sources = [
        files(folder(), csv, csv),
        files(folder(), b"\xef\xbb\xbf" + csv.replace("\n", "\r\n").encode(), csv),
        files(folder(), csv.replace(",", "\t"), csv.replace(",", "\t"), kind="tsv"),
        files(folder(), *["\n".join(json.dumps(row) for row in rows) + "\n\n"] * 2, kind="jsonl"),
        *(
            parquet(folder(), text=pa.array(texts, kind), label=pa.array(labels))
            for kind in (pa.string(), pa.large_string(), pa.string_view())
        ),
        parquet(folder(), text=pa.array(texts), label=pa.array(labels).dictionary_encode()),
        parquet(folder(), text=pa.array(texts).dictionary_encode(), label=pa.array(labels)),
    ]
    for source in sources:
        task = load_task(ONE, source)
        assert task.train.texts == (texts,)
        assert task.train.labels.tolist() == [1, 0, 0, 1]
        assert task.label_names == ("neg", "pos")


QUOTED = ['He said ""no"" twice', "tab\there", "two\nlines", "plain"]
MEANT = ['He said "no" twice', "tab\there", "two\nlines", "plain"]


@pytest.mark.parametrize(
    ("kind", "content", "texts"),
    [
        ("tsv", "text\tlabel\n" + "".join(f'"{t}"\t{len(t) % 3}\n' for t in QUOTED), MEANT),
        ("tsv", '"text"\t"label"\n"a"\t"neg"\n"b"\t"pos"\n', ["a", "b"]),
        ("tsv", 'text\tlabel\n"a"\tneg\n"b" c\tpos\n', ['"a"', '"b" c']),
        ("csv", HEADER + '"I \\"no, no\\" twice",neg\na,pos\n', ['I "no, no" twice', "a"]),
        ("csv", HEADER + '"C:\\",neg\n"say ""a""",pos\n', ["C:\\", 'say "a"']),
        ("csv", HEADER + '"Hello, I came\nand went, ok",neg\na,pos\n',
         ["Hello, I came\nand went, ok", "a"]),
        ("csv", "label,text\nneg,\"one\ntwo, 3\"\npos,a\nneg,b\n", ["one\ntwo, 3", "a", "b"]),
        ("csv", ",text,label,,\n0,a,neg,,\n1,b,pos,,\n", ["a", "b"]),
        ("csv", HEADER + '"one\ntwo, ""three""",neg\n007,pos\nNA,pos\ntrue,neg\n',
         ['one\ntwo, "three"', "007", "NA", "true"]),
        ("tsv", 'text\tlabel\n"a lone mark\tneg\nand "another\tpos\n',
         ['"a lone mark', 'and "another']),
    ],
    ids=["doubled marks", "all", "lone marks", "backslash", "no backslash", "break", "label first",
         "nameless", "like numbers", "open marks"],
)  # fmt: skip
def test_texts_are_kept_and_quotation_marks_are_read_as_they_are_meant(
    tmp_path: Path, kind: str, content: str, texts: list[str]
) -> None:
    task = load_task(ONE, files(tmp_path, content, content, kind=kind))
    assert task.train.texts == (texts,)


OBJECTS = [{"text": text, "label": label} for text, label in zip("abc", "xyx", strict=True)]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(OBJECTS, indent=1),
        json.dumps(OBJECTS),
        json.dumps({"version": "1", "data": OBJECTS}),
        "\n".join(json.dumps(row, indent=2) for row in OBJECTS),
        "\r".join(map(json.dumps, OBJECTS)),
    ],
    ids=["indented", "array", "wrapped", "long objects", "old Mac"],
)
def test_json_of_other_shapes(tmp_path: Path, content: str) -> None:
    task = load_task(ONE, files(tmp_path, content, content, kind="json"))
    assert (task.train.texts, task.train.labels.tolist()) == ((["a", "b", "c"],), [0, 1, 0])


@pytest.mark.parametrize(
    ("kind", "packed"),
    [("csv", gzip.open), ("tsv", bz2.open), ("jsonl", lzma.open)],
    ids=["gz", "bz2", "xz"],
)
def test_packed_texts(tmp_path: Path, kind: str, packed: Any) -> None:
    path = tmp_path / f"rows.{kind}.{packed.__module__.replace('gzip', 'gz').replace('lzma', 'xz')}"
    WRITERS[kind](tmp_path / "plain", {"text": ["a", "b", "c"], "label": ["x", "y", "x"]})
    with packed(path, "wb") as file:
        file.write((tmp_path / "plain").read_bytes())
    source = TaskSource(files={"train": str(path), "dev": str(path)})
    assert data_fingerprint(source, ONE).startswith("sha256:")
    assert load_task(ONE, source).train.texts == (["a", "b", "c"],)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(MissingInputError, match="can't be read"):
        load_task(ONE, source)


def saved(folder: Path, layout: str) -> str:
    """Three rows, in two files, with names of classes."""
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["y", "x"])}
    )
    rows = datasets.Dataset.from_list(OBJECTS, features=features)
    if layout == "save_to_disk":
        rows.save_to_disk(folder / "rows", num_shards=2)
    elif layout == "dict":
        datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(folder / "rows")
        return str(folder / "rows" / "train")
    else:
        (folder / "rows").mkdir()
        for part in range(2):
            name = {"parts": "part-0{}.parquet", "shards": "train-0000{}-of-00002.parquet"}[layout]
            some = rows.shard(2, part, contiguous=True)
            some.to_parquet(folder / "rows" / name.format(part))
            (folder / "rows" / "_SUCCESS").touch()
    if layout == "shards":
        rows.to_parquet(folder / "rows" / "test-00000-of-00001.parquet")
        return str(folder / "rows" / "train-*.parquet")
    return str(folder / "rows")


def test_a_selection_that_was_saved_beside_its_rows_is_refused(tmp_path: Path) -> None:
    """Old versions of `datasets` did so; the rows alone are other rows."""
    state = Path(saved(tmp_path, "save_to_disk")) / "state.json"
    held = json.loads(state.read_bytes()) | {"_indices_data_files": [{"filename": "x.arrow"}]}
    state.write_text(json.dumps(held))
    with pytest.raises(MissingInputError, match=r"rows: .*selection"):
        load_task(ONE, TaskSource(files={"train": str(state.parent), "dev": str(state.parent)}))


@pytest.mark.parametrize("kind", [pa.list_(pa.string(), 2), pa.large_list(pa.string())], ids=str)
def test_lists_of_any_type(tmp_path: Path, kind: pa.DataType) -> None:
    lists = pa.array([["a", "b"], ["b", "c"]], kind)
    definition = replace(ONE, kind="multi_label", metric="micro_f1")
    task = load_task(definition, parquet(tmp_path, text=TEXTS[:2], label=lists))
    assert (task.label_names, task.train.labels.tolist()) == (
        ("a", "b", "c"),
        [[1, 1, 0], [0, 1, 1]],
    )


@pytest.mark.parametrize("layout", ["save_to_disk", "dict", "parts", "shards"])
def test_a_folder_of_rows(tmp_path: Path, layout: str) -> None:
    path = saved(tmp_path, layout)
    source = TaskSource(files={"train": path, "dev": path})
    task = load_task(ONE, source)
    assert (task.train.texts, task.label_names) == ((["a", "b", "c"],), ("y", "x"))
    assert load_task(ONE, source, most=2).train.texts == (["a", "b"],)
    assert data_fingerprint(source, ONE).startswith("sha256:")
    if layout in ("dict", "shards"):
        with pytest.raises(MissingInputError, match=r"rows.*several sets of rows.*train.*test"):
            load_task(ONE, TaskSource(files={"train": str(tmp_path / "rows"), "dev": path}))


# -- labels


@pytest.mark.parametrize(
    ("values", "labels", "names", "codes"),
    [
        ("b,a,b", (), ("a", "b"), [1, 0, 1]),
        ("b,a,b", ("b", "a"), ("b", "a"), [0, 1, 0]),
        ("10,9,10", (), ("9", "10"), [1, 0, 1]),
        ("1,0,1", ("neg", "pos"), ("neg", "pos"), [1, 0, 1]),
        ("1,2,1", ("2", "1"), ("2", "1"), [1, 0, 1]),  # the names are numbers: no positions
        ("01,1,01", (), ("01", "1"), [0, 1, 0]),
    ],
    ids=["names", "own order", "numbers", "positions", "named numbers", "zeros"],
)
def test_labels_of_a_csv(
    tmp_path: Path, values: str, labels: tuple[str, ...], names: tuple[str, ...], codes: list[int]
) -> None:
    rows = HEADER + "".join(f"t,{value}\n" for value in values.split(","))
    task = load_task(replace(ONE, labels=labels), files(tmp_path, rows, rows))
    assert (task.label_names, task.train.labels.tolist()) == (names, codes)


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.float64(), pa.bool_()], ids=str)
def test_numeric_label_columns(tmp_path: Path, kind: pa.DataType) -> None:
    source = parquet(tmp_path, text=TEXTS, label=pa.array([1, 0, 1]).cast(kind))
    assert load_task(ONE, source).train.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("definition", "names", "codes"),
    [
        (ONE, ("neg", "pos", "rare"), [0, 1]),  # a class without rows keeps its place
        (replace(ONE, labels=("pos", "rare", "neg")), ("pos", "rare", "neg"), [2, 0]),
        (replace(ONE, labels=("A", "B", "C")), ("A", "B", "C"), [0, 1]),  # renamed: positions
    ],
    ids=["the file's", "the task's order", "the task's words"],
)
def test_class_label_metadata(
    tmp_path: Path, definition: TaskDefinition, names: tuple[str, ...], codes: list[int]
) -> None:
    columns = {"text": pa.array(["a", "b"]), "label": pa.array([0, 1])}
    task = load_task(definition, parquet(tmp_path, ["neg", "pos", "rare"], **columns))
    assert (task.label_names, task.train.labels.tolist()) == (names, codes)


WRONG_PARQUET = {
    "no text": ({"text": pa.array([1, 2, 3]), "label": TEXTS}, "holds int64, not text"),
    "NaN class": ({"label": pa.array([0.0, np.nan, 1.0])}, "'label' is empty"),
    "fractions": ({"label": pa.array([0.5, 1.0, 2.0])}, "fractions.*regression"),
    "lists": ({"label": pa.array([[1], [2], [3]])}, "not classes"),
    "no such class": (
        {"names": ["neg", "pos"], "label": pa.array([0, 1, -1])},
        "none of 0 to 1 in 1 of 3 rows",
    ),
}


@pytest.mark.parametrize(("columns", "message"), WRONG_PARQUET.values(), ids=WRONG_PARQUET)
def test_wrong_parquet(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(MissingInputError, match=message):
        load_task(ONE, parquet(tmp_path, **{"text": TEXTS} | columns))


def test_wrong_dev_rows(tmp_path: Path) -> None:
    for definition, train, dev, message in (
        (ONE, "a,neg\nb,pos\n", "d,1\n", "unknown class '1'"),
        (NUMBERS, "a,1\nb,2\n", "c,1\nd,1\n", "holds 1 in every row"),
    ):
        source = files(tmp_path, HEADER + train, HEADER + dev)
        with pytest.raises(MissingInputError, match=rf"validation\.csv: .*{message}"):
            load_task(definition, source)


# -- limits


def test_limits_are_a_fixed_random_subset_in_file_order(tmp_path: Path) -> None:
    rows = HEADER + "".join(f"{i},{i % 2}\n" for i in range(100))
    source = files(tmp_path, rows, rows)

    def numbers(limit: int) -> list[int]:
        return [int(text) for text in load_task(ONE, source, limit_train=limit).train.texts[0]]

    task, chosen = load_task(ONE, source, limit_train=10, limit_dev=20), numbers(10)
    assert chosen == sorted(np.random.default_rng(0).permutation(100)[:10])
    assert chosen != list(range(10))
    assert task.train.labels.tolist() == [i % 2 for i in chosen]
    assert len(task.dev["validation"]) == 20
    assert set(chosen) < set(numbers(30))
    assert numbers(100) == list(range(100))


# -- rows of both sets, fingerprints


def test_dev_rows_that_also_occur_in_train(tmp_path: Path) -> None:
    train = HEADER + "a,neg\n b ,pos\nc,neg\nc,pos\n"
    dev = HEADER + "a,neg\n a,pos\nb,pos\nc,pos\nd,neg\n"
    found = overlap(load_task(ONE, files(tmp_path, train, dev)))
    assert found == (4, 1, 5), "rows, those with another label, of all"
    pair = replace(ONE, text_columns=("text", "more"))
    header = "text,more,label\n"
    source = files(tmp_path, f"{header}a,b,neg\nb,a,pos\n", f"{header}a,b ,neg\na,a,pos\n")
    assert overlap(load_task(pair, source)).rows == 1, "all text columns"
    few = load_task(ONE, files(tmp_path, train, dev), limit_dev=2)
    assert overlap(few).of == 2, "of the rows that are used"


def test_fingerprint_is_of_content_roles_and_format(tmp_path: Path) -> None:
    assert data_fingerprint(glue_source("rte", None), TASKS["rte"].definition) == (
        f"hub:nyu-mll/glue@{GLUE_REVISION}:rte:train=train,validation=validation"
    )
    other = GOOD + "d,pos\n"
    prints = []
    for i, rows in enumerate([(GOOD, other), (GOOD, other), (other, GOOD), (GOOD, GOOD)]):
        (tmp_path / f"{i} 0").mkdir()
        prints.append(data_fingerprint(files(tmp_path / f"{i} 0", *rows), ONE))
    assert prints[0] == prints[1], "the same elsewhere"
    assert len(set(prints)) == 3
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", value) for value in prints)
    rows = "text,label\ttext\tlabel\n"  # one content, two readings
    as_csv = replace(ONE, label_column="label\ttext\tlabel")
    assert data_fingerprint(files(tmp_path, rows, rows), as_csv) != data_fingerprint(
        files(tmp_path, rows, rows, kind="tsv"), ONE
    )


def test_fingerprint_finds_a_missing_column_before_anything_runs(tmp_path: Path) -> None:
    for source in (
        parquet(tmp_path, text=pa.array(["a"]), label=pa.array([0])),
        files(tmp_path, GOOD),
        files(tmp_path, '{"text": "a", "label": 1}\n', kind="jsonl"),
    ):
        with pytest.raises(MissingInputError, match=r"no column 'labels'.*Did you mean 'label'"):
            data_fingerprint(source, replace(ONE, label_column="labels"))


def more(folder: Path, content: str, name: str = "more.csv") -> TaskSource:
    """GOOD rows, and a file without labels."""
    (folder / name).write_text(content, encoding="utf-8")
    return replace(files(folder, GOOD), unlabelled=str(folder / name))


def test_texts_without_labels_follow_the_train_rows(tmp_path: Path) -> None:
    source = more(tmp_path, "note,label,text\n1,oops,d\n2,, b \n")
    found = load_task(ONE, source, limit_train=2, unlabelled=True)
    assert found.unlabelled is not None
    assert (len(found.train), found.unlabelled.texts) == (2, (["d", " b "],))
    assert found.taught.texts == ([*found.train.texts[0], "d", " b "],)
    assert list(found.taught.labels[:2]) == list(found.train.labels)
    assert dev_texts(found) == 1
    assert load_task(ONE, source).unlabelled is None  # who does not ask reads none
    assert load_task(ONE, files(tmp_path, GOOD), unlabelled=True).unlabelled is None


def test_more_texts_do_not_change_the_fingerprint_of_the_data(tmp_path: Path) -> None:
    plain, source = files(tmp_path, GOOD), more(tmp_path, "text\nd\n")
    assert data_fingerprint(source, ONE) == data_fingerprint(plain, ONE)
    assert unlabelled_fingerprint(plain, ONE) == ""
    first = unlabelled_fingerprint(source, ONE)
    (tmp_path / "b").mkdir()
    assert unlabelled_fingerprint(more(tmp_path / "b", "text\nd\n", "x.csv"), ONE) == first
    assert unlabelled_fingerprint(more(tmp_path, "text\ne\n"), ONE) != first


def test_a_file_of_texts_that_can_not_be_read(tmp_path: Path) -> None:
    source = more(tmp_path, "texts\nd\n")
    with pytest.raises(MissingInputError, match=r"more\.csv.*no column 'text'.*texts"):
        load_task(ONE, source, unlabelled=True)
    Path(source.unlabelled).unlink()
    with pytest.raises(MissingInputError, match=r"more\.csv.*no such file"):
        load_task(ONE, source, unlabelled=True)


def test_several_labels_in_a_cell(tmp_path: Path) -> None:
    """As lists of them; another separator is other data."""
    path = tmp_path / "rows.csv"
    path.write_text("text;label\na;late, broken\nb;\nc;late\n")
    files = {"train": str(path), "dev": str(path)}
    several = replace(ONE, kind="multi_label", metric="micro_f1", labels=("broken", "late"))
    source = TaskSource(files=files, label_separator=",")
    assert load_task(several, source).train.labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert data_fingerprint(source, ONE) != data_fingerprint(TaskSource(files=files), ONE)


@pytest.mark.parametrize("hub", [False, True])
def test_rules_for_rows_are_part_of_the_fingerprint_and_are_read_from_it(
    tmp_path: Path, hub: bool
) -> None:
    """Without them, empty texts are rows as well: other rows need another identifier."""
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,1\n,1\nc,0\n")
    source = TaskSource(files={"train": str(path), "dev": str(path)})
    if hub:
        source = TaskSource(dataset="a/b", revision="c" * 40, splits={"train": "t", "dev": "d"})
    found = {}
    for rules in ({}, {"drop_missing": True}, {"label_separator": ","}, {"label_separator": "@"}):
        print_ = data_fingerprint(replace(source, **rules), ONE)  # type: ignore[arg-type]
        assert rules_of(print_) == rules
        assert not hub or hub_source(print_) == replace(source, **rules)  # type: ignore[arg-type]
        found[print_] = rules
    assert len(found) == 4


def test_rows_without_a_value_are_left_out_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,1\nb,\n,0\nc,NaN\nd,0\n")
    source = TaskSource(files={"train": str(path), "dev": str(path)})
    with pytest.raises(MissingInputError, match=r"'label' is empty in 1 of 5"):
        load_task(ONE, source)
    loaded = load_task(ONE, replace(source, drop_missing=True))
    assert loaded.train.texts == (["a", "d"],)
    path.write_text("text,label\na,\n")
    with pytest.raises(MissingInputError, match="no row has a value in each of text, label"):
        load_task(ONE, replace(source, drop_missing=True))
