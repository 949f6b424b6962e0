"""Definitions of tasks (GLUE's nine and users' own) and where their rows are. Reads no rows.

A `TaskDefinition` (columns, labels, metric) is part of a trial's identity. A `TaskSource` (files or
a hub data set) is not: the fingerprint of the rows is, which `datasource` computes. Planning
imports this module, so it never imports torch, transformers or datasets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lp_sweep.storage.errors import MissingInputError, SpecError
from lp_sweep.storage.places import is_file
from lp_sweep.storage.printable import did_you_mean, listed, shown
from lp_sweep.trials.kinds import KINDS, kind_of
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind

GLUE_DATASET = "nyu-mll/glue"
GLUE_REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"

USUAL_LOSS = "bce"
UNLABELLED = "unlabelled"  # the split of rows without labels
TEST = "test"  # the split that no trial reads
CORPUS, QRELS, QUERIES = "corpus", "qrels", "queries"  # the files of a retrieval task


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """A task of the GLUE benchmark. `config`: its name in `nyu-mll/glue`, and its folder's."""

    config: str
    title: str  # as papers print it
    definition: TaskDefinition
    dev_splits: tuple[str, ...] = ("validation",)  # tables use the first


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """Where a task's rows are: in `files`, or in a hub data set.

    `files` and `splits` map our split names to paths or to the hub's split names: `train`, then
    the dev splits, the main one first.
    """

    files: dict[str, str] = field(default_factory=dict)
    dataset: str | None = None
    config: str | None = None
    revision: str | None = None  # a commit: the rows of a branch can change
    splits: dict[str, str] = field(default_factory=dict)
    unlabelled: str = ""  # a file of texts for students; empty: none
    skip_unjudged: bool = False  # skip queries without a relevant document, else refuse them
    drop_missing: bool = False  # leave out rows without a text or a label, else refuse them
    label_separator: str = ""  # what is between the labels of a cell; empty: a column of lists

    @property
    def paths(self) -> list[str]:
        return [*self.files.values(), *([self.unlabelled] if self.unlabelled else [])]


def _glue(
    title: str,
    text: str,
    labels: str,
    *,
    metric: str = "accuracy",
    extra: tuple[str, ...] = (),
    dev: str = "validation",
) -> GlueTask:
    return GlueTask(
        config=_normalised(title),
        title=title,
        definition=TaskDefinition(
            text_columns=tuple(text.split()),
            kind="classification" if labels else "regression",
            metric=metric,
            extra_metrics=extra,
            labels=tuple(labels.split()),
        ),
        dev_splits=tuple(dev.split()),
    )


def _normalised(name: str) -> str:
    return re.sub(r"[\s_-]", "", name.lower())


_PAIR = "sentence1 sentence2"
_MNLI_DEV = "validation_matched validation_mismatched"
_ALL = (
    _glue("SST-2", "sentence", "negative positive"),
    _glue("MNLI", "premise hypothesis", "entailment neutral contradiction", dev=_MNLI_DEV),
    _glue("QNLI", "question sentence", "entailment not_entailment"),
    _glue("QQP", "question1 question2", "not_duplicate duplicate", extra=("f1",)),
    _glue("STS-B", _PAIR, "", metric="pearson", extra=("spearman",)),
    _glue("RTE", _PAIR, "entailment not_entailment"),
    _glue("MRPC", _PAIR, "not_equivalent equivalent", extra=("f1",)),
    _glue("CoLA", "sentence", "unacceptable acceptable", metric="mcc", extra=("accuracy",)),
    _glue("WNLI", _PAIR, "not_entailment entailment"),
)
TASKS: dict[str, GlueTask] = {task.config: task for task in _ALL}


def is_commit(revision: str | None) -> bool:
    """Whether it is a full commit hash, the only revision that can't change."""
    return bool(re.fullmatch(r"[0-9a-f]{40}", revision or ""))


def canonical_name(name: str) -> str | None:
    """The key in `TASKS` for any spelling of a GLUE task ('SST-2', 'sts_b'), else None."""
    normalised = _normalised(name)
    return normalised if normalised in TASKS else None


def glue_source(name: str, data_dir: Path | None) -> TaskSource:
    """Where the rows of the GLUE task `name` (a key of `TASKS`) are.

    With a `data_dir`: `<data_dir>/<name>/<split>.parquet`. Raises MissingInputError if a split is
    missing, and never falls back to the hub. Without: the hub, at a fixed commit.
    """
    task = TASKS[name]
    splits = ("train", *task.dev_splits)
    if data_dir is None:
        return TaskSource(
            dataset=GLUE_DATASET,
            config=task.config,
            revision=GLUE_REVISION,
            splits={split: split for split in splits},
        )
    files = {split: data_dir.absolute() / name / f"{split}.parquet" for split in splits}
    missing = [str(path) for path in files.values() if not is_file(path)]
    if missing:
        raise MissingInputError(
            f"task {name!r}: no file {', '.join(missing)}. A data folder holds "
            f"{name}/{{{','.join(splits)}}}.parquet. Put the files there, name another data "
            f"folder, or leave it out to use {GLUE_DATASET} from the Hugging Face hub."
        )
    return TaskSource(files={split: str(path) for split, path in files.items()})


def user_definition(
    name: str,
    *,
    text: str | Sequence[str],
    label: str | Sequence[str] = "label",
    kind: TaskKind = "classification",
    metric: str | None = None,
    **fields: Any,
) -> TaskDefinition:
    """How the rows of a user's own task are read and scored, from a checked entry of the sweep
    file. `fields`: the others of a `TaskDefinition`; None is the default. The metric defaults to
    the kind's first. Raises SpecError."""
    if canonical_name(name):
        raise SpecError(f"task {name!r}: a GLUE task has this name. Choose another.")
    metrics, searches = KINDS[kind].metrics, KINDS[kind].searches
    metric = metric or metrics[0]
    given = {key: value for key, value in fields.items() if value is not None}
    if given.get("loss") == USUAL_LOSS:
        del given["loss"]
    definition = TaskDefinition(
        text_columns=(text,) if isinstance(text, str) else tuple(text),
        **({"label_column": label} if isinstance(label, str) else {"label_columns": tuple(label)}),
        kind=kind,
        metric=metric,
        metric_source=facts_of(metric).source,
        extra_metrics=tuple(other for other in metrics if searches and other != metric),
        **given,
    )
    if problem := next(_problems(definition), None):
        raise SpecError(f"task {name!r}: {problem}")
    return definition


def unnamed_positive(definition: TaskDefinition, classes: Sequence[str]) -> str | None:
    """Why the main metric f1 needs `positive:` with these classes; None if it does not. It
    defaults to 1 of 0 and 1 (or true); for other names there is no default."""
    if not facts_of(definition.metric).of_a_class or definition.positive or len(classes) != 2:
        return None
    if tuple(value.lower() for value in classes) in (("0", "1"), ("false", "true")):
        return None
    first, second = map(shown, classes)
    return (
        f"metric {definition.metric} scores one class, and the classes are {first} and {second}. "
        f"Choose one: write `positive: {first}` or `positive: {second}` in the task's entry, or "
        "choose macro_f1 for both."
    )


def _problems(definition: TaskDefinition) -> Iterator[str]:
    yield from _column_problems(definition)
    if problem := kind_of(definition).problem(definition):
        yield problem
    positive, labels = definition.positive, definition.labels
    metrics = (definition.metric, *definition.extra_metrics)
    if positive and not any(facts_of(name).of_a_class for name in metrics):
        yield (
            f"`positive: {positive}` is the class that metric f1 scores, and the metric is "
            f"{definition.metric}. Remove `positive:`, or set `metric: f1`."
        )
    if positive and labels and positive not in labels:
        yield (
            f"`positive: {positive}` is none of its labels ({listed(labels)})."
            f"{did_you_mean(positive, labels)}"
        )
    if problem := unnamed_positive(definition, labels):
        yield problem


def _column_problems(definition: TaskDefinition) -> Iterator[str]:
    """Also names keys of other kinds."""
    columns, kind = definition.text_columns, kind_of(definition)
    if not 1 <= len(columns) <= 2 and not (kind.searches and not columns):
        yield f"'text' names one or two columns, got {list(columns)}."
    if {*columns} & {*definition.all_label_columns} or len({*columns}) < len(columns):
        yield (
            f"text and label columns must differ, got text: {list(columns)}, "
            f"label: {definition.label_columns or definition.label_column!r}."
        )
    of_marks = kind.problem_type == "multi_label_classification"
    ranks = KINDS[definition.kind].ranks  # a `loss:` of rankings may have chosen another kind
    for key, value, right, name in (
        ("label: [first, second]", definition.label_columns, of_marks, "multi_label"),
        ("tune_thresholds:", definition.tune_thresholds, of_marks, "multi_label"),
        ("group:", definition.group, ranks, "ranking"),
        ("loss:", definition.loss, ranks, "ranking"),
    ):
        if value and not right:
            yield f"`{key}` is for kind: {name}. Remove it, or set that kind."
    if definition.group in (*columns[1:], definition.label_column):
        yield (
            f"`group:` names the column that the rows of a query share, and {definition.group!r} "
            "is that of the passages or of their relevance."
        )
