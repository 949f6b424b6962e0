"""`until: min_layers` in a sweep: what is asked for, and that the answer comes anyway."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.analysis.tables import TABLES
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.cli.farewell import answer_command
from lp_sweep.orchestrator.engine.course import Recorder
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.export.choice import VIEWS, best
from lp_sweep.orchestrator.options import ExportOptions
from lp_sweep.orchestrator.plan.known import read_ledger
from lp_sweep.orchestrator.plan.plan import Plan, Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.plan.selection import retry_selection
from lp_sweep.orchestrator.watch.states import states_text, sweep_states
from lp_sweep.storage.store import Store
from tests.support.courses import presence_of, put_failure, taken
from tests.support.stores import trial
from tests.support.sweepfiles import CPU, PLAIN, answer_of, find, make_inputs, make_model

LOSSES = [0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.6, 2.4, 4, 15, 20, 25]
ANSWERS = {1.0: 5, 2.0: 6, 3.0: 7}
SMALL = "./folder/of/a/model"
MIN_LAYERS = TABLES["min-layers"]
TOP = "{name: top, k: all, until: min_layers}"
Score = Callable[[int, int], float | None]  # points of (K, seed); None: it fails


def true_score(k: int, seed: int) -> float:
    return 90 - LOSSES[k] + 0.1 * (seed % 3) + 0.02 * (k * seed % 3)


class World:
    """A sweep over 12 layers whose trials are looked up instead of trained."""

    def __init__(
        self,
        folder: Path,
        *strategies: str,
        seeds: str = "1-5",
        models: Sequence[str] = (SMALL,),
        more: str = "",
    ) -> None:
        lines = "".join(f"  - {strategy}\n" for strategy in strategies or (TOP,))
        text = PLAIN.partition("strategies:")[0].replace("[42, 43]", seeds)
        text = text.replace(f"  - {SMALL}\n", "".join(f"  - {model}\n" for model in models))
        self.file = make_inputs(folder, f"{text}strategies:\n{lines}{more}")
        self.sweep = find(self.file, ["task=rte"])
        self.store = Store(folder / "store", create=True)
        self.trained: list[tuple[int, int]] = []

    def plan(self) -> Plan:
        return make_plan(self.sweep, read_ledger(self.store).known)

    def queue(self, **settings: Any) -> WorkQueue:
        recorder = Recorder(self.store, part=False, command="")
        plan = self.plan()
        recorder.cells(plan)
        return WorkQueue(plan, self.store, CPU, recorder.cells, **settings)

    def run(self, score: Score = true_score, most: int = 1000, **settings: Any) -> WorkQueue:
        """A run, broken off after so many pieces."""
        queue = self.queue(**settings)
        for _, work in zip(range(most), iter(queue.take, None), strict=False):
            self.do(queue, work, score)
        if not queue.open:  # as the driver ends
            Recorder(self.store, part=False, command="").cells(
                make_plan(queue.plan.sweep, queue.known())
            )
        return queue

    def do(self, queue: WorkQueue, work: Work, score: Score = true_score) -> None:
        k, seed = place(work)
        points = score(k, seed)
        if points is None:
            put_failure(self.store, work.id)
            queue.ended(work.id, "bug")
            return
        self.record(work, points)
        queue.ended(work.id, None)

    def record(self, work: Work, points: float) -> None:
        self.trained.append(place(work))
        row = trial(work.id, points / 100) | {"metric": "accuracy"}
        row["kept_layers"] = list(work.spec.kept_layers)  # type: ignore[union-attr]
        self.store.put("trials", work.id, [row])

    def answers(self) -> dict[float, int | None]:
        with open_views(self.store, only=MIN_LAYERS.views) as catalog:
            rows = MIN_LAYERS(catalog).long.to_pylist()
        return {row["delta"]: row["max_dropped"] for row in rows if row["strategy"] == "top"}

    def shown(self, name: str = "min-layers") -> list[str]:
        with open_views(self.store, only=TABLES[name].views) as catalog:
            made = TABLES[name](catalog)
        return [" | ".join(row) for row in made.rows] + list(made.notes)


def place(work: Work) -> tuple[int, int]:
    return 12 - len(work.spec.kept_layers), work.spec.seed  # type: ignore[union-attr]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A search that was run to its end, to be looked at."""
    made = World(tmp_path_factory.mktemp("finished"))
    assert not made.run().open
    return made


def asked(plan: Plan) -> set[tuple[int | None, int]]:
    return {(cell.asked.k, cell.asked.seed) for cell in plan.cells if cell.search == "asked"}


# -- what is asked for


def test_the_first_plan_asks_for_a_few_k_of_one_seed_and_status_counts_them(world: World) -> None:
    plan = world.plan()
    assert asked(plan) == {(0, 1), (3, 1), (6, 1), (9, 1)}
    totals = plan.totals()
    assert (totals["cells"], totals["trials"], totals["cells_deferred"]) == (60, 4, 56)
    page = answer_of(plan).text()
    assert "  search            56   more trainings at most for `until: min_layers`" in page
    assert "  waiting " not in page

    world.run(most=2)
    [state] = sweep_states(world.store).sweeps
    assert (state["cells"], state["trials"], state["trials_done"]) == (60, 4, 2)
    assert (state["cells_deferred"], state["cells_pending"]) == (56, 2)
    world.run()
    [state] = sweep_states(world.store).sweeps
    assert state["trials"] == state["trials_done"] == len(world.trained)
    assert state["cells_not_needed"] == 60 - len(world.trained)


def test_the_estimate_of_a_search_is_the_most_until_it_has_ended(
    world: World, finished: World
) -> None:
    plan = world.plan()
    told = answer_of(plan).to_dict()["estimate"]
    assert (told["at_most"], told["low_hours"], told["high_hours"]) == (True, None, None)
    page = answer_of(plan).text()
    assert "a search rarely needs all of it" in page
    assert "estimate     at most " in page
    after = World(finished.file.parent, TOP, "{name: bottom, k: [1]}").plan()
    assert not answer_of(after).to_dict()["estimate"]["at_most"]
    assert "estimate     about " in answer_of(after).text()


def test_it_ends_when_the_answer_is_known_and_run_again_does_nothing(finished: World) -> None:
    assert len(set(finished.trained)) == len(finished.trained) < 14
    assert finished.answers() == ANSWERS
    assert {cell.state for cell in finished.plan().cells} == {"done", "not_needed"}
    listed = finished.store.find("sweeps", "plain")
    queue = finished.queue()
    assert not queue.open
    assert queue.plan.missing_trials() == []
    assert finished.store.find("sweeps", "plain") == listed


def test_a_run_that_is_broken_off_again_and_again_comes_to_the_answer(world: World) -> None:
    for _ in range(60):
        if not world.run(most=1).open:
            break
    assert world.answers() == ANSWERS
    assert len(set(world.trained)) == len(world.trained) < 14


def test_a_seed_that_another_sweep_left_without_its_full_network_is_not_missing(
    world: World,
) -> None:
    for work in World(world.file.parent, "{name: top, k: all}").plan().trials.values():
        if place(work) in ((6, 5), (7, 5)):
            world.record(work, true_score(*place(work)))
    world.run()
    assert len(set(world.trained)) == len(world.trained), "its records are used"
    assert (0, 5) not in world.trained
    assert world.answers() == ANSWERS


def test_settings_of_the_search(tmp_path: Path) -> None:
    world = World(
        tmp_path, "{name: top, k: [3, 5, 7], until: min_layers, within: 2.5, max_seeds: 2}"
    )
    cells = {(cell.asked.k, cell.asked.seed) for cell in world.plan().cells}
    assert cells == {(k, seed) for k in (0, 3, 5, 7) for seed in (1, 2)}  # K=0 is added
    world.run()
    assert (7, 1) in world.trained
    with open_views(world.store, deltas=[2.5], only=MIN_LAYERS.views) as catalog:
        assert MIN_LAYERS(catalog).long["max_dropped"].to_pylist() == [7]


def test_an_included_cell_is_run_with_its_full_network_whatever_the_search_needs(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, more="include: [{strategy: top, k: 11, seed: 3}]\n")
    assert {(11, 3), (0, 3)} <= asked(world.plan())
    assert not world.run().open
    assert {(11, 3), (0, 3)} <= set(world.trained)
    assert world.answers() == ANSWERS


def test_a_plain_strategy_beside_it_is_run_whole(tmp_path: Path) -> None:
    world = World(tmp_path, TOP, "{name: bottom, k: [0, 1]}")
    world.run()
    assert {(0, seed) for seed in range(1, 6)} <= set(world.trained)
    assert world.answers() == ANSWERS
    cells = [cell for cell in world.plan().cells if cell.asked.strategy == "bottom"]
    assert {(cell.state, cell.search) for cell in cells} == {("done", None)}


def test_a_search_waits_for_the_measurement_that_chooses_its_layers(tmp_path: Path) -> None:
    world = World(tmp_path, TOP.replace("top", "block-influence"))
    queue = world.queue()
    profile, whole = taken(queue), taken(queue)
    assert (profile.id in queue.plan.profiles, place(whole)) == (True, (0, 1))
    assert queue.take() is None
    world.do(queue, whole)
    layers = [{"layer": layer, "value": 1 - layer / 100} for layer in range(1, 13)]
    world.store.put("profiles", profile.id, [{"profile_id": profile.id, "layers": layers}])
    queue.ended(profile.id, None)
    assert asked(queue.plan) == {(0, 1), (3, 1), (6, 1), (9, 1)}
    for work in iter(queue.take, None):
        world.do(queue, work)
    assert not queue.open
    assert (7, 1) in world.trained


# -- with a teacher


class Taught(World):
    """Students lose what networks of two more layers lose, but a full one learns badly."""

    def do(self, queue: WorkQueue, work: Work, score: Score = true_score) -> None:
        k, seed = place(work)
        points = score(max(k - 2, 0), seed) if work.lesson else score(k, seed)
        assert points is not None
        self.record(work, points - (20 if work.lesson and not k else 0))
        queue.ended(work.id, None)

    def answers_of(self, procedure: str) -> list[int | None]:
        with open_views(self.store, only=MIN_LAYERS.views) as catalog:
            rows = MIN_LAYERS(catalog, models=[SMALL]).long.to_pylist()
        return [row["max_dropped"] for row in rows if row["procedure"] == procedure]


@pytest.mark.slow
def test_students_have_searches_of_their_own_and_lose_from_the_plain_full_model(
    tmp_path: Path,
) -> None:
    """Those of the same model share its full network; those of a larger one have full students."""
    make_model(tmp_path / "large", depth=3, weight=1.0)
    more = "distill: [none, logits, {from: ./large}]\n"
    world = Taught(tmp_path, models=(SMALL, "./large"), more=more)
    assert not world.run().open
    assert world.answers_of("direct") == [5, 6, 7]
    assert world.answers_of("direct distill logits") == [7, 8, 9]
    assert world.answers_of("direct distill logits of ./large") == [7, 8, 9]


# -- what fails, and other runs


def failing(*pairs: tuple[int, int]) -> Score:
    return lambda k, seed: None if (k, seed) in pairs else true_score(k, seed)


def test_a_failed_trial_is_not_asked_again_and_the_run_ends(world: World) -> None:
    queue = world.run(failing((8, 1), (0, 1)))
    assert not queue.open
    assert len(queue.failed) == 1
    assert len(world.trained) < 25
    plan = world.plan()
    assert (plan.totals()["cells_failed"], plan.totals()["cells_pending"]) == (1, 0)
    assert not world.queue().open  # a bug is not tried again by itself


def test_a_k_that_fails_where_it_could_be_the_answer_makes_an_interval(world: World) -> None:
    queue = world.run(failing(*((8, seed) for seed in range(1, 6))))
    assert not queue.open
    assert world.answers() == dict.fromkeys(ANSWERS)
    assert "4–5 of 12, 90%" in world.shown()[2]


def test_a_failure_that_is_retried_goes_into_the_answer(world: World) -> None:
    world.run(failing((6, 1)))
    world.run(selection=retry_selection("bug", [], world.plan()))
    assert (6, 1) in world.trained
    world.run()
    assert world.answers() == ANSWERS


def on_slots(world: World, slots: int, draw: random.Random) -> WorkQueue:
    """A run on so many slots, whose trials end in any order."""
    queue = world.queue()
    while True:
        while len(queue.live) < slots and queue.take(slots - len(queue.live)):
            pass
        if not queue.live:
            return queue
        world.do(queue, queue.live[draw.choice([*queue.live])])


def test_an_idle_slot_takes_the_full_model_of_the_next_seed(world: World) -> None:
    queue = world.queue()
    begun = [place(work) for work in iter(queue.take, None)]
    assert {(0, 1), (0, 2)} < {*begun}
    assert sum(seed == 2 for _, seed in begun) == 1, "one at a time"
    alone = world.queue()
    for _ in range(30):  # a single slot is never idle while the search goes on
        if work := alone.take():
            world.do(alone, work)
            assert place(work) == (0, 1) or (0, place(work)[1]) in world.trained


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_a_search_on_many_slots_comes_to_the_same_answer(tmp_path: Path, slots: int) -> None:
    for seed in range(4):
        world = World(tmp_path / str(seed))
        queue = on_slots(world, slots, random.Random(seed))
        assert not queue.open
        assert len(set(world.trained)) == len(world.trained)
        assert world.answers() == ANSWERS
        assert world.plan().missing_trials() == []


def test_two_runs_share_a_search(world: World) -> None:
    first, second = presence_of(world.store), presence_of(world.store)
    with first.announced() as one, second.announced() as other:
        runs = [(world.queue(), one), (world.queue(), other)]
        for queue, claims in runs:
            queue.claims = claims
        for _ in range(100):
            for queue, claims in runs:
                if work := queue.take():
                    world.do(queue, work)
                claims._write()  # as its beat does
                queue.look_elsewhere()
            if not any(queue.open for queue, _ in runs):
                break
        assert not any(queue.open for queue, _ in runs)
    assert len(set(world.trained)) == len(world.trained) < 30
    world.run()
    assert world.answers() == ANSWERS
    assert world.plan().missing_trials() == []


def test_a_listing_that_is_late_changes_no_search(
    finished: World, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network mount may list a worker's record a minute later."""
    files = world.store.files
    listed = files.list
    monkeypatch.setattr(files, "list", lambda name: [] if name == "trials" else listed(name))
    assert not world.run().open
    assert world.trained == finished.trained


# -- what tables and status say


def test_tables_show_the_answer_with_its_set_and_what_was_not_needed(finished: World) -> None:
    first, second, third, *notes = finished.shown()
    for line, kept in ((first, 7), (second, 6), (third, 5)):
        assert f"| {kept} of 12 (" in line
        assert ", 90% " in line
    assert any("90% 5 to 7: the answers" in note for note in notes)
    assert finished.shown("min-layers-interval")[0].endswith("| –")
    scores = finished.shown("tasks")
    assert any("| 1 of 12 |" in line and line.endswith("| – [a]") for line in scores)
    assert not any("missing" in line for line in scores)
    assert any("| – [a] | " in line for line in finished.shown("strategies"))

    # K=9 loses 15 points, so K=10 and 11 were left out: that is named as an assumption
    assert {k for k, _ in finished.trained}.isdisjoint({10, 11})
    for name in ("min-layers", "min-layers-interval"):
        [note] = [line for line in finished.shown(name) if "Assumes that" in line]
        assert "1 or 2 layers" in note
        assert "at most 7 points less" in note
    plan = finished.plan()
    pages = (answer_of(plan).text(), states_text(sweep_states(finished.store)))
    assert all("of the trainings" in page and "table min-layers" in page for page in pages)
    with open_views(finished.store, deltas=(1,), only=VIEWS) as catalog:
        options = ExportOptions(out=Path("out"), best=True, task="rte", within=1)
        caution = best(catalog, options).caution
    assert "1 or 2 layers, which the search never trained" in caution


def test_a_loss_that_was_not_searched_for_has_an_interval(finished: World) -> None:
    """K=10 loses 20 points and K=9 loses 15, both after the last K that the search needed."""
    with open_views(finished.store, deltas=[0.25, 2, 20]) as catalog:
        rows = MIN_LAYERS(catalog).long.to_pylist()
        shown = [row[-1] for row in MIN_LAYERS(catalog).rows]
        notes = MIN_LAYERS(catalog).notes
        beside = [" ".join(row) for row in TABLES["min-layers-interval"](catalog).rows]
    below, searched, beyond = rows
    assert searched["max_dropped"] == 6
    assert below["max_dropped"] is beyond["max_dropped"] is None
    assert (below["max_dropped_low"], below["max_dropped_high"]) == (0, 2)
    assert beyond["max_dropped_low"] <= 10 <= beyond["max_dropped_high"] == 11
    assert 10 in beyond["credible"]
    assert [row["n_not_searched"] > 0 for row in rows] == [True, False, True]
    [open_note] = [note for note in notes if "had other losses" in note]
    assert [open_note[:3] in text for text in shown] == [True, False, True]
    with open_views(finished.store, deltas=[0.25, 2, 20]) as catalog:
        [mark] = [
            note[:3]
            for note in TABLES["min-layers-interval"](catalog).notes
            if "had other losses" in note
        ]
    assert [mark in text for text in beside] == [True, False, True]


def test_the_end_of_a_run_names_the_losses_that_were_searched_for(tmp_path: Path) -> None:
    worlds = {
        within: World(tmp_path, TOP.replace("}", within + "}"), TOP.replace("top", "bottom"))
        for within in ("", ", within: [0.25, 2]", ", within: 3")
    }
    said = [answer_command(world.sweep.spec.strategies, "S") for world in worlds.values()]
    plain = "lp-sweep table min-layers --store S"
    assert said == [plain, plain.replace("--store", "--within 0.25,1,2,3 --store"), plain]
