"""`recipe: auto`: found once for each model and task, stored, and part of every identifier."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lp_sweep import Sweep
from lp_sweep.orchestrator.estimate import estimate
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.listing import relisted
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.store import Store
from lp_sweep.trials.measures import findrecipe
from lp_sweep.trials.spec import autorecipe
from lp_sweep.trials.spec.autorecipe import FoundRecipe, enough_epochs, try_size
from tests.support.kindworlds import embedding_world
from tests.support.sweepfiles import CPU, PLAIN, answer_of, make_inputs, planned
from tests.support.toyworld import save_world

AUTO = PLAIN + "recipe: auto\n"
FOUND = FoundRecipe(5e-5, 13)


def found(plan: Plan) -> WorkHistory:
    """The history of a store that has the plan's measurements."""
    return WorkHistory.nothing()._replace(recipes=dict.fromkeys(plan.finders.values(), FOUND))


def ids(plan: Plan) -> list[str | None]:
    return [cell.trial_id for cell in plan.cells]


# -- the plan


def test_cells_wait_for_their_recipe_and_then_are_as_if_it_was_written(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, AUTO)
    first = planned(file)
    assert {cell.state for cell in first.cells} == {"deferred"}
    assert not first.trials
    assert [work.spec.measure for work in first.profiles.values()] == ["recipe"] * 2  # each task
    told = answer_of(first).text()
    assert "first              2   measurements find learning rates" in told
    then = planned(file, known=found(first))
    same = {cell.state for cell in then.cells}
    assert same == {"pending"}
    assert "auto found learning_rate 5e-05, epochs 13" in answer_of(then).text()
    by_hand = make_inputs(tmp_path / "by hand", PLAIN + "recipe: {lr: 5e-5, epochs: 13}\n")
    assert ids(then) == ids(planned(by_hand))
    # minutes: three tries, and the trials that follow with the epochs that they will have
    assert estimate(first, CPU).hours > estimate(planned(file, "recipe.epochs=1"), CPU).hours


def test_the_measurement_depends_on_nothing_that_it_finds(tmp_path: Path) -> None:
    """And each other key of the recipe, and the data, count."""
    file = make_inputs(tmp_path, AUTO)
    one = planned(file, "task=rte").finders
    assert one == planned(file, "task=rte", "seed=7", "recipe.epochs=5").finders
    assert one == planned(file, "task=rte", "recipe.limit_dev=2").finders
    for key in ("batch_size=16", "max_length=64", "limit_train=2", "warmup_ratio=0.1"):
        assert one != planned(file, "task=rte", f"recipe.{key}").finders, key


def test_a_layer_choice_that_trains_waits_for_the_recipe(tmp_path: Path) -> None:
    text = AUTO.replace("{name: top, k: [0, 2]}", "{name: greedy, k: [2]}")
    file = make_inputs(tmp_path, text)
    first = planned(file, "task=rte")
    assert [work.spec.measure for work in first.profiles.values()] == ["recipe"]
    then = planned(file, "task=rte", known=found(first))
    (greedy,) = (w.spec for w in then.profiles.values() if w.spec.measure == "greedy")
    assert (greedy.recipe.learning_rate, greedy.recipe.epochs) == FOUND


def test_embeddings_keep_the_usual_recipe(tmp_path: Path) -> None:
    file = embedding_world(tmp_path, recipe={"learning_rate": "auto", "max_length": 32})
    plan = make_plan(resolve(load_sweep(file)), WorkHistory.nothing())
    assert not plan.finders
    assert {work.trial.recipe.learning_rate for work in plan.trials.values()} == {2e-5}
    assert any("auto finds nothing for " in note for note in plan.sweep.notes)


def test_no_finished_trial_is_hidden_by_cells_that_wait(tmp_path: Path) -> None:
    """Those of a recipe by hand move to `earlier`; those that waited had nothing to keep."""
    file = make_inputs(tmp_path, AUTO)
    hand = relisted(planned(file, "recipe.lr=1e-5", "recipe.epochs=3"), [], part=False).cells
    first = planned(file)
    waiting = relisted(first, hand, part=False)
    assert len(waiting.replaced) == len(hand)
    then = relisted(planned(file, known=found(first)), waiting.cells, part=False)
    assert not then.replaced
    assert {row["trial_id"] for row in then.cells}.isdisjoint(row["trial_id"] for row in hand)


# -- the sweep file


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("auto", ["recipe.batch_size=8"], ("auto", "auto", 8)),
        ("{batch_size: 8, lr: 1e-5}", ["recipe=auto"], ("auto", "auto", 8)),
        ("{learning_rate: auto, epochs: 2}", [], ("auto", 2, 32)),
        ("auto", ["recipe.learning_rate=1e-5", "recipe.epochs=2"], (1e-5, 2, 32)),
    ],
)
def test_auto_beside_other_keys(
    tmp_path: Path, text: str, overrides: list[str], expected: tuple[Any, ...]
) -> None:
    file = make_inputs(tmp_path, PLAIN + f"recipe: {text}\n")
    recipe = load_sweep(file, overrides).spec.recipe
    assert (recipe.learning_rate, recipe.epochs, recipe.batch_size) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{epochs: auto}", r":9: epochs: auto comes with learning_rate: auto"),
        ("{learning_rate: atuo}", r":9: recipe.learning_rate must be `auto` or a number"),
        ("atuo", r":9: recipe must be `auto` or a mapping of .*got 'atuo'"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        load_sweep(make_inputs(tmp_path, PLAIN + f"recipe: {text}\n"))


def test_all_is_counted_in_steps() -> None:
    epochs = {rows: enough_epochs(rows, 32) for rows in (0, 100, 2490, 5749, 67349)}
    assert epochs == {0: 20, 100: 20, 2490: 13, 5749: 6, 67349: 3}
    for rows in (1, 100, 2241, 9600, 9601, 67349):
        size = try_size(rows, 32)
        assert 1 <= size.epochs <= 20
        assert size.rows <= rows
        assert -(-size.rows // 32) * size.epochs <= 300


# -- a whole run


def test_a_task_is_learned_with_the_found_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C amid the tries the same command goes on; another store has the same recipe."""
    monkeypatch.setenv("LP_SWEEP_EVEN_IF_NOT_LEARNED", "0")
    monkeypatch.setattr(findrecipe, "RATES", (1e-6, 2e-3, 1e-7))
    monkeypatch.setattr(autorecipe, "_TRY_STEPS", 45)
    monkeypatch.setattr(autorecipe, "ENOUGH_STEPS", 64)
    real, tries = findrecipe.finetune, list[float]()

    def finetune(model: Any, data: Any, setting: Any, saver: Any) -> Any:
        tries.append(setting.recipe.learning_rate)
        if len(tries) == 2:
            raise KeyboardInterrupt
        return real(model, data, setting, saver)

    monkeypatch.setattr(findrecipe, "finetune", finetune)
    recipe = {"batch_size": 16, "max_length": 32}
    auto = {"learning_rate": "auto", "epochs": "auto"} | recipe
    file = save_world(tmp_path, recipe=auto, strategies=[{"name": "top", "k": [0]}])
    sweep = Sweep.from_yaml(file, store=tmp_path / "one")
    stopped = sweep.run(inline=True)
    assert (stopped.stopped_by, stopped.exit_code, stopped.done) == ("SIGINT", 130, 0)
    done = sweep.run(inline=True)
    assert (done.exit_code, done.done) == (0, 2)
    assert tries == [1e-6, 2e-3, 1e-6, 2e-3, 1e-7]
    assert sweep.run(inline=True).done == 0
    other = Sweep.from_yaml(file, store=tmp_path / "two")
    assert other.run(inline=True).exit_code == 0
    values = [_values(tmp_path / name) for name in ("one", "two")]
    assert values[0] == values[1]
    said = {name: value for name, _, value in next(iter(values[0].values()))}
    assert (said["learning_rate"], said["epochs"]) == (2e-3, 4)
    assert said["score at 0.002"] > said["score at 1e-06"]
    by_hand = ["recipe.learning_rate=2e-3", "recipe.epochs=4"]
    assert Sweep.from_yaml(file, *by_hand, store=tmp_path / "one").plan().totals["trials_done"] == 1


def _values(store: Path) -> dict[str, Counter[Any]]:
    rows = Store(store).read_all("profiles").rows.to_pylist()
    return {
        row["profile_id"]: Counter((v["name"], v["other"], v["value"]) for v in row["values"])
        for row in rows
    }
