"""Rows from files and from a hub cache, and everything that can be wrong with them."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.data import readers
from lp_sweep.trials.data.datasource import (
    LoadedTask,
    data_fingerprint,
    dev_texts,
    load_task,
    overlap,
    unlabelled_fingerprint,
)
from lp_sweep.trials.data.tasks import GLUE_REVISION, TASKS, TaskSource, glue_source
from tests.support.rows import GOOD, HEADER, ONE, files, parquet

GLUE = Path(
    os.environ.get("LP_SWEEP_DATA_DIR", Path(__file__).resolve().parents[3] / "../shared/glue")
)
OFFICIAL_DEV = {
    "sst2": [872],
    "mnli": [9815, 9832],
    "qnli": [5463],
    "qqp": [40430],
    "stsb": [1500],
    "rte": [277],
    "mrpc": [408],
    "cola": [1043],
    "wnli": [71],
}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_the_first_rows_of_a_large_file(tmp_path: Path, kind: str) -> None:
    """All dev rows are read, and only the first train rows."""
    texts, labels = ["a", 'b "x"', "c", "bad"], ["yes", "no", "yes", "yes"]
    path = {name: tmp_path / f"{name}.{kind}" for name in ("train", "dev")}
    for file in path.values():
        if kind == "parquet":
            table = pa.table({"text": texts, "label": labels})
            pq.write_table(table, file, row_group_size=2)
        elif kind == "jsonl":
            rows = zip(texts, labels, strict=True)
            file.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
        else:
            mark = "," if kind == "csv" else "\t"
            said = [f'"{t.replace(chr(34), chr(34) * 2)}"' if kind == "csv" else t for t in texts]
            rows = zip(["text", *said], ["label", *labels], strict=True)
            file.write_text("".join(f"{t}{mark}{y}\n" for t, y in rows))
    source = TaskSource(files={name: str(file) for name, file in path.items()})
    definition = TaskDefinition(text_columns=("text",), label_column="label")
    part = load_task(definition, source, most=3)
    assert (part.train.texts, len(part.dev["dev"]), part.looked_at) == ((texts[:3],), 4, 3)
    assert part.label_names == ("no", "yes")
    whole = load_task(definition, source, most=4)
    assert (whole.train.texts, whole.looked_at) == ((texts,), None)


# -- GLUE


@pytest.mark.parametrize("name", TASKS)
def test_glue_task_loads_with_the_official_dev_size(name: str) -> None:
    if not (GLUE / name).is_dir():
        pytest.skip(f"no GLUE rows of {name} in {GLUE}: set LP_SWEEP_DATA_DIR")
    definition = TASKS[name].definition
    source = glue_source(name, GLUE)
    task = load_task(definition, source)
    sizes = [len(split) for split in task.dev.values()]
    assert sizes == OFFICIAL_DEV[name] or (name == "qqp" and sizes == [5000])  # a part of train
    assert task.label_names == definition.labels
    assert task.num_labels == {"stsb": 1, "mnli": 3}.get(name, 2)
    assert len(task.train.texts) == len(definition.text_columns)
    assert task.train.labels.dtype == (np.float32 if name == "stsb" else np.int64)
    assert data_fingerprint(source, definition).startswith("sha256:")


def test_mnli_dev_splits_differ() -> None:
    if not (GLUE / "mnli").is_dir():
        pytest.skip(f"no GLUE rows of mnli in {GLUE}: set LP_SWEEP_DATA_DIR")
    task = load_task(TASKS["mnli"].definition, glue_source("mnli", GLUE))
    assert task.main_split == "validation_matched"
    matched, mismatched = task.dev.values()
    assert np.bincount(matched.labels).tolist() == [3479, 3123, 3213]
    assert np.bincount(mismatched.labels).tolist() == [3463, 3129, 3240]
    assert matched.texts[0][:50] != mismatched.texts[0][:50]


# -- files


def test_formats_agree(tmp_path: Path) -> None:
    texts = ["plain", "", "ünï 🙂", "x" * 100_000]
    labels = ["pos", "neg", "neg", "pos"]
    csv = HEADER + "".join(f"{text},{label}\n" for text, label in zip(texts, labels, strict=True))
    rows = [{"text": t, "label": y, "more": 1} for t, y in zip(texts, labels, strict=True)]
    sources = [
        files(tmp_path, csv, csv),
        files(tmp_path, b"\xef\xbb\xbf" + csv.replace("\n", "\r\n").encode(), csv),
        files(tmp_path, csv.replace(",", "\t"), csv.replace(",", "\t"), kind="tsv"),
        files(tmp_path, *["\n".join(json.dumps(row) for row in rows) + "\n\n"] * 2, kind="jsonl"),
        parquet(tmp_path, text=pa.array(texts, pa.large_string()), label=pa.array(labels)),
        parquet(tmp_path, text=pa.array(texts), label=pa.array(labels).dictionary_encode()),
    ]
    for source in sources:
        task = load_task(ONE, source)
        assert task.train.texts == (texts,)
        assert task.train.labels.tolist() == [1, 0, 0, 1]
        assert task.label_names == ("neg", "pos")


def test_csv_keeps_line_breaks_quotes_and_texts_that_look_like_numbers(tmp_path: Path) -> None:
    source = files(tmp_path, HEADER + '"one\ntwo, ""three""",neg\n007,pos\nNA,pos\ntrue,neg\n')
    assert load_task(ONE, source).train.texts == (['one\ntwo, "three"', "007", "NA", "true"],)


def test_csv_row_may_break_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 64)
    texts = [f"{'x' * length}\n{'y' * length}" for length in range(20)]
    rows = HEADER + "".join(f'"{text}",{len(text) % 4}\n' for text in texts)
    assert load_task(ONE, files(tmp_path, rows, rows)).train.texts == (texts,)


def test_tsv_keeps_lone_quotation_marks(tmp_path: Path) -> None:
    rows = 'text\tlabel\n"a lone mark\tneg\nand "another\tpos\n'
    task = load_task(ONE, files(tmp_path, rows, rows, kind="tsv"))
    assert task.train.texts == (['"a lone mark', 'and "another'],)


# -- limits


def test_limits_are_a_fixed_random_subset_in_file_order(tmp_path: Path) -> None:
    rows = HEADER + "".join(f"{i},{i % 2}\n" for i in range(100))
    source = files(tmp_path, rows, rows)

    def numbers(task: LoadedTask) -> list[int]:
        return [int(text) for text in task.train.texts[0]]

    task = load_task(ONE, source, limit_train=10, limit_dev=20)
    chosen = numbers(task)
    assert chosen == sorted(np.random.default_rng(0).permutation(100)[:10])
    assert chosen != list(range(10))
    assert task.train.labels.tolist() == [i % 2 for i in chosen]
    assert len(task.dev["validation"]) == 20
    assert set(chosen) < set(numbers(load_task(ONE, source, limit_train=30)))
    assert numbers(load_task(ONE, source, limit_train=100)) == list(range(100))


# -- fingerprints


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


def test_fingerprint_is_of_content_and_roles(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a 0", "b", "c", "d", "e")]
    for folder in folders:
        folder.mkdir()
    other = GOOD + "d,pos\n"
    sources = [
        files(folders[0], GOOD, other),
        files(folders[1], GOOD, other),  # the same elsewhere
        files(folders[2], other, GOOD),  # roles exchanged
        files(folders[3], GOOD, GOOD),
        files(folders[4], GOOD + "\n", other),
    ]
    prints = [data_fingerprint(source, ONE) for source in sources]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", value) for value in prints)


def test_fingerprint_is_of_the_format_too(tmp_path: Path) -> None:
    header_of_both = "text,label\ttext\tlabel\n"  # one file, two readings
    prints = [
        data_fingerprint(files(tmp_path, *[header_of_both] * 2, kind=kind), definition)
        for kind, definition in (
            ("csv", replace(ONE, label_column="label\ttext\tlabel")),
            ("tsv", ONE),
        )
    ]
    assert prints[0] != prints[1]


def test_fingerprint_of_the_hub_names_commit_and_splits() -> None:
    assert data_fingerprint(glue_source("rte", None), TASKS["rte"].definition) == (
        f"hub:nyu-mll/glue@{GLUE_REVISION}:rte:train=train,validation=validation"
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_fingerprint_finds_a_missing_column_before_anything_runs(tmp_path: Path, kind: str) -> None:
    if kind == "parquet":
        source = parquet(tmp_path, text=pa.array(["a"]), label=pa.array([0]))
    else:
        rows = GOOD if kind == "csv" else '{"text": "a", "label": 1}\n'
        source = files(tmp_path, rows, rows, kind=kind)
    with pytest.raises(MissingInputError, match=r"no column 'labels'.*Did you mean 'label'"):
        data_fingerprint(source, replace(ONE, label_column="labels"))


def more(folder: Path, content: str, name: str = "more.csv") -> TaskSource:
    """GOOD rows, and a file without labels."""
    (folder / name).write_text(content, encoding="utf-8")
    return replace(files(folder, GOOD), unlabelled=str(folder / name))


def test_texts_without_labels_follow_the_train_rows(tmp_path: Path) -> None:
    source = more(tmp_path, "note,label,text\n1,oops,d\n2,,e\n")
    found = load_task(ONE, source, limit_train=2, unlabelled=True)
    assert found.unlabelled is not None
    assert (len(found.train), found.unlabelled.texts) == (2, (["d", "e"],))
    assert found.taught.texts == ([*found.train.texts[0], "d", "e"],)
    assert list(found.taught.labels[:2]) == list(found.train.labels)
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


def test_unlabelled_texts_of_the_dev_set_are_counted(tmp_path: Path) -> None:
    found = load_task(ONE, more(tmp_path, "text\nd\n b \nb\n"), unlabelled=True)
    assert dev_texts(found) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("more.csv", "texts\nd\n", r"more\.csv.*no column 'text'.*texts"),
        ("more.csv", "text\n", r"more\.csv.*no rows"),
        ("more.csv", "", r"more\.csv"),
        ("more.jsonl", '{"text": "d"}\n{"text": null}\n', r"more\.jsonl.*'text' is empty.*row 2"),
        ("more.jsonl", '{"text": 1}\n', r"more\.jsonl.*'text' holds int64, not text"),
        ("more.xlsx", "text\nd\n", r"more\.xlsx.*\.parquet, \.csv"),
        ("absent/more.csv", None, r"absent/more\.csv"),
    ],
)
def test_a_file_of_texts_that_can_not_be_read(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    if content is not None:
        more(tmp_path, content, name)
    source = replace(files(tmp_path, GOOD), unlabelled=str(tmp_path / name))
    with pytest.raises(MissingInputError, match=said):
        load_task(ONE, source, unlabelled=True)
