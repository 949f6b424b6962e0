"""The plan: which cells are one network, what waits, what is done. And that it is a function."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lp_sweep.orchestrator import service
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.engine.workqueue import WorkQueue
from lp_sweep.orchestrator.estimate import MeanLengths, deferred_work, estimate, missing_flop
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory, read_ledger, timing_columns
from lp_sweep.orchestrator.plan.listing import unkept_note
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.service.run import prepare
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.networks import CONFIG, WEIGHTS
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.feedforward import NONE
from lp_sweep.trials.spec.select import STRATEGIES, LayerScores, held_out_rows
from lp_sweep.trials.spec.specs import ProfileSpec, TrialSpec
from tests.support.courses import presence_of, put_failure, taken
from tests.support.program import sweep
from tests.support.stores import trial
from tests.support.sweepfiles import (
    CPU,
    PLAIN,
    answer_of,
    make_data,
    make_inputs,
    make_model,
    planned,
)
from tests.support.toyworld import save_world

RULES = {name: s for name, s in STRATEGIES.items() if s.by_position and not s.family}

CONTRIBUTION = PLAIN.replace("{name: top, k: [0, 2]}", "{name: contribution, threshold: [0.9]}")
SECTION = "contribution: {measured_on: mrpc}\n"
BOTH = ("direct", "iterative")
UNBASED = "exclude: [{procedure: [iterative], k: [0]}]\n"


def cosines(depth: int = 12, above: tuple[int, ...] = (), value: float = 0.95) -> dict[int, float]:
    return {layer: value if layer in above else 0.5 for layer in range(1, depth + 1)}


def with_profiles(plan: Plan, values: dict[int, float]) -> WorkHistory:
    return WorkHistory(frozenset(), {}, dict.fromkeys(plan.profiles, LayerScores(values)))


def ids(plan: Plan) -> list[str | None]:
    return [cell.trial_id for cell in plan.cells]


# -- a fix that changes scores gives the trials that it affects, and no others, a new identifier


@pytest.mark.parametrize("compute", ["fast", "reference"])
def test_corrections_are_of_the_trials_that_a_fix_changes(tmp_path: Path, compute: str) -> None:
    file, corrections = make_inputs(tmp_path), {}
    config = file.parent / "folder/of/a/model/config.json"
    for family in ("bert", "mpnet"):
        config.write_text(config.read_text().replace("bert", family))
        plan = planned(file, f"recipe.compute={compute}", "recipe.learning_rate=auto")
        [finder] = {work.spec.corrections for work in plan.profiles.values()}
        plan = planned(file, f"recipe.compute={compute}")
        assert {work.trial.corrections for work in plan.trials.values()} == {finder}
        corrections[family] = finder
    changed = ("unpadded",) if compute == "fast" else ()
    assert corrections == {"bert": (), "mpnet": changed}


# -- cells that are one network


def test_cells_that_are_one_network_are_one_trial(tmp_path: Path) -> None:
    strategies = "".join(f"  - {{name: {name}, k: [0, 2]}}\n" for name in RULES)
    text = PLAIN.replace("  - {name: top, k: [0, 2]}\n", strategies)
    plan = planned(make_inputs(tmp_path, text), "task=rte", "seed=42")
    full = {cell.trial_id for cell in plan.cells if cell.asked.k == 0}
    assert len(full) == 1
    assert len(plan.cells) == 10
    assert len(plan.trials) == 1 + 5
    assert plan.totals()["cells_sharing_a_trial"] == 5

    text = PLAIN.replace("[0, 2]}", "[0, 1]}\n  - {name: even-alternate, k: [1]}")
    plan = planned(make_inputs(tmp_path, text, depth=6), "task=rte", "seed=42")
    assert [cell.kept for cell in plan.cells[1:]] == [(1, 2, 3, 4, 5)] * 2
    assert len(plan.trials) == 2
    assert "layers 1-5: top = even-alternate" in answer_of(plan).text()

    # one model under two names
    file = make_inputs(tmp_path, PLAIN.replace("models:\n", "models:\n  - ./copy\n"))
    make_model(tmp_path / "copy")
    plan = planned(file)
    assert len(plan.cells) == 16
    assert len(plan.trials) == 8


# -- profiles


def test_deferred_cells_become_trials_when_the_profile_is_known(tmp_path: Path) -> None:
    text = CONTRIBUTION.replace("[0.9]", "[0.94, 0.9, 0.99]")
    file = make_inputs(tmp_path, text)
    before = planned(file, "task=rte", "seed=42")
    assert [cell.state for cell in before.cells] == ["deferred"] * 3 + ["pending"]
    assert len(before.trials) == 1
    rows = [cell.row() for cell in before.cells[:3]]
    assert [(row["k"], row["kept_layers"]) for row in rows] == [(None, None)] * 3
    known = with_profiles(before, cosines(above=(3, 7)))
    after = planned(file, "task=rte", "seed=42", known=known)
    assert [cell.dropped for cell in after.cells] == [(3, 7), (3, 7), (), ()]
    assert [cell.row()["k"] for cell in after.cells] == [2, 2, 0, 0]
    assert len(after.trials) == 2  # 0.94 and 0.9 pick one network
    assert after.profiles.keys() <= after.known.profiles.keys()
    assert {cell.profile_id for cell in after.cells[:3]} == set(before.profiles)
    every = with_profiles(before, cosines(above=tuple(range(1, 13)), value=0.999))
    nothing = planned(file, "task=rte", "seed=42", known=every)
    assert nothing.totals()["cells_impossible"] == 3
    assert "no layer would stay" in answer_of(nothing).text()


def test_deferred_cells_that_are_only_scored_take_no_training(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, CONTRIBUTION + "procedures: [direct, one_shot]\n")
    flop = {
        work.spec.procedure: missing_flop(work, MeanLengths(timing_columns([])))
        for work, _ in deferred_work(planned(file, "task=rte", "seed=42"))
        if isinstance(work.spec, TrialSpec)
    }
    assert flop["one_shot"] < flop["direct"] / 5


def test_each_task_has_the_layers_of_its_own_profile(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, CONTRIBUTION)
    profiles = planned(file).profiles.items()
    above = {"rte": (3, 7), "mrpc": (5,)}
    known = {id_: LayerScores(cosines(above=above[work.task.name])) for id_, work in profiles}
    plan = planned(file, known=WorkHistory(frozenset(), {}, known))
    assert {(cell.asked.task, cell.dropped) for cell in plan.cells if cell.dropped} == {
        *above.items()
    }


@pytest.mark.parametrize(
    ("text", "profiles"),
    [
        (CONTRIBUTION, ["rte", "mrpc"]),
        (CONTRIBUTION.replace("[0.9]", "[0.9], measured_on: own") + SECTION, ["rte", "mrpc"]),
        (CONTRIBUTION + SECTION, ["mrpc"]),
        (PLAIN + "include: [{strategy: contribution, threshold: 0.9}]\n" + SECTION, ["mrpc"]),
    ],
    ids=["own", "own-first", "section", "included"],
)
def test_measured_on(tmp_path: Path, text: str, profiles: list[str]) -> None:
    plan = planned(make_inputs(tmp_path, text))
    # RTE and MRPC have other definitions here, though the same rows
    assert [work.task.name for work in plan.profiles.values()] == profiles


def test_seeds_that_include_adds_are_told(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, PLAIN + "include: [{strategy: top, k: 1, seed: [44, 43]}]\n")
    assert "seeds 42, 43; 44 for those of `include:`" in answer_of(planned(file)).text()


def test_a_profile_does_not_depend_on_what_only_training_uses(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, CONTRIBUTION)
    profiles = planned(file).profiles.keys()
    training = ("recipe.lr=1e-3", "recipe.limit_train=2", "seed=1")
    assert planned(file, *training).profiles.keys() == profiles
    assert planned(file, "recipe.max_length=64").profiles.keys() != profiles


# -- what a store says


def test_states_from_a_store(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, PLAIN + "  - {name: contribution, threshold: [0.9]}\n")
    blank = planned(file, "seed=42")
    store = Store(tmp_path / "store", create=True)
    done, failed, both, damaged = blank.trials
    for id_ in (done, both):
        store.put("predictions", id_, [])
        store.put("trials", id_, [trial(id_)])
    for id_ in (failed, both):
        put_failure(store, id_)
    profile, torn = blank.profiles  # of rte and mrpc
    for path in (f"profiles/{torn}", f"trials/{damaged}", "trials/notes"):
        Path(store.location, f"{path}.parquet").write_bytes(b"PAR1 not a whole record")
    layers = [{"layer": n, "value": value} for n, value in cosines(above=(1,)).items()]
    store.put("profiles", profile, [{"profile_id": profile, "layers": layers}])
    plan = planned(file, "seed=42", known=read_ledger(store).known)
    states = {cell.trial_id: cell.state for cell in plan.cells if cell.asked.threshold is None}
    assert [states[id_] for id_ in blank.trials] == ["done", "failed", "done", "pending"]
    contribution = {c.asked.task: c for c in plan.cells if c.asked.threshold is not None}
    assert contribution["rte"].dropped == (1,)
    assert contribution["rte"].state == "pending"
    assert contribution["mrpc"].state == "deferred"
    totals = plan.totals()
    assert [totals[f"trials_{end}"] for end in ("done", "failed", "pending")] == [2, 1, 2]
    assert [totals[f"profiles_{end}"] for end in ("done", "failed", "pending")] == [1, 0, 1]
    assert {work.id for work in plan.missing_trials()} == set(plan.trials) - {done, both}


def test_a_profile_that_failed_is_told_as_failed(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, CONTRIBUTION)
    failed = {next(iter(planned(file).profiles)): "numeric_divergence"}
    plan = planned(file, known=WorkHistory(frozenset(), failed, {}))
    profiles = answer_of(plan).to_dict()["profiles"]
    assert [profile["state"] for profile in profiles] == ["failed", "pending"]
    text = answer_of(plan).text()
    assert "1 failed, 1 missing of pre-trained networks" in text


# -- identity by content


def test_neither_the_place_nor_what_is_no_input_matters(tmp_path: Path) -> None:
    text = PLAIN + "  - {name: contribution, threshold: [0.9]}\n"
    one = planned(make_inputs(tmp_path / "one", text))
    other = planned(make_inputs(tmp_path / "two 2", text))
    assert ids(one) == ids(other)
    assert one.profiles.keys() == other.profiles.keys()

    file = make_inputs(tmp_path)
    before = planned(file)
    (tmp_path / "folder/of/a/model/README.md").write_text("about it")
    text = PLAIN.replace("plain", "renamed") + "resources_per_trial: {cpu: 4}\nstore: ./elsewhere\n"
    assert ids(planned(make_inputs(tmp_path, text))) == ids(before)


@pytest.mark.parametrize("what", ["weights", "config", "vocabulary", "data"])
def test_other_content_is_another_plan(tmp_path: Path, what: str) -> None:
    file = make_inputs(tmp_path)
    before = planned(file)
    model = tmp_path / "folder/of/a/model"
    if what == "weights":
        make_model(model, weight=1.0)
    elif what == "config":
        (model / "config.json").write_text('{"num_hidden_layers": 12, "hidden_act": "relu"}')
    elif what == "vocabulary":
        (model / "vocab.txt").write_text("a\n")
    else:
        make_data(tmp_path / "glue", rows=6)
    after = planned(file)
    assert set(ids(before)).isdisjoint(ids(after))


# -- models with K of their own, and notes


def test_a_models_own_k(tmp_path: Path) -> None:
    text = PLAIN.replace(
        "  - ./folder/of/a/model", "  - {id: ./small, k: [0, 1, 3]}\n  - ./folder/of/a/model"
    ).replace("[0, 2]}", "[0, 8]}\n  - {name: symmetric, k: [0, 8]}")
    make_model(tmp_path / "small", depth=4)
    plan = planned(make_inputs(tmp_path, text), "task=rte", "seed=42")
    own = [*[("./small", "top", k) for k in (0, 1, 3)], ("./small", "symmetric", 0)]
    usual = [("./folder/of/a/model", name, k) for name in ("top", "symmetric") for k in (0, 8)]
    assert [(c.asked.model, c.asked.strategy, c.asked.k) for c in plan.cells] == own + usual
    assert plan.sweep.notes == [
        "./small: symmetric has no network at K=1 (left out)",
        "./small: symmetric has no network at K=3 (left out)",
    ]


SEARCHED = PLAIN.replace("[0, 2]}", "[2], until: min_layers}")


@pytest.mark.parametrize(
    ("text", "overrides", "full"),
    [
        (PLAIN, [], {"direct": "top"}),
        (PLAIN.replace("top", "bottom"), ["k=2"], {"direct": "bottom"}),
        (PLAIN, ["strategy={name: contribution, threshold: 0.9}"], {"direct": "top"}),
        (PLAIN + "procedures: [direct, iterative]\n" + UNBASED, [], dict.fromkeys(BOTH, "top")),
        (PLAIN + "feed_forward: [top 1]\n", [], {"direct": "top"}),
        (PLAIN + "distill: [logits]\n", ["k=2"], {"direct distill logits": "top"}),
        (SEARCHED + "exclude: [{k: [0]}]\n", [], {"direct": "top"}),
    ],
)
def test_the_full_model_is_part_of_every_plan(
    tmp_path: Path, text: str, overrides: list[str], full: dict[str, str]
) -> None:
    """Once for each procedure, task and seed."""
    plan = planned(make_inputs(tmp_path, text), *overrides)
    cells = [cell.asked for cell in plan.cells if cell.asked.feed_forward.rule == NONE]
    whole = [asked for asked in cells if asked.k == 0]
    assert Counter((asked.procedure.label, asked.strategy) for asked in whole) == {
        (procedure, strategy): 4 for procedure, strategy in full.items()
    }
    added = text != PLAIN or bool(overrides)
    assert sum("K=0" in note and "added" in note for note in plan.sweep.notes) == added


def test_the_added_full_model_is_the_trial_of_k_0(tmp_path: Path) -> None:
    listed = planned(make_inputs(tmp_path / "a", PLAIN))
    left_out = planned(make_inputs(tmp_path / "b", PLAIN.replace("[0, 2]", "[2]")))
    assert set(ids(left_out)) == set(ids(listed))
    several = PLAIN.replace("[0, 2]}", "[2]}\n  - {name: bottom, k: [2], until: min_layers}")
    plan = planned(make_inputs(tmp_path / "c", several))
    assert [cell.asked.strategy for cell in plan.cells if cell.asked.k == 0].count("bottom") == 4


# -- hours


def test_the_estimate_falls_as_the_store_fills(tmp_path: Path) -> None:
    plan = planned(make_inputs(tmp_path))
    first = estimate(plan, CPU)
    assert "stated rate" in first.basis
    plan.known = WorkHistory(frozenset(list(plan.trials)[:4]), {}, {})
    assert 0 < estimate(plan, CPU).hours < first.hours
    plan.known = WorkHistory(frozenset(plan.trials), {}, {})
    nothing = estimate(plan, CPU)
    assert (nothing.span, nothing.basis) == ((0.0, 0.0, 0.0), "nothing is missing")


def test_a_run_estimates_as_its_plan_does(tmp_path: Path) -> None:
    """From the lengths of the rows, as long as no trial was timed."""
    file = save_world(tmp_path, recipe={"precision": "fp32", "max_length": 32})
    options = RunOptions(
        file=str(file), store=str(tmp_path / "store"), inline=True, cache_dir=tmp_path / "cache"
    )
    run, told = prepare(options), service.plan.plan(options)
    [work, *_] = run.planned.plan.trials.values()
    assert run.rates.seconds(work) == told.rates.seconds(work)


def test_a_greedy_selection_holds_out_a_tenth() -> None:
    rows = (0, 1, 9, 100, 20_000, 10**6)
    assert [held_out_rows(number) for number in rows] == [0, 1, 1, 10, 2000, 2000]


# -- the queue


def test_the_queue_gives_profiles_then_the_longest(tmp_path: Path) -> None:
    text = PLAIN.replace("[0, 2]", "[6, 0, 2]") + "  - {name: contribution, threshold: [0.9]}\n"
    file = make_inputs(tmp_path, text)
    store = Store(tmp_path / "store", create=True)
    plans: list[Plan] = []
    queue = WorkQueue(planned(file, "task=rte", "seed=42"), store, CPU, plans.append)
    assert queue.waiting == 4
    profile = taken(queue)
    assert isinstance(profile.spec, ProfileSpec)
    depths = []
    work = taken(queue)
    depths.append(len(work.spec.kept_layers))
    queue.ended(work.id, "out_of_memory")
    layers = [{"layer": n, "value": v} for n, v in cosines(above=(1, 2, 3, 4)).items()]
    store.put("profiles", profile.id, [{"profile_id": profile.id, "layers": layers}])
    queue.ended(profile.id, None)
    assert [cell.state for cell in plans[0].cells] == ["pending"] * 4
    while work := queue.take():
        assert isinstance(work.spec, TrialSpec)
        depths.append(len(work.spec.kept_layers))
        queue.ended(work.id, None)
    assert depths == [12, 10, 8, 6]  # 8: what the profile opened; the failed one is not given again
    assert list(queue.failed.values()) == ["out_of_memory"]
    assert len(queue.done) == 4
    assert (queue.waiting, queue.live) == (0, {})


# -- `keep:` on trials that are done without a kept network


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A finished sweep of one task: two networks of two seeds each."""
    file = make_inputs(tmp_path)
    trials = planned(file, "task=rte").trials
    return planned(file, "task=rte", known=WorkHistory(frozenset(trials), {}, {}))


def keep(store: Store, *trials: str) -> None:
    for name in trials:
        store.put_text(f"{WEIGHTS}/{name}", CONFIG, "{}")


@pytest.mark.parametrize(("keeps", "count"), [("none", 0), ("all", 3)])
def test_only_those_that_lack_their_network_are_counted(
    plan: Plan, store: Store, keeps: str, count: int
) -> None:
    kept, torn, *_ = plan.trials
    keep(store, kept, "t1-of-another-sweep")
    store.put_text(f"{WEIGHTS}/{torn}", "model.safetensors", "half of it")
    note = unkept_note(plan, store, keeps)
    assert f"not to {count} done trials" in note if note else count == 0


@pytest.mark.parametrize(("kept", "count"), [([], 2), ([1], 1), ([1, 2], 0), ([0, 1], 1)])
def test_of_the_seeds_one_is_enough_for_a_best(
    plan: Plan, store: Store, kept: list[int], count: int
) -> None:
    keep(store, *([*plan.trials][index] for index in kept))
    note = unkept_note(plan, store, "best")
    text = f"not to {count} done networks without a kept seed. `lp-sweep export"
    assert text in note if note else count == 0


@pytest.mark.parametrize(
    ("threads", "said"),
    [([1, 2, 2, 2], "(1 with 1, 3 with 2)"), ([2, 2, 2, 2], None), ([None, 2, 2, 2], None)],
)
def test_a_resumed_sweep_that_mixes_numbers_of_threads(
    tmp_path: Path, threads: list[int | None], said: str | None
) -> None:
    """A plan names them; neither a GPU's trials nor another sweep's count."""
    file = save_world(tmp_path, seeds=[1, 2, 3, 4, 5], strategies=[{"name": "top", "k": [0]}])
    *ids, on_gpu = make_plan(resolve(load_sweep(file)), WorkHistory.nothing()).trials
    store = Store(tmp_path / "store", create=True)
    rows = [(id_, "cpu", number) for id_, number in zip(ids, threads, strict=True)]
    for id_, device, number in [*rows, (on_gpu, "cuda", 8), ("t1-of-another-sweep", "cpu", 4)]:
        row = trial(id_) | {"device_type": device, "threads": number}
        store.put("trials", id_, [row])
    told = sweep("plan", file.name, "--store", "store", cwd=tmp_path).stdout
    assert ("CPU threads" in told) == bool(said)
    assert (said or "") in told


def test_a_run_says_it_before_it_begins(tmp_path: Path) -> None:
    """The sweep is finished, so that nothing but the words is left to do."""
    file = save_world(tmp_path, seeds=[1, 2], strategies=[{"name": "top", "k": [0]}], keep="all")
    store = Store(tmp_path / "store", create=True)
    first, second = make_plan(resolve(load_sweep(file)), WorkHistory.nothing()).trials
    for name in (first, second):
        store.put("predictions", name, [])
        store.put("trials", name, [trial(name)])
    keep(store, first)
    killed = presence_of(store)
    killed._me = killed._me._replace(pid=2**22 + 1)  # no such process
    killed._write()
    ended = sweep("run", file.name, "--store", "store", cwd=tmp_path)
    assert ended.returncode == 0
    assert "note: keep: all applies from now on, not to 1 done trials" in ended.stderr
    assert not store.listing("runs"), "also that of a killed run is gone"
