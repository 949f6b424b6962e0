"""Definitions of tasks: GLUE's nine, users' own, and where their rows are."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.errors import MissingInputError, SpecError
from lp_sweep.trials.data.tasks import TASKS, TaskSource, canonical_name, glue_source, user_task
from lp_sweep.trials.kinds import KINDS, Kind
from lp_sweep.trials.train.metrics import METRICS


def test_canonical_name() -> None:
    written = {"sst2": "sst2", "SST-2": "sst2", "sst_2": "sst2", "STS-B": "stsb", "CoLA": "cola"}
    assert {name: canonical_name(name) for name in written} == written
    assert [canonical_name(name) for name in ("sst", "reviews", "")] == [None] * 3


def test_main_metrics_are_the_papers() -> None:
    assert {name: task.definition.metric for name, task in TASKS.items()} == {
        **dict.fromkeys(("sst2", "mnli", "qnli", "qqp", "rte", "mrpc", "wnli"), "accuracy"),
        "stsb": "pearson",
        "cola": "mcc",
    }
    extra = {name: task.definition.extra_metrics for name, task in TASKS.items()}
    assert {name: metrics for name, metrics in extra.items() if metrics} == {
        "stsb": ("spearman",),
        "cola": ("accuracy",),
        "mrpc": ("f1",),
        "qqp": ("f1",),
    }


def test_every_metric_has_a_kind_and_a_function() -> None:
    for kind in KINDS.values():
        tallied = type(kind).tally is not Kind.tally
        assert tallied or set(kind.metrics) <= METRICS.keys()
    assert METRICS.keys() <= {name for kind in KINDS.values() for name in kind.metrics}
    for task in TASKS.values():
        used = {task.definition.metric, *task.definition.extra_metrics}
        assert used <= set(KINDS[task.definition.kind].metrics)


def test_glue_folder_that_lacks_the_task_is_an_error_not_the_hub(tmp_path: Path) -> None:
    (tmp_path / "mnli").mkdir()
    (tmp_path / "mnli/train.parquet").touch()
    (tmp_path / "mnli/validation_matched.parquet").touch()
    with pytest.raises(MissingInputError, match=r"validation_mismatched\.parquet.*nyu-mll/glue"):
        glue_source("mnli", tmp_path)
    (tmp_path / "mnli/validation_mismatched.parquet").touch()
    assert glue_source("mnli", tmp_path).dataset is None


def test_user_files_start_at_the_sweep_files_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "dev.jsonl"
    definition, source = user_task(
        name="mine", text=["a", "b"], label="y", train="train.csv", dev=elsewhere, base_dir=tmp_path
    )
    assert TaskSource(**asdict(source)) == source
    assert source.files == {"train": str(tmp_path / "train.csv"), "validation": str(elsewhere)}
    assert (definition.text_columns, definition.label_column) == (("a", "b"), "y")
    assert (definition.kind, definition.metric) == ("classification", "accuracy")


HUB = {"dataset": "x/y", "revision": "0123456789abcdef0123456789abcdef01234567"}


def test_user_hub_task() -> None:
    task = user_task(name="mine", text="t", kind="regression", config="en", dev_split="test", **HUB)
    assert TaskSource(**asdict(task.source)) == task.source
    assert task.source.splits == {"train": "train", "validation": "test"}
    assert (task.definition.metric, task.definition.extra_metrics) == ("pearson", ())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "SST-2"}, "GLUE task has this name"),
        ({"text": ["a", "b", "c"]}, "one or two columns"),
        ({"text": ["a", "a"]}, "must differ"),
        ({"label": "t"}, "must differ"),
        ({"labels": ["a", "b"], "kind": "regression"}, "regression has numbers"),
        ({"labels": ["a", "a"]}, "all different"),
        ({"labels": ["a"]}, "two or more"),
        (HUB, "both files and a hub data set"),
        ({"label": ["joy", "fear"]}, "kind: multi_label"),
        ({"tune_thresholds": True}, "kind: multi_label"),
        ({"kind": "multi_label", "label": ["joy"]}, "two or more"),
        ({"kind": "multi_label", "label": ["joy", "joy"]}, "all different"),
        ({"kind": "multi_label", "label": ["joy", "t"]}, "must differ"),
        (
            {"kind": "multi_label", "label": ["joy", "fear"], "labels": ["a", "b"]},
            "remove `labels:`",
        ),
        ({"kind": "ranking"}, "two columns"),
        ({"kind": "ranking", "text": ["q", "p"], "labels": ["a", "b"]}, "not one of `labels:`"),
        ({"kind": "regression", "loss": "listwise"}, "`loss:` is for kind: ranking"),
        ({"kind": "regression", "group": "id"}, "`group:` is for kind: ranking"),
        ({"kind": "tokens", "text": ["a", "b"]}, "names one"),
        ({"kind": "tokens", "labels": ["O", "O"]}, "all different"),
    ],
)
def test_wrong_user_tasks(options: dict[str, Any], message: str) -> None:
    given = {"name": "mine", "text": "t", "train": "a.csv", "dev": "b.csv"}
    with pytest.raises(SpecError, match=message):
        user_task(**given | options)


def test_unknown_suffix() -> None:
    with pytest.raises(MissingInputError, match=r"'\.xlsx'.*\.parquet, \.csv"):
        user_task(name="mine", text="t", train="a.xlsx", dev="b.csv")
