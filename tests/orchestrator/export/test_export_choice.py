"""Which network `export --best` takes: that of `table min-layers`, of its seeds the median."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.export.choice import VIEWS, TrialChoice, answers_in, best, stored_answers
from lp_sweep.orchestrator.service.export import ExportOptions, export_trial
from lp_sweep.storage.errors import LpSweepError, SpecError
from tests.support.fake_records import FakeSweep

BEST: dict[str, Any] = {"best": True, "task": "SST-2", "out": Path("out"), "offline": True}


@pytest.fixture
def fake(tmp_path: Path) -> FakeSweep:
    return FakeSweep(tmp_path)


def choose(fake: FakeSweep, within: float = 1, **asked: Any) -> TrialChoice:
    with open_views(fake.publish(), deltas=(within,), only=VIEWS) as catalog:
        return best(catalog, ExportOptions(**(BEST | {"within": within} | asked)))


def trial(fake: FakeSweep, **where: Any) -> str:
    (row,) = [row for row in fake.cells if all(row[name] == where[name] for name in where)]
    return str(row["trial_id"])


def test_the_fewest_layers_over_all_strategies(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 4: 89.5, 6: 80.0})
    fake.curve({0: 90.0, 6: 89.2}, strategy="symmetric")
    found = choose(fake)
    assert found.trial_id == trial(fake, strategy="symmetric", k=6)
    assert "6 of 12 layers are enough to lose at most 1 point (symmetric with " in found.why
    assert "over all strategies" in found.why
    assert "6 layers, −0.80, one seed" in found.why
    one = choose(fake, strategy="top")
    assert one.trial_id == trial(fake, strategy="top", k=4)


def test_it_may_be_a_distilled_network(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 4: 89.5, 6: 88.0})
    fake.curve({0: 90.0, 4: 89.8, 6: 89.4}, procedure="direct distill logits")
    found = choose(fake)
    assert found.trial_id == trial(fake, k=6, procedure="direct distill logits")
    assert "6 of 12 layers are enough to lose at most 1 point (top with 6 layers, " in found.why
    assert "top with 6 layers, direct distill logits, −0.60" in found.why


def test_all_layers_are_those_that_no_other_model_taught(fake: FakeSweep) -> None:
    fake.curve({0: 95.0, 4: 80.0}, procedure="direct distill logits of large")
    fake.curve({0: 90.0, 4: 80.0})
    found = choose(fake)
    assert found.trial_id == trial(fake, k=0, procedure="direct")
    assert "all layers" in found.why


def test_where_nothing_may_go_it_is_the_full_network(fake: FakeSweep) -> None:
    fake.curve({0: 50.0, 4: 49.2})
    assert choose(fake).trial_id == trial(fake, k=4)
    found = choose(fake, unit="percent")  # of the full score
    assert found.trial_id == trial(fake, k=0)
    assert "needs 9–12 of 12 layers to lose at most 1% (all layers, " in found.why


@pytest.mark.parametrize(
    ("scores", "median"),
    [({1: 89.0, 2: 89.6}, 1), ({1: 89.5, 2: 89.5, 3: 89.5}, 2)],
    ids=["the lower of two", "of equals by the seed"],
)
def test_it_is_the_seed_of_the_median_score(
    fake: FakeSweep, scores: dict[int, float], median: int
) -> None:
    for seed, score in scores.items():
        fake.curve({0: 90.0, 4: score}, seed=seed)
    found = choose(fake)
    assert found.trial_id == trial(fake, k=4, seed=median)
    assert f"Seed {median} is exported, which has the median score" in found.why
    assert f", {len(scores)} seeds" in found.why
    assert found.seeds == {seed: trial(fake, k=4, seed=seed) for seed in scores}


def test_a_seed_may_be_named(fake: FakeSweep) -> None:
    for seed in (1, 2, 3):
        fake.curve({0: 90.0, 4: 89.0 + seed / 10}, seed=seed)
    assert choose(fake, seed=3).trial_id == trial(fake, k=4, seed=3)
    with pytest.raises(SpecError, match="--seed 7: this network was trained with seeds 1, 2, 3"):
        choose(fake, seed=7)


def test_an_answer_that_depends_on_missing_cells_is_none(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 4: 89.5})
    fake.cell(k=6, state="failed")
    fake.curve({0: 90.0, 4: 89.0}, strategy="bottom")
    message = r"not known yet: trials of top are missing or failed.*--strategy: bottom"
    with pytest.raises(SpecError, match=message):
        choose(fake)
    assert choose(fake, strategy="bottom").trial_id == trial(fake, strategy="bottom", k=4)


def test_what_is_open_by_another_procedure_is_no_advice(fake: FakeSweep) -> None:
    """--strategy would not set the two apart."""
    fake.curve({0: 90.0, 2: 89.5})
    fake.cell(k=4, procedure="iterative", state="pending")
    for strategy in (None, "top"):
        with pytest.raises(
            SpecError, match=r"not known yet: trials of top .* does what is missing\.$"
        ):
            choose(fake, strategy=strategy)


def test_a_full_network_that_learned_nothing_is_told(fake: FakeSweep) -> None:
    for seed, full in ((1, 50.0), (2, 90.0)):
        fake.curve({0: full, 4: full - 0.5}, seed=seed)
        fake.curve({0: 90.0, 4: 89.5}, seed=seed, task="RTE")
    assert choose(fake).caution.startswith(
        "No better than the majority class with all layers: 1 of 2 seeds of SST-2. A model that"
    )
    assert choose(fake, task="RTE").caution == ""


def test_cells_of_two_recipes_are_a_caution(tmp_path: Path) -> None:
    fake = FakeSweep(tmp_path)
    for task, setups in (("RTE", "ab"), ("MRPC", "cc")):
        for k, setup in zip((0, 2), setups, strict=True):
            fake.cell(k=k, score=90.0, task=task, setup=setup)
    assert choose(fake, task="RTE").caution.startswith("Not comparable: cells of sweep demo")
    assert choose(fake, task="MRPC").caution == ""


def test_the_command_warns_of_it(fake: FakeSweep, capsys: pytest.CaptureFixture[str]) -> None:
    fake.curve({0: 50.0, 4: 49.5})
    fake.publish()
    folder = Path(fake.store.location) / "out"
    options = ExportOptions(**(BEST | {"out": folder, "store": fake.store.location}))
    with pytest.raises(LpSweepError):  # the records are of no model that there is
        export_trial(options)
    printed = capsys.readouterr()
    assert (
        "\nwarning: No better than the majority class with all layers: 1 of 1 seed" in printed.err
    )
    assert printed.out == ""


def test_without_a_full_network_there_is_no_loss(fake: FakeSweep) -> None:
    fake.cell(k=4, score=89.0)
    fake.cell(k=0, state="pending")
    with pytest.raises(SpecError, match="no network with all layers is done"):
        choose(fake)


def test_what_is_asked_for_is_there(fake: FakeSweep) -> None:
    fake.curve({0: 90.0, 4: 89.5})
    fake.curve({0: 90.0, 4: 89.5}, model="roberta")
    for asked, message in (
        ({"task": "SST"}, r"--task: unknown task 'SST'.*Did you mean 'SST-2'"),
        ({"strategy": "botom"}, "--strategy: unknown strategy 'botom'"),
        ({}, "2 models with task 'SST-2'. Choose one with --model: bert, roberta"),
    ):
        with pytest.raises(SpecError, match=message):
            choose(fake, **asked)


def test_it_says_how_much_of_the_score_is_luck(fake: FakeSweep) -> None:
    """Nine strategies that are right as often: the best of them owes a point to these rows."""
    rng = np.random.default_rng(3)
    for index, strategy in enumerate(["top", *(f"random {draw}" for draw in range(9))]):
        right = rng.random(400) < 0.9
        dropped = [index + 1, 12]
        score = 100 * float(right.mean())
        row = fake.cell(strategy=strategy, k=2, dropped=dropped, score=score, metric="accuracy")
        fake.predictions(row["trial_id"], right.tolist())
    full = fake.cell(k=0, score=90.0, metric="accuracy")
    store = fake.publish()

    def luck() -> str:
        with open_views(store, deltas=(3,), only=VIEWS) as catalog:
            return best(catalog, ExportOptions(**BEST, within=3), stored_answers(store)).luck

    assert "can't be estimated: no predictions" in luck()
    fake.predictions(full["trial_id"], [True] * 360 + [False] * 40)
    less = re.search(
        r"10 strategies \(11 networks\).*about (\S+) points less.*400 dev rows", luck()
    )
    assert less
    assert 0.5 < float(less[1]) < 4


def test_a_ranking_is_by_the_margin_of_the_positive_class() -> None:
    rows = [
        {"split": "validation", "example": i, "label": label, "prediction": 1.0, "tally": None}
        | {"scores": [0.0, margin]}
        for i, (label, margin) in enumerate([(0, 1.0), (1, 2.0), (0, 4.0), (1, 8.0)])
    ]
    for positive, score in ((None, 75.0), (1, 75.0), (0, 75.0)):
        found = answers_in({"positive_label": positive}, "roc_auc", rows)
        assert found.score == score
        sign = -1 if positive == 0 else 1
        assert found.predicted.tolist() == [sign * margin for margin in (1.0, 2.0, 4.0, 8.0)]
