"""The tables that say how sure a number is, over stores of networks whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lp_sweep.analysis.render import FORMATS, render
from lp_sweep.analysis.statistics import networks
from lp_sweep.analysis.statistics.networks import Network
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.export.choice import stored_answers
from lp_sweep.trials.train.metrics import METRICS
from tests.support.answered import lines, long, made, network, right
from tests.support.fake_records import FakeSweep

# --- significance


def test_a_row_per_seed_and_one_over_the_seeds(fake: FakeSweep) -> None:
    for seed in (1, 2):
        network(fake, right(90), k=0, seed=seed, task="MNLI", split="validation_matched")
        network(fake, right(78), k=6, seed=seed, task="MNLI", split="validation_matched")
    one, two, over = long(fake, TABLES["significance"])
    assert (one["seed"], two["seed"], over["seed"], over["n_seeds"]) == (1, 2, None, 2)
    assert (one["b"], one["c"], one["test"]) == (12, 0, "mcnemar")
    assert one["p"] == pytest.approx(2 / 2**12)
    assert over["p_holm"] == pytest.approx(3 * over["p"]), "of three tests, the smallest p"
    assert one["p_holm"] == two["p_holm"] == pytest.approx(max(2 * one["p"], over["p_holm"]))
    assert (over["test"], over["n_examples"], over["n_tests"]) == ("seeds and rows", 100, 3)
    assert over["change"] == pytest.approx(-12)
    assert over["low"] < -12 < over["high"] < 0


def test_answers_are_read_in_chunks(fake: FakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of networks with a query each would take minutes; all in one, all of the memory."""
    monkeypatch.setattr(networks, "_READ_TOGETHER", 300)  # answers of three networks
    for seed in range(10):
        network(fake, right(90 - seed), k=0, seed=seed)
    asked: list[str] = []
    with open_views(fake.publish()) as catalog:
        query = catalog.query
        monkeypatch.setattr(
            catalog, "query", lambda sql, *given: asked.append(sql) or query(sql, *given)
        )
        rows = TABLES["intervals"](catalog).long.to_pylist()
    assert [row["n"] for row in rows] == [10]
    assert rows[0]["reason"] is None
    assert 4 <= sum("FROM predictions" in sql for sql in asked) <= 6


def test_f1_is_of_the_class_that_the_record_names(fake: FakeSweep) -> None:
    """Resampled, compared and named: of 'fraud', which is class 0."""
    fraud = np.arange(60) % 10 == 0
    for k, found in ((0, fraud), (6, fraud & (np.arange(60) < 30))):
        score = 100 * METRICS["f1"](fraud.astype(float), found.astype(float))
        of = {"metric": "f1", "positive": "fraud", "positive_label": 0, "majority": 0.18}
        row = fake.cell(k=k, score=score, task="claims", **of)
        fake.store.put("predictions", row["trial_id"], [
            {"trial_id": row["trial_id"], "split": "validation", "example": i, "scores": [0.0]}
            | {"label": float(not fraud[i]), "prediction": float(not found[i])}
            for i in range(60)
        ])  # fmt: skip
    with open_views(fake.publish()) as catalog:
        (test,) = (table := TABLES["significance"](catalog)).long.to_pylist()
        assert (test["reason"], test["test"], test["b"]) == (None, "rows", None)
        assert test["change"] == pytest.approx(100 * (2 / 3 - 1))
        assert (table.rows[0][table.columns.index("task")]) == "claims F1 of 'fraud'"
        full, pruned = TABLES["intervals"](catalog).long.to_pylist()
        assert (full["metric"], full["reason"], pruned["reason"]) == ("f1 of 'fraud'", None, None)
        assert TABLES["tasks"](catalog).columns[-1] == "claims F1 of 'fraud'"
    read = stored_answers(fake.store)
    answers = [read(Network(row["trial_id"], "f1", "", None)).score for row in fake.cells]
    assert answers == pytest.approx([100.0, 200 / 3]), "as export --best reads them"


def test_a_ratio_of_sums_is_resampled_by_its_tallies(fake: FakeSweep) -> None:
    """Entity F1 of sentences: twice the right ones of all that are labelled or predicted."""
    rng = np.random.default_rng(0)
    whole = rng.integers(0, 6, 200)
    scores = []
    for k, share in ((0, 0.9), (6, 0.5)):
        part = rng.binomial(whole, share)
        scores.append(score := 100 * float(part.sum() / whole.sum()))
        row = fake.cell(k=k, score=score, task="NER", metric="entity_f1")
        fake.store.put("predictions", row["trial_id"], [
            {"trial_id": row["trial_id"], "split": "validation", "example": i}
            | {"tally": [float(part[i]), float(whole[i])]}
            for i in range(200)
        ])  # fmt: skip
    (test,) = long(fake, TABLES["significance"])
    assert (test["reason"], test["test"], test["n_examples"]) == (None, "rows", 200)
    assert test["low"] < scores[1] - scores[0] < test["high"] < 0
    (answer,) = long(fake, TABLES["min-layers-interval"])
    assert answer["reason"] is None
    read = stored_answers(fake.store)
    answers = [read(Network(row["trial_id"], "entity_f1", "", None)).score for row in fake.cells]
    assert answers == pytest.approx(scores), "as export reads them"


def test_a_comparison_that_strategies_share_is_one_test(fake: FakeSweep) -> None:
    network(fake, right(90), k=0, depth=6)
    network(fake, right(80), k=1, depth=6)
    network(fake, right(80), k=1, depth=6, strategy="even-alternate")  # the same layers
    network(fake, right(70), k=2, depth=6)
    rows = long(fake, TABLES["significance"])
    assert [row["n_tests"] for row in rows] == [2, 2, 2]
    assert rows[0]["p_holm"] == rows[1]["p_holm"]
    (alone,) = long(fake, TABLES["significance"], strategies=["even-alternate"])
    assert (alone["p"], alone["p_holm"], alone["n_tests"]) == (rows[0]["p"], rows[0]["p"], 1)


def test_strategies_are_compared_at_the_same_number_of_layers(fake: FakeSweep) -> None:
    for seed in (1, 2):
        network(fake, right(90), k=0, seed=seed, depth=6)
        network(fake, right(80), k=2, seed=seed, depth=6)
        network(fake, right(70), k=2, seed=seed, depth=6, strategy="bottom")
        network(fake, right(80), k=3, seed=seed, depth=6, strategy="bottom")
    one, two, over, *others = long(fake, TABLES["significance"], against="top")
    assert [(row["strategy"], row["k"], row["seed"]) for row in (one, two, over)] == [
        ("bottom", 2, 1), ("bottom", 2, 2), ("bottom", 2, None)
    ]  # fmt: skip
    assert (one["b"], one["c"], over["change"]) == (10, 0, pytest.approx(-10))
    assert {row["reason"] for row in others} == {"no top"}, "top was not asked for K=3"
    assert long(fake, TABLES["significance"], against="top", strategies=["bottom"])[2] == over


def test_answers_are_matched_by_example_not_by_row(fake: FakeSweep, tmp_path: Path) -> None:
    shuffled = FakeSweep(tmp_path / "shuffled")
    order = np.random.default_rng(0).permutation(100)
    labels = np.arange(100) % 2
    for sweep, rows in ((fake, None), (shuffled, order)):
        network(sweep, np.where(right(90) == 1, labels, 1 - labels), labels, k=0)
        network(sweep, np.where(right(85) == 1, labels, 1 - labels), labels, k=6, order=rows)
    (tested,) = long(fake, TABLES["significance"])
    assert tested["b"] == 5
    assert long(shuffled, TABLES["significance"]) == [tested]


# by the reason, which is the name of the task: what is beside the network with all layers
NOT_TESTED: dict[str, Callable[[FakeSweep, str], Any]] = {
    "no predictions": lambda fake, task: fake.cell(k=6, score=90.0, task=task),
    "different examples": lambda fake, task: network(fake, right(80, n=99), k=6, task=task),
    "different labels": lambda fake, task: network(
        fake, 1 - right(0), np.r_[0.0, np.ones(99)], k=6, task=task
    ),
    "the stored predictions give a different score": lambda fake, task: fake.predictions(
        fake.cell(k=6, score=80.0, task=task)["trial_id"], [True] * 100
    ),
    "different metrics": lambda fake, task: network(fake, right(80), k=6, metric="f1", task=task),
    "failed": lambda fake, task: fake.cell(k=6, state="failed", task=task),
}


def test_what_can_not_be_tested_says_why(fake: FakeSweep) -> None:
    for task, make in NOT_TESTED.items():
        network(fake, right(90), k=0, task=task)
        make(fake, task)
    tests = long(fake, TABLES["significance"])
    assert {row["task"]: row["reason"] for row in tests} == {task: task for task in NOT_TESTED}
    assert {(row["p"], row["p_holm"]) for row in tests} == {(None, None)}
    for row in long(fake, TABLES["min-layers-interval"]):
        if row["task"] in ("failed", "a score is not a number"):  # it can be the answer
            assert row["credible"] == [*range(7)]
        else:
            assert (row["credible"], row["reason"]) == (None, row["task"])


def test_a_seed_that_is_missing_leaves_no_test_over_seeds(fake: FakeSweep) -> None:
    network(fake, right(90), k=0, seed=1)
    network(fake, right(80), k=6, seed=1)
    network(fake, right(80), k=6, seed=2)
    one, two, over = long(fake, TABLES["significance"])
    assert one["p"] is not None
    assert (two["reason"], over["reason"]) == ("no K=0", "1 of 2 seeds missing")


# --- distillation

TAUGHT = "direct distill logits"


def taught(fake: FakeSweep, seed: int = 1, *, plain: int = 80, distilled: int = 88) -> None:
    """The full model, a plain and a distilled network of 6 layers, and what they took."""
    whole = network(fake, right(90), k=0, seed=seed)
    network(fake, right(90), k=0, seed=seed, procedure=TAUGHT)
    network(fake, right(plain), k=6, seed=seed, seconds_total=60.0)
    student = {"teacher": whole["trial_id"], "distill": "logits"}
    network(fake, right(distilled), k=6, seed=seed, procedure=TAUGHT, seconds_total=90.0, **student)
    for measure, seconds in (("teacher", 30.0), ("probes", 600.0)):
        id_ = f"p1-{measure}{seed}"
        row = {"profile_id": id_, "measure": measure, "seconds_total": seconds}
        fake.store.put("profiles", id_, [row | {"trial_id": whole["trial_id"], "task": "SST-2"}])


def test_a_distilled_network_is_tested_against_the_plain_one_of_its_seed(fake: FakeSweep) -> None:
    taught(fake)
    (row,) = long(fake, TABLES["distillation"])
    assert (row["mean_plain"], row["mean_distilled"], row["n"]) == (80.0, 88.0, 1)
    assert row["gain"] == pytest.approx(8)
    assert (row["test"], row["b"], row["c"]) == ("mcnemar", 0, 8)
    assert row["p"] == row["p_holm"] == pytest.approx(2 / 2**8)
    assert (row["plain"], row["distill"], row["k"]) == ("direct", "logits", 6)
    costs = {name: row[f"seconds_{name}"] for name in ("plain", "distilled", "logits")}
    assert costs == {"plain": 60.0, "distilled": 90.0, "logits": 30.0}
    (shown,) = lines(made(fake, "distillation"))
    assert (shown["plain"], shown["distilled"]) == ("80.00", "88.00")
    assert shown["distill"] == "direct distill logits"
    assert shown["gain"].startswith("+8.00 [")
    assert (shown["minutes"], shown["logits"]) == ("1 → 1.5", "0.5")


def test_distillation_over_seeds_is_paired_and_corrected(fake: FakeSweep) -> None:
    """Seeds differ by far more than the gain."""
    for seed, plain in ((1, 60), (2, 75), (3, 89)):
        taught(fake, seed, plain=plain, distilled=plain + 4 + seed % 2)
    network(fake, right(99), k=6, seed=1, strategy="bottom", procedure=TAUGHT)
    network(fake, right(50), k=6, seed=1, strategy="bottom")
    top, bottom = long(fake, TABLES["distillation"])
    assert (top["test"], top["n"], top["gain"]) == ("seeds and rows", 3, pytest.approx(14 / 3))
    assert 0 < top["low"] < 14 / 3 < top["high"]
    assert (bottom["n_tests"], bottom["p_holm"]) == (2, pytest.approx(2 * bottom["p"]))
    (alone,) = long(fake, TABLES["distillation"], strategies=["bottom"])
    assert (alone["n_tests"], alone["p_holm"]) == (1, bottom["p"])


# of the procedures, the last is compared with this one
BESIDE = {
    "direct, finetune_then_drop distill logits T=4": "direct",
    "iterative 3, iterative 3 distill logits": "iterative 3",
    "direct, direct bridge linear distill logits": "direct",
    "direct, finetune_then_drop, finetune_then_drop bridge linear": "finetune_then_drop",
}


def test_the_plain_network_is_of_the_same_procedure_else_direct(fake: FakeSweep) -> None:
    for procedures in BESIDE:
        for count, procedure in enumerate(procedures.split(", ")):
            network(fake, right(80 + count), k=6, procedure=procedure, task=procedures)
    table = made(fake, "distillation")
    for shown, row in zip(lines(table), table.long.to_pylist(), strict=True):
        assert shown["distill"] == row["task"].split(", ")[-1]
        plain = (BESIDE[row["task"]], 80 + row["task"].count(",") - 1)
        assert (row["plain"], row["mean_plain"]) == plain
    assert any(note.startswith("plain: ") for note in table.notes)
    assert "procedure" not in table.columns


def test_what_is_missing_of_a_distillation_is_shown(fake: FakeSweep) -> None:
    taught(fake, 1)
    network(fake, right(80), k=6, seed=2)
    fake.cell(k=6, seed=2, procedure=TAUGHT, state="failed")
    fake.cell(k=8, seed=1)
    network(fake, right(80), k=8, seed=1, procedure=TAUGHT)
    network(fake, right(70), k=9, seed=1, procedure=TAUGHT)
    network(fake, right(60), k=10, seed=1)
    some, pending, alone = lines(made(fake, "distillation"))
    assert (some["plain"], some["distilled"]) == ("80.00", "88.00 (1 of 2)")
    assert some["gain"] == "1 of 2 seeds missing"
    sides = ("plain", "distilled", "gain")
    assert [pending[side] for side in sides] == ["missing", "80.00", "missing"]
    assert [alone[side] for side in sides] == ["–", "70.00", "– [a]"]


def test_a_full_model_taught_by_another_is_a_distilled_network(fake: FakeSweep) -> None:
    network(fake, right(90), k=0)
    network(fake, right(95), k=0, procedure="direct distill logits of large")
    network(fake, right(90), k=0, procedure=TAUGHT)  # it is its own teacher
    (row,) = long(fake, TABLES["distillation"])
    assert (row["k"], row["gain"]) == (0, pytest.approx(5))


def test_the_logits_of_a_teacher_in_a_folder_are_a_cost(fake: FakeSweep) -> None:
    network(fake, right(80), k=6)
    taught_by = {"procedure": "direct distill logits of ./teacher", "teacher": "p1-folder"}
    network(fake, right(85), k=6, **taught_by)
    row = {"profile_id": "p1-folder", "measure": "teacher", "seconds_total": 30.0}
    fake.store.put("profiles", "p1-folder", [row | {"model": "./teacher", "task": "SST-2"}])
    for sweep in (None, "demo"):
        with open_views(fake.publish(), sweep=sweep, only=TABLES["distillation"].views) as catalog:
            (found,) = TABLES["distillation"](catalog).long.to_pylist()
        assert (found["distill"], found["seconds_logits"]) == ("logits of ./teacher", 30.0)


# --- intervals


def test_an_interval_is_over_seeds_and_rows_or_over_rows(fake: FakeSweep) -> None:
    for seed, n_right in enumerate((90, 93, 88)):
        network(fake, right(n_right), k=0, seed=seed)
    network(fake, right(80), k=6, seed=0)
    fake.cell(k=6, seed=1)
    for seed in (0, 1):
        fake.cell(k=7, score=70.0 + seed, seed=seed)
    fake.cell(k=8, score=70.0)
    fake.cell(k=9, state="failed")
    three, one, two_bare, bare, none = long(fake, TABLES["intervals"])
    assert (three["over"], three["n"]) == ("seeds and rows", 3)
    assert three["mean"] == pytest.approx(271 / 3)
    assert three["low"] < 84.3, "wider than other seeds alone, and than other rows alone"
    assert three["high"] - three["low"] > 12.1
    assert three["high"] < 100
    assert (one["over"], one["n"], one["n_expected"], one["sd"]) == ("rows", 1, 2, None)
    assert one["high"] - one["low"] == pytest.approx(2 * 1.96 * 4, abs=0.2)  # sd of a binomial
    assert (two_bare["over"], two_bare["reason"]) == ("seeds", None)
    assert two_bare["high"] - two_bare["low"] == pytest.approx(2 * 12.706 * 0.5, rel=0.01)
    assert (bare["over"], bare["mean"], bare["reason"]) == ("none", 70.0, "no predictions")
    assert (none["over"], none["mean"], none["reason"]) == ("none", None, "no score")


# --- for people

_OTHERS = ("embeddings", "candidates")  # of other kinds of task, and of what is measured


def test_tables_narrow_to_models_and_strategies_and_render(fake: FakeSweep) -> None:
    name = 'it\'s a|"model"'
    for model in ("bert", name):
        for strategy in ("top", "bottom"):
            network(fake, right(90), k=0, model=model, strategy=strategy)
            network(fake, right(80), k=2, model=model, strategy=strategy)
            network(fake, right(85), k=2, model=model, strategy=strategy, procedure=TAUGHT)
        network(fake, right(70), k=2, model=model, strategy="random 0", dropped=(3, 5))
    catalog = open_views(fake.publish())
    for make in [table for key, table in TABLES.items() if table.takes and key not in _OTHERS]:
        table = make(catalog, models=[name], strategies=["top"])
        long = table.long.to_pylist()
        assert {row["model"] for row in long} == {name}
        assert "strategy" not in make.takes or {row["strategy"] for row in long} == {"top"}
        for format in FORMATS:
            assert render(table, format, terminal=False)
