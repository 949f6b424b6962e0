"""Definitions of tasks: GLUE's nine, users' own, and where their rows are."""

from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.errors import MissingInputError, SpecError
from lp_sweep.trials.data.tasks import (
    TASKS,
    canonical_name,
    glue_source,
    user_definition,
)
from lp_sweep.trials.kinds import KINDS, Kind
from lp_sweep.trials.spec.specs import TaskDefinition
from lp_sweep.trials.train.metrics import METRICS


def test_canonical_name() -> None:
    written = {"sst2": "sst2", "SST-2": "sst2", "sst_2": "sst2", "STS-B": "stsb", "CoLA": "cola"}
    assert {name: canonical_name(name) for name in written} == written
    assert [canonical_name(name) for name in ("sst", "reviews", "")] == [None] * 3


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


def test_a_task_has_what_its_kind_says() -> None:
    task = user_definition("mine", text=["a", "b"], label="y", labels=None, loss="bce")
    assert task == TaskDefinition(text_columns=("a", "b"), label_column="y")
    numbers = user_definition("mine", text="t", kind="regression")
    assert (numbers.metric, numbers.extra_metrics) == ("pearson", ())


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
    with pytest.raises(SpecError, match=message):
        user_definition(**{"name": "mine", "text": "t"} | options)
