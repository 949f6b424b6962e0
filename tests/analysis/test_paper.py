"""A store beside the paper: first the numbers of the paper, then the paper itself, its Table 1
through the real store and SQL."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from statsmodels.stats.weightstats import DescrStatsW

from lp_sweep.analysis.paper import (
    DEPTHS,
    JUDGED,
    MARGIN,
    interval_of,
    numbers,
    paper_models,
    paper_tables,
)
from lp_sweep.analysis.rows import Row
from lp_sweep.analysis.tabledef import Table
from lp_sweep.analysis.views import open_views
from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.data.tasks import TASKS as GLUE
from tests.support.fake_records import FakeSweep

READ = ("cells", "trials", "speed_table")  # the views that it reads
ROUNDING = 0.0051  # of two printed decimals
NUMBERS: list[dict[str, Any]] = json.loads(numbers())
FROZEN = "finetune_then_drop frozen"
DEV_ROWS = dict(sst2=872, mnli=9815, qnli=5463, qqp=40430, stsb=1500, rte=277, mrpc=408)


def printed(table: int, quantity: str) -> list[Row]:
    return [n for n in NUMBERS if n["table"] == table and n["quantity"] == quantity]


def feed(fake: FakeSweep, found: Iterable[Row]) -> None:
    """Cells whose scores are what the paper prints."""
    for n in found:
        model = n["model"]
        of = {"model": model, "depth": DEPTHS[model], "procedure": n["procedure"]}
        fake.cell(k=n["k"], task=n["task"], score=n["paper"], **of)


def rows(table: Table) -> dict[tuple[str, str], Row]:
    return {(row["row"], row["column"]): row for row in table.long.to_pylist()}


def laid_out(fake: FakeSweep, table: int) -> Table:
    with open_views(fake.publish(), only=READ) as catalog:
        return paper_tables(catalog, [table])[table]


def beside(fake: FakeSweep, table: int) -> dict[tuple[str, str], Row]:
    return rows(laid_out(fake, table))


def cells(table: Table) -> dict[tuple[str, str], str]:
    """Text by first cells of the row, joined, and column."""
    keys = [c for c in table.columns if c in ("model", "drop", "δ")]
    return {
        (", ".join(row[: len(keys)]), column): text
        for row in table.rows
        for column, text in zip(table.columns[len(keys) :], row[len(keys) :], strict=True)
    }


@pytest.fixture(scope="module")
def itself(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Row]]:
    """The paper beside itself: a store with what Tables 1, 3 (its speeds), 5 (its FT rows) and 6
    print."""
    fake = FakeSweep(tmp_path_factory.mktemp("itself"))
    roberta = [n for n in printed(6, "score") if n["model"] != "bert-base-cased"]
    after = [n for n in printed(5, "score") if n["procedure"] == "finetune_then_drop"]
    feed(fake, [*printed(1, "score"), *roberta, *after])
    for n in printed(3, "finetune_speedup"):
        kept = list(range(1, DEPTHS[n["model"]] + 1 - n["k"]))
        fake.speed(n["paper"], n["paper"], model=n["model"], kept_layers=kept)
    with open_views(fake.publish(), only=READ) as catalog:
        found = paper_tables(catalog)
    return {number: table.long.to_pylist() for number, table in found.items()}


# --- the numbers of the paper


def test_every_number_is_there_once() -> None:
    counts = Counter(n["table"] for n in NUMBERS if n["procedure"] != FROZEN)
    assert counts == {1: 84 + 63, 2: 45, 3: 4 * 12 - 3, 4: 15, 5: 20, 6: 63 + 42}
    places = {(n["table"], n["name"], n["setting"], n["column"]) for n in NUMBERS}
    assert len(places) == len(NUMBERS)
    assert {n["task"] for n in NUMBERS} - {None} == set(DEV_ROWS)
    titles = {n["column"].removesuffix(" Pearson") for n in NUMBERS if n["task"]}
    assert titles == {GLUE[task].title for task in DEV_ROWS}


# --- the paper beside itself


def test_the_contradictions_of_the_paper_are_these(itself: dict[int, list[Row]]) -> None:
    """Fed with Tables 1, 5 (FT) and 6, the store gives back all that is printed, but:"""
    found = [
        row
        for table in itself.values()
        for row in table
        if row["ours"] is not None and row["quantity"] in ("score", "change", "loss")
    ]
    differ = {row["source"] for row in found if abs(row["ours"] - row["paper"]) > ROUNDING}
    assert differ == {"Table 5, BERT-6, SST-2", "Table 6, RoBERTa, 2 change, STS-B Pearson"}
    assert all(abs(row["difference"]) <= ROUNDING for row in found)
    assert all(row["ours"] is not None for row in itself[4]), "all of Table 4 is in Table 1"
    losses = [row for row in itself[3] if row["quantity"] == "loss" and row["k"]]
    assert len(losses) == 9, "each is the mean change over the seven tasks of Table 1"
    assert {row["verdict"] for row in losses} <= {"agrees", "cannot tell"}


def test_misprints_and_what_is_quoted_are_marked(itself: dict[int, list[Row]]) -> None:
    marked = [
        row
        for table in itself.values()
        for row in table
        if row["verdict"] not in (*JUDGED, "missing")
    ]
    assert {row["source"] for row in marked if row["verdict"] == "misprint"} == {
        "Table 5, BERT-6, SST-2",
        "Table 6, RoBERTa, 2 change, STS-B Pearson",
        "Table 3, BERT, 2, Fine-tuning ×",
    }
    quoted = [row["row"] for row in marked if row["verdict"] == "not comparable"]
    assert quoted == ["DistilRoBERTa, 0"] * 7
    [sst2] = [row for row in itself[5] if row["source"] == "Table 5, BERT-6, SST-2"]
    assert (sst2["paper"], sst2["corrected"], sst2["difference"]) == (92.25, 90.25, 0)


# --- a store beside the paper


def test_what_a_store_has_not_is_missing(fake: FakeSweep) -> None:
    fake.cell(model="bert-base-cased", k=0, task="sst2", score=92.4)
    fake.cell(model="bert-base-cased", k=6, task="sst2")  # listed, pending
    with open_views(fake.publish(), only=READ) as catalog:
        tables = paper_tables(catalog)
    for number, table in tables.items():
        verdicts = table.long["verdict"].to_pylist()
        assert len(verdicts) == sum(n["table"] == number for n in NUMBERS)
        there = len(verdicts) - verdicts.count("missing")
        assert there == {1: 1, 3: 1, 6: 1}.get(number, 0)  # and the size of K=0
    assert (tables[1].columns, {row[0] for row in tables[1].rows}) == (
        ("model", "drop", "SST-2"),
        {"BERT"},
    ), "no row and no column without a number"
    assert any("none of them: XLNet, DistilBERT, MNLI" in note for note in tables[1].notes)
    shown = cells(tables[1])
    assert shown["BERT, 6", "SST-2"] == "missing (paper 90.25)"
    assert shown["BERT, 6 change", "SST-2"] == "missing (paper −2.18)"


def three_seeds(fake: FakeSweep, **axes: Any) -> None:
    for seed, full, six in ((42, 92.4, 90.1), (43, 92.6, 90.3), (44, 92.5, 90.5)):
        fake.curve({0: full, 6: six}, model="bert-base-cased", task="sst2", seed=seed, **axes)


def test_a_cell_says_ours_the_papers_the_difference_its_interval_and_n(fake: FakeSweep) -> None:
    three_seeds(fake)
    for task, full in (("qqp", 91.07), ("rte", 67.87)):
        scores = {0: full + 0.1, 2: full - 8}
        fake.curve(scores, model="bert-base-cased", task=task, dev_examples=DEV_ROWS[task])
    one, five = laid_out(fake, 1), laid_out(fake, 5)
    shown, found = cells(one), rows(one)
    assert shown["BERT, 6", "SST-2"].startswith("90.30 (paper 90.25, +0.05 [−2.")
    assert shown["BERT, 6", "SST-2"].endswith("], cannot tell) n=3")
    assert shown["BERT, 6 change", "SST-2"].startswith("−2.20 (paper −2.18, −0.02 [")
    assert shown["BERT, 2", "QQP"].startswith("83.07 (paper 90.92, −7.85 [−8.82, −6.88], differs)")
    sst2 = found["BERT, 6", "SST-2"]
    assert (sst2["sd"], sst2["n"]) == (pytest.approx(0.2), 3)
    # RTE has few rows, and moves as far from seed to seed
    differ = {place for place, row in found.items() if row["verdict"] == "differs"}
    assert differ == {("BERT, 2", "QQP"), ("BERT, 2 change", "QQP")}
    misprint = cells(five)["BERT-6", "SST-2"]
    assert misprint == "90.30 (paper 92.25, misprint for 90.25, +0.05) n=3"
    assert any(note.startswith("Misprint: BERT-6, SST-2: ") for note in five.notes)


def test_dropping_after_fine_tuning_may_have_frozen_layers_or_not(fake: FakeSweep) -> None:
    axes = {"model": "bert-base-cased", "task": "mnli", "k": 6}
    fake.cell(procedure=FROZEN, score=80.0, **axes)
    fake.cell(procedure="finetune_then_drop", score=81.0, **axes)
    fake.cell(procedure="iterative", score=10.0, **axes)
    found = beside(fake, 5)
    assert found["BERT-FT-6", "MNLI"]["ours"] == pytest.approx(81)
    assert found["BERT-FT-6 frozen", "MNLI"]["ours"] == pytest.approx(80)
    assert found["BERT-6", "MNLI"]["verdict"] == "missing", "a procedure is not another"


def test_a_network_is_known_by_its_layers(fake: FakeSweep) -> None:
    axes = {"model": "distilbert-base-cased", "task": "sst2", "depth": 6}
    fake.cell(strategy="even-alternate", k=1, score=90.0, **axes)  # the last layer: top K=1
    fake.cell(strategy="bottom", k=2, score=10.0, **axes)
    found = beside(fake, 1)
    assert found["DistilBERT, 1", "SST-2"]["ours"] == pytest.approx(90)
    assert found["DistilBERT, 2", "SST-2"]["verdict"] == "missing"


def test_trials_of_several_sweeps_are_pooled_and_each_counts_once(fake: FakeSweep) -> None:
    other = FakeSweep(Path(fake.store.location), name="other")
    axes = {"model": "bert-base-cased", "task": "sst2"}
    fake.curve({0: 92.0, 6: 90.0}, **axes)
    other.curve({6: 90.0}, **axes)  # the same trial, without K=0 beside it
    other.curve({6: 91.0}, seed=43, **axes)
    fake.publish()
    with open_views(other.publish(), only=READ) as catalog:
        found = rows(paper_tables(catalog, [1])[1])
    with open_views(other.store, sweep="other", only=READ) as catalog:
        of_other = rows(paper_tables(catalog, [1])[1])
    six, change = found["BERT, 6", "SST-2"], found["BERT, 6 change", "SST-2"]
    assert (six["ours"], six["n"], change["ours"], change["n"]) == (90.5, 2, -2, 1)
    assert of_other["BERT, 6", "SST-2"]["n"] == 2
    assert of_other["BERT, 6 change", "SST-2"]["verdict"] == "missing"


def test_a_part_of_the_rows_is_not_the_task(fake: FakeSweep) -> None:
    cut = {"limit_train": 3000, "train_examples": 3000}
    whole = {"limit_train": 3000, "train_examples": 2490}
    fake.cell(model="bert-base-cased", k=0, task="sst2", score=80.0, **cut)
    fake.cell(model="bert-base-cased", k=0, task="qqp", score=80.0, limit_dev=872)
    fake.cell(model="bert-base-cased", k=0, task="rte", score=66.0, **whole)
    found = beside(fake, 1)
    verdicts = {task: found["BERT, 0", task]["verdict"] for task in ("SST-2", "QQP", "RTE")}
    assert verdicts == {"SST-2": "missing", "QQP": "missing", "RTE": "cannot tell"}


def test_the_loss_takes_only_seeds_that_have_all_seven_tasks(fake: FakeSweep) -> None:
    for seed, lost in ((42, 2.0), (43, 3.0), (44, 9.0)):
        for task in DEV_ROWS:
            if (seed, task) != (44, "rte"):
                scores = {0: 90.0, 6: 90.0 - lost}
                fake.curve(scores, model="bert-base-cased", task=task, seed=seed)
    row = beside(fake, 3)["BERT, 6", "Loss"]
    assert (row["ours"], row["n"], row["sd"]) == (pytest.approx(2.5), 2, pytest.approx(0.5**0.5))


def test_speeds_are_measured_ones_of_the_device_with_the_most_networks(fake: FakeSweep) -> None:
    model = {"model": "bert-base-cased"}
    for task in ("sst2", "qqp"):
        fake.cell(k=0, task=task, score=90.0, params_total=108_300_000, **model)
        fake.cell(k=6, task=task, score=90.0, params_total=65_800_000, **model)
    fake.cell(k=2, task="qqp", score=90.0, **model)
    fake.speed(1.01, 1.0, kept_layers=list(range(1, 13)), **model)
    fake.speed(2.0, 2.0, batches=(32, 256), **model)
    fake.speed(1.3, 1.2, kept_layers=list(range(1, 11)), device_name="V100", **model)
    table = laid_out(fake, 3)
    found, shown = rows(table), cells(table)
    speed = found["BERT, 6", "Fine-tuning ×"]
    assert (speed["ours"], speed["n"], speed["verdict"]) == (2, 20, "agrees")
    assert found["BERT, 6", "Inference time saved, %"]["ours"] == pytest.approx(50)
    assert found["BERT, 2", "Fine-tuning ×"]["ours"] is None, "it is of another device"
    assert found["BERT, 0", "Fine-tuning ×"]["ours"] == 1.01
    assert shown["BERT, 6", "Param., million"] == "65.8 (paper 66, −0.2, agrees) n=2"
    assert shown["BERT, 0", "Inference time saved, %"] == "–"
    (note,) = [note for note in table.notes if note.startswith("Speeds of")]
    assert note.startswith("Speeds of bert-base-cased: measured on H200, fp32, 32 rows of 128")


def test_every_depth_gives_a_number_for_table_2(fake: FakeSweep) -> None:
    large = {"dev_examples": 40_430, "model": "xlnet-base-cased"}
    fake.curve({k: 90.0 - 0.7 * k for k in range(12)} | {11: 88.0}, task="qqp", **large)
    fake.curve({0: 90.0, 11: 89.9}, task="mnli", **large)
    table = laid_out(fake, 2)
    shown = cells(table)
    assert shown["XLNet, 1%", "QQP"] == "1 (paper 9, −8, cannot tell) n=1"
    assert rows(table)["XLNet, 2%", "QQP"]["ours"] == 11, "the largest, though 7 loses more"
    assert shown["XLNet, 1%", "MNLI"] == "11 (paper 4, +7, cannot tell) n=1"


# --- which model is which


def test_a_model_is_found_by_the_end_of_its_name() -> None:
    names = {
        "/models/BERT-base-cased/": "bert-base-cased",
        "google-bert/bert-base-cased": "bert-base-cased",
        "bert-base-uncased": "bert-base-cased",
        "C:\\models\\roberta-base": "roberta-base",
    }
    for name, of in names.items():
        assert paper_models({name: 12}, {}).of == {name: of}
    both = {"bert-base-uncased": 12, "x/bert-base-cased": 12}  # never pooled
    assert paper_models(both, {}).of == {"x/bert-base-cased": "bert-base-cased"}


def test_a_named_model_stands_for_the_papers_and_of_its_depth_alone(fake: FakeSweep) -> None:
    fake.cell(model="./mine", k=0, task="sst2", score=92.0)
    fake.cell(model="bert-base-cased", k=0, task="sst2", score=50.0, depth=6)
    with open_views(fake.publish(), only=READ) as catalog:
        unnamed = paper_tables(catalog, [1])[1]
        named = paper_tables(catalog, [1], names={"./mine": "bert-base-uncased"})[1]
    assert {*unnamed.long["verdict"].to_pylist()} == {"missing"}
    assert any("6 layers" in note for note in unnamed.notes)
    assert cells(named)["BERT, 0", "SST-2"].startswith("92.00 (paper 92.43, ")
    assert "./mine stands for bert-base-cased." in named.notes


def test_a_name_that_neither_side_has(fake: FakeSweep) -> None:
    fake.cell(model="./mine", k=0, task="sst2", score=92.0)
    refused = {
        ("./mine", "gpt2"): "the paper has no model 'gpt2'. It has: bert-base-cased,",
        ("./yours", "roberta-base"): "no cell of a model './yours'. It has: ./mine",
        ("./mine", "distilbert-base-cased"): "./mine has 12 layers, .* has 6",
    }
    with open_views(fake.publish(), only=READ) as catalog:
        for (ours, paper), message in refused.items():
            with pytest.raises(SpecError, match=message):
                paper_tables(catalog, names={ours: paper})


# --- how far apart is the same


def planted(fake: FakeSweep, *, pruning_matters: bool) -> list[Row]:
    """BERT's rows of Table 1 with some noise, or with the score of all layers at every depth."""
    scores = [n for n in printed(1, "score") if n["model"] == "bert-base-cased"]
    full = {n["task"]: n["paper"] for n in scores if n["k"] == 0}
    rng = random.Random(1)
    for seed, n in itertools.product(range(2), scores):
        score = n["paper"] if pruning_matters else full[n["task"]]
        fake.cell(
            model=n["model"], k=n["k"], task=n["task"], seed=seed,
            score=score + rng.gauss(0, 0.25), dev_examples=DEV_ROWS[n["task"]],
        )  # fmt: skip
    return [row for row in beside(fake, 1).values() if row["model"] == "bert-base-cased"]


def test_pruning_without_effect_does_not_read_as_agreement(fake: FakeSweep) -> None:
    found = planted(fake, pruning_matters=False)
    far = [row for row in found if row["k"] and abs(row["difference"] or 0) > MARGIN]
    near = [row for row in found if row["verdict"] == "agrees"]
    assert len(far) > len(found) / 3
    assert {row["verdict"] for row in far} == {"cannot tell", "differs"}
    assert len(near) < len(found) / 7
    assert {row["column"] for row in near} <= {"QQP", "MNLI", "QNLI"}  # of thousands of rows


def test_the_papers_own_numbers_agree_where_the_rows_can_tell_and_never_differ(
    fake: FakeSweep,
) -> None:
    found = planted(fake, pruning_matters=True)
    assert {row["verdict"] for row in found} == {"agrees", "cannot tell"}
    agreeing = {row["column"] for row in found if row["verdict"] == "agrees"}
    assert "QQP" in agreeing
    assert not agreeing & {"RTE", "MRPC", "SST-2"}


def test_the_spread_over_seeds_is_measured_and_the_assumed_one_fades(fake: FakeSweep) -> None:
    axes = {"model": "bert-base-cased", "dev_examples": 10**9}
    rng = np.random.default_rng(0)
    for task in ("qqp", "mnli"):
        fake.cell(k=0, task=task, score=90.0, **axes)
    for seed, k in itertools.product(range(5), range(1, 12)):
        fake.cell(k=k, task="qqp", score=rng.normal(90, 2), seed=seed, **axes)
    found = beside(fake, 1)
    full = [found["BERT, 0", column] for column in ("QQP", "MNLI")]
    widths = {row["task"]: row["difference_high"] - row["difference_low"] for row in full}
    assert widths["qqp"] == pytest.approx(2 * 1.68 * 2 * 2**0.5, rel=0.25)
    assert widths["mnli"] < 3


def noise(n: int, variance: float, of_seeds: float, freedom: float) -> Row:
    return {"n": n, "rows_variance": variance, "seed_variance": of_seeds, "seed_freedom": freedom}


def test_the_two_one_sided_tests_are_those_of_statsmodels() -> None:
    """Without noise of rows and of the paper it is the test of one mean. Its interval is that of
    the mean with the error at each bound, which shrinks towards 100 points apart."""
    ours = [0.31, -0.2, 0.44, 0.1, 0.05]
    n, variance = len(ours), stdev(ours) ** 2
    found = interval_of(mean(ours), noise(n, 0.0, variance / (n + 1), n - 1))
    described = DescrStatsW(ours)
    low, high = described.tconfint_mean(alpha=0.1)
    middle, half = (low + high) / 2, (high - low) / 2
    for bound, side in ((found.low, -1), (found.high, 1)):
        smaller = ((100**2 - bound**2) / (100**2 - middle**2)) ** 0.5
        assert bound == pytest.approx(middle + side * half * smaller, rel=1e-12)
    within = found.low > -MARGIN and found.high < MARGIN
    assert within == (described.ttost_mean(-MARGIN, MARGIN)[0] < 0.05)
