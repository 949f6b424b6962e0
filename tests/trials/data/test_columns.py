"""Labels of every kind, and columns of the wrong type. Wrong rows of text files: test_fuzz_data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.specs import TaskDefinition
from lp_sweep.trials.data.datasource import load_task
from tests.support.rows import GOOD, HEADER, NUMBERS, ONE, files, parquet

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
    labels = pa.array([1, 0, 1]).cast(kind)
    source = parquet(tmp_path, text=pa.array(["a", "b", "c"]), label=labels)
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


def test_regression_labels_are_float32(tmp_path: Path) -> None:
    rows = HEADER + "a,1\nb,2.5\n"
    task = load_task(NUMBERS, files(tmp_path, rows, rows))
    assert task.train.labels.dtype == np.float32
    assert (task.train.labels.tolist(), task.num_labels, task.label_names) == ([1, 2.5], 1, ())


# -- what can be wrong

TEXTS = pa.array(["a", "b", "c"])
WRONG_PARQUET = {
    "no text": ({"text": pa.array([1, 2, 3]), "label": TEXTS}, "holds int64, not text"),
    "NaN class": ({"text": TEXTS, "label": pa.array([0.0, np.nan, 1.0])}, "'label' is empty"),
    "fractions": ({"text": TEXTS, "label": pa.array([0.5, 1.0, 2.0])}, "fractions.*regression"),
    "lists": ({"text": TEXTS, "label": pa.array([[1], [2], [3]])}, "not classes"),
}


@pytest.mark.parametrize(("columns", "message"), WRONG_PARQUET.values(), ids=WRONG_PARQUET)
def test_wrong_parquet(tmp_path: Path, columns: dict[str, pa.Array], message: str) -> None:
    with pytest.raises(MissingInputError, match=message):
        load_task(ONE, parquet(tmp_path, **columns))


def test_class_label_out_of_range(tmp_path: Path) -> None:
    source = parquet(tmp_path, ["neg", "pos"], text=TEXTS, label=pa.array([0, 1, -1]))
    with pytest.raises(MissingInputError, match="none of 0 to 1 in 1 of 3 rows"):
        load_task(ONE, source)


def test_class_only_in_dev(tmp_path: Path) -> None:
    source = files(tmp_path, GOOD, GOOD + "d,1\n")
    with pytest.raises(MissingInputError, match=r"validation\.csv: unknown class '1'"):
        load_task(ONE, source)
