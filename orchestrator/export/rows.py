"""The dev examples of a trial: their texts, and beside them what its network said of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.orchestrator.export.places import Where, nowhere, task_source
from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.specs import TrialSpec


class DevRows(NamedTuple):
    """The main dev split, n examples in its order."""

    split: str
    texts: tuple[list[str], ...]  # one or two columns
    labels: np.ndarray  # (n,)
    label_names: tuple[str, ...]  # () for regression
    predicted: np.ndarray  # (n,)
    logits: np.ndarray  # (n, classes) float32


def dev_rows(
    spec: TrialSpec,
    record: Mapping[str, Any],
    predictions: Sequence[Mapping[str, Any]],
    where: Where,
) -> DevRows:
    """`predictions`: rows of PREDICTIONS. Raises PreflightError where the data is nowhere,
    MissingInputError where it can't be read, ExportError where the two don't belong together."""
    from lp_sweep.trials.datasource import load_task

    source = task_source(spec, record, where)
    if source is None:
        raise nowhere("data of task", record["task"], record)
    recipe = spec.recipe
    task = load_task(
        spec.task,
        source,
        limit_train=recipe.limit_train,
        limit_dev=recipe.limit_dev,
        offline=where.offline,
    )
    split = task.dev[task.main_split]
    said = sorted(
        (row for row in predictions if row["split"] == task.main_split),
        key=lambda row: row["example"],
    )
    labels = np.array([row["label"] for row in said], np.float64)
    if not np.array_equal(labels, np.asarray(split.labels, np.float64)):
        raise ExportError(
            f"the stored predictions of {record['trial_id']} are not of the dev rows of "
            f"{record['task']!r} as they are read here: other labels. Nothing was published."
        )
    return DevRows(
        task.main_split,
        split.texts,
        split.labels,
        task.label_names,
        np.array([row["prediction"] for row in said]),
        np.array([row["scores"] for row in said], np.float32),
    )
