"""The views behind the tables, and what the tables make of them: a missing number is a word."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.needed import layers_left, likely_layers
from lp_sweep.analysis.notes import majorities
from lp_sweep.analysis.render import render
from lp_sweep.analysis.statistics.minimum import with_set
from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from tests.support.answered import lines, made
from tests.support.fake_records import FakeSweep


def rows(fake: FakeSweep, sql: str) -> list[dict[str, Any]]:
    with open_views(fake.publish(), only=re.findall(r"FROM (\w+)", sql), once=True) as catalog:
        return catalog.query(sql).to_pylist()


def shown(fake: FakeSweep, name: str) -> list[dict[str, str]]:
    return lines(made(fake, name))


# --- cells


def test_a_cell_is_done_failed_deferred_or_pending(fake: FakeSweep) -> None:
    fake.cell(k=0, score=92.0)
    fake.cell(k=2, state="failed")
    fake.cell(k=4)
    fake.cell(strategy="contribution", threshold=0.9, state="deferred")
    lost = fake.cell(k=6)
    fake.failure(lost["trial_id"], lost, error_type="node_lost", final=False)
    recovered = fake.cell(k=8, score=80.0)
    fake.failure(recovered["trial_id"], recovered)
    fake.cell(strategy="contribution", threshold=0.9, state="failed", task="RTE")  # its profile
    found = rows(fake, "SELECT state, error_type, k FROM cells ORDER BY cell")
    assert [(row["state"], row["error_type"], row["k"]) for row in found] == [
        ("done", None, 0),
        ("failed", "out_of_memory", 2),
        ("pending", None, 4),
        ("deferred", None, None),
        ("pending", None, 6),  # it is tried again
        ("done", None, 8),  # a later attempt went through
        ("failed", "out_of_memory", None),
    ]
    fake.profile([0.5] * 12, task="RTE")
    assert rows(fake, "FROM cells WHERE task = 'RTE'")[0]["state"] == "deferred"


def test_a_change_is_against_the_same_sweep_model_procedure_task_and_seed(fake: FakeSweep) -> None:
    other = FakeSweep(Path(fake.store.location), name="other")
    axes = ({}, {"model": "xlnet"}, {"procedure": "iterative"}, {"task": "RTE"}, {"seed": 43})
    for loss, axis in enumerate(axes, start=1):
        fake.curve({0: 90.0 + loss, 6: 90.0}, **axis)
    other.curve({6: 90.0})
    other.publish()
    found = rows(fake, "SELECT sweep, change FROM cells WHERE k = 6 ORDER BY sweep, cell")
    assert [row["change"] for row in found] == pytest.approx([-1, -2, -3, -4, -5, None])


OF_LARGE = "direct distill logits of large"


def test_a_student_of_another_model_is_compared_with_the_plain_full_model(fake: FakeSweep) -> None:
    plain = fake.cell(k=0, score=90.0)
    fake.cell(k=0, score=92.0, procedure=OF_LARGE)
    fake.cell(k=6, score=89.5, procedure=OF_LARGE)
    found = rows(fake, "SELECT k, change, full_trial_id FROM cells ORDER BY cell")
    assert {row["full_trial_id"] for row in found} == {plain["trial_id"]}
    assert [row["change"] for row in found] == pytest.approx([0, 2, -0.5])
    (answer,) = rows(
        fake,
        "SELECT max_dropped, score_full, loss FROM min_layers WHERE delta = 1 "
        "AND procedure <> 'direct'",
    )
    assert answer == pytest.approx({"max_dropped": 6, "score_full": 90.0, "loss": 0.5})
    scores = [line["SST-2 accuracy"] for line in shown(fake, "tasks")]
    [tested] = made(fake, "significance").long.to_pylist()
    assert scores == ["90.00", "92.00 (+2.00)", "89.50 (−0.50)"]
    assert tested["reason"] == "no predictions"  # and not: no K=0


def test_a_student_has_its_own_k0_unless_a_plain_full_model_is_listed(fake: FakeSweep) -> None:
    fake.curve({0: 92.0, 6: 89.5}, procedure=OF_LARGE)
    changes = [row["change"] for row in rows(fake, "SELECT change FROM cells ORDER BY cell")]
    assert changes == pytest.approx([0, -2.5])
    fake.cell(k=0)
    assert [row["change"] for row in rows(fake, "FROM cells ORDER BY cell")] == [None] * 3
    (answer, *_) = rows(fake, "FROM min_layers WHERE procedure <> 'direct'")
    assert (answer["max_dropped"], answer["n_missing"]) == (None, 2)


# --- tasks


def test_seeds_without_a_score_are_counted(fake: FakeSweep) -> None:
    fake.cell(strategy="contribution", threshold=0.9, dropped=(3, 5), score=89.0)
    fake.cell(strategy="contribution", threshold=0.9, seed=43, state="deferred")
    fake.cell(k=6, score=float("nan"), task="STS-B")
    threshold, no_number = rows(fake, "FROM task_table ORDER BY position")
    assert (threshold["k"], threshold["n"], threshold["n_expected"]) == (2, 1, 2)
    assert threshold["n_deferred"] == 1
    assert (no_number["mean"], no_number["n"], no_number["n_expected"]) == (None, 0, 1)


def three_seeds(fake: FakeSweep) -> None:
    for seed, full, six in ((42, 92.0, 90.0), (43, 93.0, 90.5), (44, 92.5, 90.25)):
        fake.curve({0: full, 6: six}, seed=seed)


def test_the_task_table_for_people(fake: FakeSweep) -> None:
    three_seeds(fake)
    fake.cell(k=0, task="STS-B", score=88.79)
    fake.cell(k=6, task="STS-B", score=88.93)
    fake.cell(k=6, task="STS-B", seed=43, state="failed")
    fake.cell(k=0, task="RTE")
    fake.cell(k=6, task="RTE", state="failed")
    fake.cell(strategy="contribution", threshold=0.9, task="RTE", state="deferred")
    table = made(fake, "tasks")
    assert table.columns == (
        *("model", "strategy", "layers"),
        *("SST-2 accuracy", "STS-B Pearson", "RTE"),  # its metric is not known yet
    )
    full, six, contribution = lines(table)
    assert full["strategy"] == "all layers"
    assert full["SST-2 accuracy"] == "92.50 ±0.50 n=3"
    assert full["RTE"] == "missing"
    assert (six["strategy"], six["layers"]) == ("top", "6 of 12")
    assert six["SST-2 accuracy"] == "90.25 ±0.25 (−2.25) n=3"
    assert table.long.to_pylist()[1]["change_sd"] == pytest.approx(0.25)
    assert six["STS-B Pearson"] == "88.93 (+0.14) n=1 of 2 [a]"
    assert six["RTE"] == "failed"
    assert (contribution["strategy"], contribution["layers"]) == ("contribution t=0.9", "? of 12")
    assert contribution["RTE"] == "waiting [b]"
    assert [note for note in table.notes if note.startswith("[a]")] == ["[a] 1 more failed."]
    assert contribution["SST-2 accuracy"] == "–"
    assert any("SST-2 50.00" in note for note in table.notes)


def test_full_depth_is_one_row_whichever_strategies_list_it(fake: FakeSweep) -> None:
    fake.cell(strategy="bottom", k=0, score=92.0)
    for seed in (42, 43):
        fake.cell(strategy="top", k=0, score=92.0, seed=seed)
    table = made(fake, "tasks")
    (line,) = lines(table)
    assert (line["SST-2 accuracy"], line["seeds"]) == ("92.00 ±0.00", "2")
    assert len(shown(fake, "strategies")) == 1
    assert table.long.num_rows == 2, "the long form leaves nothing out"


def test_thresholds_that_keep_different_layers_share_a_row(fake: FakeSweep) -> None:
    for task, dropped in (("SST-2", (3, 5)), ("RTE", (3, 5, 8, 9))):
        fake.cell(k=0, task=task, score=90.0)
        fake.cell(strategy="contribution", threshold=0.9, task=task, dropped=dropped, score=89.0)
    assert shown(fake, "tasks")[1]["layers"] == "8–10 of 12"
    (row,) = rows(fake, "FROM strategy_table WHERE threshold = 0.9")
    assert (row["k"], row["k_mean"], row["change_all"]) == (None, 3, -1)


# --- strategies


def test_strategies_are_means_over_tasks_with_stable_ones_apart(fake: FakeSweep) -> None:
    for seed, extra in ((42, 0), (43, 1)):
        for task, full, pruned in (("toy", 90, 88), ("SST-2", 92, 91), ("rte", 60, 66)):
            fake.curve({0: full + extra, 6: pruned + extra}, task=task, seed=seed)
    (row,) = rows(fake, "FROM strategy_table WHERE k = 6")
    assert row["mean_all"] == pytest.approx((88 + 91 + 66) / 3 + 0.5)
    assert row["change_all"] == pytest.approx((-2 - 1 + 6) / 3)
    assert row["mean_stable"] == pytest.approx(90)
    assert row["change_stable"] == pytest.approx(-1.5)
    assert row["sd_all"] == pytest.approx(0.5**0.5)
    assert (row["n_tasks"], row["n_stable"], row["n_stable_expected"]) == (3, 2, 2)
    assert (row["n_seeds_all"], row["n_seeds_stable"], row["missing_tasks"]) == (2, 2, None)


def test_a_missing_task_is_never_averaged_away(fake: FakeSweep) -> None:
    for seed in (42, 43):
        fake.curve({0: 90.0, 6: 88.0}, seed=seed)
        fake.curve({0: 60.0}, task="RTE", seed=seed)
    fake.cell(k=6, task="RTE", score=58.0, seed=42)
    fake.cell(k=6, task="RTE", seed=43, state="failed")
    fake.curve({6: 80.0}, strategy="bottom")  # it lists SST-2 and one seed only
    top, bottom = rows(fake, "FROM strategy_table WHERE k = 6 ORDER BY position")
    assert (top["mean_all"], top["change_all"], top["missing_tasks"]) == (None, None, "RTE")
    assert (top["n_tasks"], top["n_tasks_expected"]) == (1, 2)
    assert (top["n_seeds_all"], top["sd_all"]) == (1, None), "seed 43 has not every task"
    assert (top["mean_stable"], top["change_stable"]) == (88, -2)
    assert (bottom["mean_all"], bottom["missing_tasks"]) == (None, "RTE")
    line = shown(fake, "strategies")[1]
    assert (line["all tasks"], line["missing"]) == ("missing (1 of 2)", "RTE")
    assert (line["stable tasks"], line["seeds"]) == ("88.00 ±0.00 (−2.00)", "2")


# --- speed


FULL = list(range(1, 13))


def test_a_speed_is_what_was_measured_of_the_network(fake: FakeSweep) -> None:
    fake.cell(k=0, score=92.0)
    fake.cell(k=6, score=90.0)
    fake.speed(1.001, 0.999, kept_layers=FULL)
    fake.speed(1.94, 1.97)
    full, six = rows(fake, "FROM speed_table ORDER BY k")
    assert (six["finetune_speedup"], six["inference_speedup"], six["pairs"]) == (1.94, 1.97, 20)
    assert (six["finetune_full_ms"], six["finetune_ms"]) == (100, pytest.approx(100 / 1.94))
    assert six["params_percent"] == pytest.approx(100 * 65 / 107)
    assert full["finetune_speedup"] == 1.001
    first, second = shown(fake, "speed")
    assert (first["kept"], first["fine-tuning"]) == ("1-12", "×1.00 (0.99–1.01)")
    assert (second["layers"], second["kept"]) == ("6 of 12", "1-6")
    assert (second["device"], second["batch"]) == ("H200", "32×128")
    speedups = (second["fine-tuning"], second["inference"])
    assert speedups == ("×1.94 (1.92–1.96)", "×1.97 (1.95–1.99)")


def test_embeddings_show_score_speed_and_index(fake: FakeSweep) -> None:
    fake.cell(k=0, score=38.0, vector_width=384, task="search")
    fake.cell(k=6, score=36.5, vector_width=384, task="search")
    fake.cell(k=6, score=90.0)  # of no embedding
    fake.speed(1.94, 2.0, batches=(1, 64))
    full, six = rows(fake, "FROM embedding_table ORDER BY k")
    assert (full["index_row_bytes"], full["texts_per_second_1"]) == (4 * 384, None)
    (one, many) = rows(fake, "SELECT batch, inference_wall_ms AS ms FROM speed_table WHERE k = 6")
    assert six["texts_per_second_1"] == pytest.approx(1000 / one["ms"])
    assert six["texts_per_second_64"] == pytest.approx(64_000 / many["ms"])
    first, second = shown(fake, "embeddings")
    told = (first["score"], first["texts/s"], first["index row"])
    assert told == ("38.00", "– [a]", "1,536 B")
    assert (second["change"], second["kept"], second["device"]) == ("−1.50", "1-6", "H200")


def test_a_speed_that_was_not_measured_is_not_derived(fake: FakeSweep) -> None:
    """The trials have timings of their own, whatever ran beside them."""
    fake.cell(k=0, score=92.0, train_examples_per_second=10.0)
    fake.cell(k=6, score=90.0, train_examples_per_second=20.0)
    fake.speed(1.0, 1.0, kept_layers=FULL)
    table = made(fake, "speed")
    line = lines(table)[1]
    assert (line["device"], line["batch"]) == ("–", "–")
    assert (line["fine-tuning"], line["inference"]) == ("– [a]", "– [a]")
    assert (line["parameters"], line["of full"]) == ("65.0 M", "60.7%")
    assert any("measure: {speed: cpu}" in note for note in table.notes)


def test_one_measurement_is_that_of_all_tasks_seeds_and_procedures(fake: FakeSweep) -> None:
    for task, seed in itertools.product(("SST-2", "RTE"), (42, 43)):
        fake.cell(k=6, score=90.0, task=task, seed=seed)
        fake.cell(k=6, score=90.0, task=task, seed=seed, procedure="iterative")
    fake.cell(strategy="bottom", k=6, score=88.0)
    reduced = fake.cell(k=6, score=89.0, seed=44, removed_feed_forwards=[5, 6])
    reduced["feed_forward"] = "top 2"
    fake.speed(1.94, 1.97)
    fake.speed(2.4, 2.5, removed_feed_forwards=[5, 6], width=0.06)
    table = made(fake, "speed")
    plain, bottom, removed = table.long.to_pylist()
    assert (plain["finetune_speedup"], plain["n_trials"]) == (1.94, 8)
    assert bottom["kept_layers"] == [7, 8, 9, 10, 11, 12]
    assert (bottom["finetune_speedup"], bottom["n_trials"]) == (None, 1), "another network"
    assert (removed["feed_forward"], removed["finetune_speedup"]) == ("top 2", 2.4)
    assert lines(table)[2]["fine-tuning"] == "×2.40 (2.33–2.47) [b]"
    assert table.notes[1][4:12] == "Unsteady"


def test_a_ratio_is_never_taken_across_devices_or_batches(fake: FakeSweep) -> None:
    """Each row has the times of both networks on the one device it is of."""
    elsewhere: list[dict[str, Any]] = [
        {},
        {"device_type": "cpu", "device_name": "EPYC"},
        {"device_name": "NVIDIA H100 80GB HBM3"},
        {"device_type": "cpu", "device_name": "H200", "threads": 1},
        {"precision_used": "bf16"},
        {"max_length": 64},
    ]
    fake.cell(k=6, score=90.0)
    for place, columns in enumerate(elsewhere):
        fake.speed(1.5 + place / 10, 1.6 + place / 10, **columns)
    fake.speed(2.5, 2.6, batches=(8, 256), device_name="another")
    found = rows(fake, "FROM speed_table ORDER BY finetune_speedup")
    known = [row["finetune_speedup"] for row in found]
    assert known == pytest.approx([1.5, 1.6, 1.7, 1.8, 1.9, 2.0, 2.5, 2.5])
    assert [row["inference_speedup"] for row in found] == pytest.approx([x + 0.1 for x in known])
    for row in found:
        ratio = row["finetune_full_ms"] / row["finetune_ms"]
        assert ratio == pytest.approx(row["finetune_speedup"])
    table = made(fake, "speed")
    assert len({(line["device"], line["batch"]) for line in lines(table)}) == 8
    assert any("no ratios across devices" in note for note in table.notes)


# --- layout


def test_networks_without_feed_forwards_are_left_out_with_a_note(fake: FakeSweep) -> None:
    tables = [TABLES["min-layers"], TABLES["min-layers-interval"]]
    fake.curve({0: 90.0, 2: 89.2})
    fake.cell(k=2, score=88.0, strategy="bottom")
    fake.cells[-1]["feed_forward"] = "top 3"
    views = ("min_layers_by_unit", "cells", "trials", "predictions", "task_table")
    catalog = open_views(fake.publish(), only=views)
    for make in tables:
        (note,) = [note for note in make(catalog).notes if "Left out" in note]
    (sql,) = re.findall(r'lp-sweep query "(.*?)"', note)
    assert [row["strategy"] for row in catalog.query(sql).to_pylist()] == ["bottom"]


def test_the_min_layers_table_for_people(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 89.2, 4: 80.0})
    fake.curve({0: 70.0, 2: 69.5}, task="QQP")
    fake.cell(k=4, task="QQP", state="failed")
    fake.curve({2: 50.0}, task="QNLI")
    views = TABLES["min-layers"].views
    catalog = open_views(fake.publish(), deltas=(0.5, 1), only=views)
    told = TABLES["min-layers"](catalog)
    assert told.lead == (
        "SST-2: needs 11–12 of 12 layers to lose at most 0.5 points "
        "(all layers, one seed; 11 layers were not tried; only top was tried)",
        "QQP: needs 8–10 of 12 layers to lose at most 0.5 points "
        "(top with 10 layers, −0.50, one seed; missing trials may bring a smaller "
        "one; only top was tried)",
        "QNLI: no answer yet: no score with all layers to compare with",
    )
    assert render(told).startswith(told.lead[0])
    assert told.lead[0] not in render(told, "markdown")
    assert not any("majority class" in note for note in told.notes)
    percent = lines(TABLES["min-layers"](catalog, unit="percent"))[1]
    assert percent["loss ≤"] == "1%"
    assert percent["SST-2"] == "9–10 of 12 (−0.89%) [c]"


def test_the_answer_of_a_strategy_has_bounds_of_its_own(fake: FakeSweep) -> None:
    for strategy, score in (("top", 80.0), ("bottom", 89.5)):
        fake.curve({0: 90.0, 1: 89.2, 2: score, 3: 70.0}, strategy=strategy)
    catalog = open_views(fake.publish(), deltas=(1,), only=TABLES["min-layers"].views)
    of = {name: TABLES["min-layers"](catalog, strategies=[name]).lead for name in ("top", "bottom")}
    assert "needs 11 of 12 layers" in of["top"][0]
    assert "needs 10 of 12 layers" in of["bottom"][0]


def test_sweep_and_procedure_are_columns_only_where_there_are_several(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 89.2})
    assert made(fake, "tasks").columns[0] == "model"
    fake.curve({0: 90.0}, procedure="iterative")
    other = FakeSweep(Path(fake.store.location), name="other")
    other.curve({0: 91.0, 2: 80.0})
    other.publish()
    table = made(fake, "tasks")
    assert table.columns[:3] == ("sweep", "model", "procedure")
    assert len(table.rows) == 5


def test_a_score_that_guessing_has_as_well_is_marked(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 2: 89.0, 4: 50.0})
    table = made(fake, "tasks")
    marked = [line["layers"] for line in lines(table) if line[table.columns[-1]].endswith("[a]")]
    assert marked == ["8 of 12"]
    assert any(note.startswith("[a] No better than the majority class") for note in table.notes)


def test_an_answer_of_a_network_that_learned_nothing_is_marked(fake: FakeSweep) -> None:
    for seed, full in ((42, 50.0), (43, 90.0), (44, 49.0)):
        fake.curve({0: full, 2: 50.0}, seed=seed)
        fake.curve({0: 80.0, 2: 79.5}, seed=seed, task="RTE")
    fake.curve({0: 50.0, 2: 50.0}, model="xlnet")
    fake.cell(k=4, model="xlnet", state="failed")
    views = ("min_layers_by_unit", "cells", "trials", "predictions")
    catalog = open_views(fake.publish(), deltas=(1,), only=views)
    alone, with_interval = TABLES["min-layers"](catalog), TABLES["min-layers-interval"](catalog)
    bert, xlnet = lines(alone)
    assert bert["SST-2"] == "11–12 of 12† [a]"
    assert bert["RTE"] == "10 of 12 (−0.50) [b]"
    assert xlnet["SST-2"] == "8–10 of 12† [c]"
    assert [line["layers"] for line in lines(with_interval)] == [
        *("11–12 of 12† [a]", "10 of 12 [c]", "8–10 of 12† [d]"),
    ]
    for table in (alone, with_interval):
        assert any(
            note.startswith("†: No better than the majority class with all layers")
            and "2 of 3 seeds of SST-2 (bert), 1 of 1 seed of SST-2 (xlnet). A model" in note
            for note in table.notes
        )
    of_one = TABLES["min-layers"](catalog, models=["bert"])
    assert any("2 of 3 seeds of SST-2. A model" in note for note in of_one.notes)


def test_a_set_of_answers_in_words() -> None:
    assert layers_left(12, [3, 5, 6, 8, 9, 10]) == "2 to 4, 6, 7 or 9"
    assert layers_left(12, [0, 8, 9, 10]) == "2 to 4 or 12"
    assert layers_left(12, []) == ""
    row = {"depth": 6, "credible": [0, 3]}
    assert likely_layers({**row, "credible_open": True}) == "at most 3 or 6"
    assert likely_layers({**row, "credible_open": False}) == "3 or 6"


@pytest.mark.parametrize(
    ("credible", "tried", "is_open"),
    [([0, 3], [3], True), ([3], [3, 5], False), ([5], [5], False), ([0], [3], False)],
)
def test_a_smaller_network_than_the_smallest_tried(
    credible: list[int], tried: list[int], is_open: bool
) -> None:
    row = with_set({"depth": 6, "strategy": "top", "tried": tried}, credible)
    assert row["credible_open"] is is_open


def test_a_ranking_is_compared_with_a_random_order() -> None:
    rows = [
        {"task": "sst2", "majority": 50.0, "metric": "accuracy"},
        {"task": "search", "majority": 32.5, "metric": "ndcg@10"},
        {"task": "stsb", "majority": None, "metric": "pearson"},
    ]
    (note,) = majorities(rows)
    assert note == "Majority-class score: sst2 50.00. Score of a random order: search 32.50."
