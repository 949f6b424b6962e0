"""Every number of Tables 1 to 6 of Poor Man's BERT (arXiv 2004.03844v1), each with its source.

Made from `printed`, whose text is the paper's own. Nothing here knows of a store: `compare`
compares one with these numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from lp_sweep.analysis.paper import printed

Quantity = Literal[
    "score",  # points
    "change",  # points against K=0, negative is a loss
    "loss",  # points, mean over the seven tasks, positive is a loss
    "parameters_million",
    "finetune_speedup",  # times K=0
    "inference_percent",  # time saved against K=0
    "max_dropped",  # the largest K whose loss is at most `delta` points
]

# as the paper prints it -> the model that a user would sweep, and its layers
MODELS = {
    "BERT": "bert-base-cased",
    "XLNet": "xlnet-base-cased",
    "DistilBERT": "distilbert-base-cased",
    "RoBERTa": "roberta-base",
    "DistilRoBERTa": "distilroberta-base",
}
DEPTHS = {model: 6 if model.startswith("distil") else 12 for model in MODELS.values()}
TASKS = {
    "sst2": "SST-2",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "qqp": "QQP",
    "stsb": "STS-B",
    "rte": "RTE",
    "mrpc": "MRPC",
}
UNSTABLE = ("rte", "mrpc")  # footnote 6: left out of Tables 2, 4 and 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One printed number. `row` and `column` say where it stands, the rest what it is of."""

    table: int
    row: tuple[str, ...]
    column: str
    model: str
    k: int | None  # layers dropped; None: it is what `value` says
    quantity: Quantity
    value: float
    source: str
    task: str | None = None  # None: over tasks
    strategy: str = "top"
    procedure: str = "direct"
    delta: int | None = None
    misprint: str | None = None  # why the printed value can't be right
    corrected: float | None = None  # what it must be, where that is known
    not_comparable: str | None = None

    @property
    def best_value(self) -> float:
        """The corrected value where there is one, else the printed one."""
        return self.value if self.corrected is None else self.corrected


_TABLE_3_COLUMNS: tuple[tuple[str, Quantity], ...] = (
    ("Loss", "loss"),
    ("Param.", "parameters_million"),
    ("Fine-tuning speedup", "finetune_speedup"),
    ("Inference time", "inference_percent"),
)

_SCORE = re.compile(r"(\d+\.\d+)(?: \((\d+\.\d+)([↑↓]?)\))?")


def _by_model(block: str) -> Iterator[tuple[str, str, str]]:
    """Model, first word, rest of each row of a block that has a heading per model."""
    model = ""
    for line in block.strip().splitlines():
        first, _, rest = line.partition(" ")
        if rest:
            yield model, first, rest
        else:
            model = first


def _scores_and_changes(table: int, block: str) -> Iterator[Number]:
    for model, k, rest in _by_model(block):
        quoted = printed.QUOTED if model == "DistilRoBERTa" else None
        for task, found in zip(TASKS, _SCORE.finditer(rest), strict=True):
            score = Number(
                table=table,
                row=(model, k),
                column=TASKS[task],
                model=MODELS[model],
                k=int(k),
                task=task,
                quantity="score",
                value=float(found[1]),
                source=f"Table {table}, {model}, drop {k}, {TASKS[task]}",
                not_comparable=quoted,
            )
            yield score
            if found[2]:
                change = float(found[2]) * (-1 if found[3] == "↓" else 1)
                source, row = f"{score.source}, change", (model, f"{k} change")
                yield replace(score, row=row, quantity="change", value=change, source=source)


def _most_dropped() -> Iterator[Number]:
    for model, delta, rest in _by_model(printed.TABLE_2):
        for task, value in zip(list(TASKS)[:5], rest.split(), strict=True):
            yield Number(
                table=2,
                row=(model, delta),
                column=TASKS[task],
                model=MODELS[model],
                k=None,
                task=task,
                quantity="max_dropped",
                delta=int(delta.rstrip("%")),
                value=float(value),
                source=f"Table 2, {model}, {delta}, {TASKS[task]}",
            )


def _size_and_speed() -> Iterator[Number]:
    for model, k, rest in _by_model(printed.TABLE_3):
        for (column, quantity), value in zip(_TABLE_3_COLUMNS, rest.split(), strict=True):
            if value == "-":
                continue
            yield Number(
                table=3,
                row=(model, k),
                column=column,
                model=MODELS[model],
                k=int(k),
                quantity=quantity,
                value=float(value.rstrip("M%")),
                source=f"Table 3, {model}, drop {k}, {column}",
            )


def _by_name(table: int, block: str) -> Iterator[Number]:
    for line in block.strip().splitlines():
        name, *scores = line.split()
        for task, value in zip(list(TASKS)[:5], scores, strict=True):
            yield Number(
                table=table,
                row=(name,),
                column=TASKS[task],
                model=MODELS[name.partition("-")[0]],
                k=6 if name.endswith("-6") else 0,
                task=task,
                procedure="finetune_then_drop" if "-FT-" in name else "direct",
                quantity="score",
                value=float(value),
                source=f"Table {table}, {name}, {TASKS[task]}",
            )


def _all() -> Iterator[Number]:
    yield from _scores_and_changes(1, printed.TABLE_1)
    yield from _most_dropped()
    yield from _size_and_speed()
    yield from _by_name(4, printed.TABLE_4)
    yield from _by_name(5, printed.TABLE_5)
    yield from _scores_and_changes(6, printed.TABLE_6)


def _with_misprint(number: Number) -> Number:
    misprint, corrected = printed.MISPRINTS.get(number.source, (None, None))
    return replace(number, misprint=misprint, corrected=corrected)


NUMBERS: tuple[Number, ...] = tuple(_with_misprint(number) for number in _all())
