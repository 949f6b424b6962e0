"""What a dev set can't tell, for each kind of task."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.trials.data.datasource import LoadedTask, load_task
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import blindness, gaps

WORDS = {"text_columns": ("words",), "label_column": "tags", "kind": "tokens"}
LISTS = {"kind": "multi_label", "metric": "micro_f1", "labels": ("a", "b")}
NUMBERS = {"kind": "regression", "metric": "pearson"}
QUERIES: dict[str, Any] = {
    "kind": "ranking",
    "metric": "ndcg@10",
    "text_columns": ("q", "text"),
    "group": "q",
}


def loaded(folder: Path, train: list[Any], dev: list[Any], **definition: Any) -> LoadedTask:
    """Each row is a label, a list of tags, or a query and its passage's relevance."""
    columns = {"text_columns": ("text",), "label_column": "label", **definition}
    files = {}
    for name, labels in (("train", train), ("dev", dev)):
        files[name] = str(folder / f"{name}.jsonl")
        rows = [{columns["label_column"]: label} for label in labels]
        for number, row in enumerate(rows):
            row |= {"text": f"text {number}", "words": [f"w{number}"] * 2}
            if definition.get("kind") == "ranking":
                row["q"], row["label"] = row["label"]
        Path(files[name]).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return load_task(TaskDefinition(**columns), TaskSource(files=files))


def of(task: LoadedTask) -> str | None:
    return blindness(task.definition, task.dev[task.main_split].labels, task.label_names)


@pytest.mark.parametrize(
    ("train", "dev", "definition", "said"),
    [
        (["a", "b"] * 20, ["a"] * 20, {}, "all 20 dev rows are 'a'"),
        (["a", "b"] * 20, ["a", "b"], {}, "only 2 rows"),
        (["a", "b"] * 20, ["a"], {}, "all 1 dev rows"),
        (["a", "b"] * 20, ["a"] * 20, {"metric": "f1", "positive": "b"}, "'b'.*f1"),
        ([1.5, 2.5] * 20, [2.5, 1.5], NUMBERS, "only 2 rows"),
        ([["O", "B-x"]] * 20, [["O", "O"]] * 20, {**WORDS, "metric": "entity_f1"}, "no entity"),
        ([["O", "B-x"]] * 20, [["O", "O"]] * 20, {**WORDS, "metric": "accuracy"}, "40 dev words"),
        ([["a"], ["b"]] * 20, [[]] * 20, LISTS, "no dev row has one of the labels"),
        ([("q", 1), ("q", 0)], [("q", 1), ("q", 0)], QUERIES, "only 1 query"),
        ([("q", 1), ("q", 0)], [("q", 1), ("q", 1)], QUERIES, "any order"),
    ],
)
def test_a_dev_set_on_which_no_score_means_anything(
    tmp_path: Path, train: list[Any], dev: list[Any], definition: dict[str, Any], said: str
) -> None:
    task = loaded(tmp_path, train, dev, **definition)
    why = of(task)
    assert why is not None
    assert re.search(said, why)
    [note] = gaps(task)
    assert why in note


@pytest.mark.parametrize(
    ("train", "dev", "definition", "said"),
    [
        (["a", "b"] * 9, ["a", "b"] * 9, {}, []),
        (["a", "b", "c"] * 9, ["a", "b"] * 9, {}, ["'c': only in train"]),
        (["a", "b"] * 9, ["a", "b", "c"] * 9, {"labels": ("a", "b", "c")}, ["'c': only in dev"]),
        (["a", "b"] * 9 + ["c"], ["a", "b", "c"] * 9, {}, ["'c': in a single train row"]),
        (["a", "b", "c"] * 9, ["a", "b"] * 9 + ["c"], {}, ["'c': in a single dev row"]),
    ],
)
def test_what_a_score_leaves_out(
    tmp_path: Path, train: list[Any], dev: list[Any], definition: dict[str, Any], said: list[str]
) -> None:
    task = loaded(tmp_path, train, dev, **definition)
    notes = [*gaps(task)]
    assert of(task) is None
    assert len(notes) == len(said)
    assert all(part in note for part, note in zip(said, notes, strict=True))
