"""Students and their teachers in a plan: what they share, need and are called."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import taken_on
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.trials.model.modelfiles import folder_fingerprint
from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.procedures import teacher_of
from lp_sweep.trials.spec.select import LayerScores
from tests.support.stagedplans import ONE, cell_trial, plan_of, spec, the_full
from tests.support.sweepfiles import CPU, PLAIN, make_inputs, make_model, planned

LOGITS = "distill: [none, logits]"


def student(plan: Plan, name: str = "direct distill logits", k: int = 2) -> str:
    return cell_trial(plan, procedure=name, k=k, strategy="top")


def test_all_students_share_the_full_network_as_their_teacher(tmp_path: Path) -> None:
    plain, plan = plan_of(tmp_path / "a", ""), plan_of(tmp_path / "b", LOGITS)
    assert plain.trials.keys() < plan.trials.keys()
    full = the_full(plan)
    assert student(plan, k=0) == full == student(plan, "direct", k=0)
    learning = {id_: work for id_, work in plan.trials.items() if spec(work).distill}
    assert learning
    for id_, work in learning.items():
        assert work.lesson is not None
        assert work.lesson.teacher == full == trial_id(teacher_of(spec(work), 12))
        assert id_ != student(plan, "direct")
    [measure] = plan.measures[full]
    assert (measure.spec.measure, measure.spec.trial) == ("teacher", full)
    assert plan.needed_networks() == set(), "for logits the network does not have to be kept"
    assert plan_of(tmp_path / "c", "distill: logits+hidden").needed_networks() == {full}


def test_texts_without_labels_are_for_students_alone(tmp_path: Path) -> None:
    """Their teacher answers for them, once, and is the trial that it was."""
    file = make_inputs(tmp_path, f"{PLAIN}{LOGITS}\n")
    (tmp_path / "more.jsonl").write_text('{"sentence1": "a", "sentence2": "b"}\n')
    before = planned(file, *ONE)
    file.write_text(f"{PLAIN}{LOGITS}\n".replace("rte", "{name: rte, unlabelled: more.jsonl}"))
    plan = planned(file, *ONE)
    full = the_full(plan)
    same = {id_ for id_, work in before.trials.items() if not spec(work).distill}
    assert full in same
    assert plan.trials.keys() & before.trials.keys() == same
    students = {id_: work for id_, work in plan.trials.items() if id_ not in same}
    assert students
    [measure] = plan.measures[full]
    assert measure.spec.unlabelled.startswith("sha256:")
    assert measure not in before.measures[full]
    for work in students.values():
        assert work.lesson is not None
        assert (spec(work).unlabelled, work.lesson.logits) == (measure.spec.unlabelled, measure.id)
    work = next(iter(students.values()))
    longer = replace(work, task=work.task._replace(unlabelled_rows=10_000))
    assert CPU.seconds(longer) > CPU.seconds(work)


def test_texts_that_nobody_learns_from_are_a_note(tmp_path: Path) -> None:
    lines = "tasks:\n  - name: rte\n    unlabelled: absent.csv\n"
    file = make_inputs(tmp_path, PLAIN.replace("tasks: [rte, mrpc]\n", lines))
    plan = planned(file, *ONE)
    assert plan.trials.keys() == plan_of(tmp_path / "b", "").trials.keys()
    [note] = load_sweep(file).notes
    assert note in planned(file).sweep.notes
    assert re.search(r"sweep\.yaml:7.*rte.*distill", note)


def test_starting_from_the_teacher_and_layers_that_are_frozen_in_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "distill: [{start: teacher, alpha: 1}]")
    work = plan.trials[student(plan, "finetune_then_drop distill logits alpha=1")]
    assert work.start == the_full(plan) == (work.lesson and work.lesson.teacher)

    plan = plan_of(tmp_path, LOGITS + "\nrecipe: {freeze: {layers: [1, 12]}}")
    work = plan.trials[student(plan)]
    assert work.lesson is not None
    assert spec(plan.trials[work.lesson.teacher]).recipe.freeze_layers == (1, 12)
    assert work.lesson.teacher == student(plan, k=0)


def test_a_store_with_the_logits_needs_no_teacher(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, LOGITS)
    full = the_full(plan)
    assert plan.needs(student(plan)) == {full}
    logits = {measure.id: LayerScores({}) for measure in plan.measures[full]}
    plan.known = WorkHistory({full}, {}, logits)
    assert plan.needs(student(plan)) == set()
    assert full not in {work.id for work in taken_on(plan)}
    plan.known = WorkHistory({full}, {}, {}, networks={full})  # kept, and never measured
    assert plan.absent(student(plan)) == {full}
    assert full in {work.id for work in taken_on(plan)}
    plan.known = WorkHistory(frozenset(), {full: "diverged"}, {})  # nobody teaches
    assert {work.id for work in taken_on(plan)} == {student(plan, "direct")}


def test_a_bigger_teacher_is_another_model_of_the_sweep(tmp_path: Path) -> None:
    small = "./folder/of/a/model"
    text = PLAIN.replace(f"  - {small}\n", f"  - {small}\n  - ./large\n")
    file = make_inputs(tmp_path, text + "distill: [{from: ./large}]\n")
    make_model(tmp_path / "large", depth=24, weight=1.0)
    plan = planned(file, *ONE)
    named = "direct distill logits of ./large"
    # a full network has something to learn from a larger one
    work = plan.trials[cell_trial(plan, procedure=named, model=small, k=0)]
    assert work.lesson is not None
    teacher = plan.trials[work.lesson.teacher]
    assert (len(spec(teacher).kept_layers), spec(teacher).distill) == (24, None)
    assert teacher.id == cell_trial(plan, model="./large", k=0)


def test_a_teacher_in_a_folder_is_measured_before_its_students(tmp_path: Path) -> None:
    teacher = make_model(tmp_path / "taught", weight=2.0)
    config = json.loads((teacher / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (teacher / "config.json").write_text(json.dumps(config))
    plan = plan_of(tmp_path, "distill: [{from: ./taught}]")
    work = plan.trials[student(plan, "direct distill logits of ./taught")]
    assert work.lesson is not None
    assert plan.needs(work.id) == {work.lesson.logits} <= plan.profiles.keys()
    assert plan.profiles[work.lesson.logits].model.path == str(teacher)
    assert str(teacher) in {model.path for model in plan.inputs_needed().models}
    assert not plan.needed_networks()
    found = spec(work).distill
    assert found is not None
    assert (found.fine_tuned, found.teacher) == (True, folder_fingerprint(teacher))
    plan.known = plan.known._replace(profiles={work.lesson.logits: LayerScores({})})
    assert plan.needs(work.id) == set()
