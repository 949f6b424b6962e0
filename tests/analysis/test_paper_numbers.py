"""The numbers of the paper: all there, with their sources, and where they contradict each other."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from statistics import mean

import pytest

from lp_sweep.analysis.paper.equivalence import DEV_ROWS
from lp_sweep.analysis.paper.numbers import MISPRINTS, NUMBERS, TASKS, UNSTABLE, Number
from lp_sweep.trials.data.tasks import TASKS as GLUE

ROUNDING = 0.0051  # of two printed decimals


def printed(table: int, quantity: str) -> list[Number]:
    return [n for n in NUMBERS if n.table == table and n.quantity == quantity]


def test_every_number_is_there_once_with_its_source() -> None:
    counts = Counter(number.table for number in NUMBERS)
    assert counts == {1: 84 + 63, 2: 45, 3: 4 * 12 - 3, 4: 15, 5: 20, 6: 63 + 42}
    assert len({n.source for n in NUMBERS}) == len(NUMBERS)
    assert {n.task for n in NUMBERS} - {None} == set(TASKS)
    assert all(GLUE[task].title == title for task, title in TASKS.items())


def test_some_numbers_by_hand() -> None:
    of = {n.source: n for n in NUMBERS}
    one = of["Table 1, DistilBERT, drop 2, RTE, change"]
    assert (one.model, one.k, one.task, one.value) == ("distilbert-base-cased", 2, "rte", 2.53)
    two = of["Table 2, XLNet, 3%, QQP"]
    assert (two.model, two.delta, two.value) == ("xlnet-base-cased", 3, 9)
    three = [of[f"Table 3, XLNet, drop 4, {column}"].value for column in (
        "Loss", "Param.", "Fine-tuning speedup", "Inference time")]  # fmt: skip
    assert three == [0.23, 86, 1.49, 32]
    five = of["Table 5, XLNet-FT-6, MNLI"]
    assert (five.procedure, five.k, five.value) == ("finetune_then_drop", 6, 83.75)


def test_every_misprint_is_of_a_number() -> None:
    sources = {n.source for n in NUMBERS if n.misprint}
    assert sources == set(MISPRINTS)
    quoted = {n.source for n in NUMBERS if n.not_comparable}
    assert quoted == {f"Table 6, DistilRoBERTa, drop 0, {title}" for title in TASKS.values()}


def test_the_loss_is_the_mean_change_over_seven_tasks_and_not_over_five() -> None:
    change: dict[tuple[str, int | None], dict[str, float]] = defaultdict(dict)
    for n in printed(1, "change"):
        change[n.model, n.k][str(n.task)] = n.value
    losses = [n for n in printed(3, "loss") if n.k]
    assert len(losses) == 9
    for n in losses:
        tasks = change[n.model, n.k]
        assert -mean(tasks.values()) == pytest.approx(n.value, abs=ROUNDING)
        stable = -mean(value for task, value in tasks.items() if task not in UNSTABLE)
        assert stable != pytest.approx(n.value, abs=ROUNDING)


def test_a_score_is_a_share_of_the_dev_rows() -> None:
    """Accuracies only, so not on STS-B. 4,917 of QNLI's 5,463 rows are 90.006, printed 90.00."""
    scores = [n for n in NUMBERS if n.quantity == "score" and n.task != "stsb"]
    none = set()
    for n in (n for n in scores if not n.not_comparable):
        rows = DEV_ROWS[str(n.task)]
        right = n.value * rows / 100
        shares = (100 * count / rows for count in (math.floor(right), math.ceil(right)))
        if n.value not in {round(share, 2) for share in shares}:
            none.add(n.source)
    assert none == {"Table 5, BERT-6, SST-2", "Table 6, RoBERTa, drop 6, QNLI"}
