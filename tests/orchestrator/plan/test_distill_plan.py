"""Students and their teachers in a plan: what they share, wait for and are called."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.orchestrator.engine.backlog import Backlog
from lp_sweep.orchestrator.estimate.estimate import Rates
from lp_sweep.orchestrator.plan.known import Known
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.selection import Selection, taken_on
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.identity import trial_id
from lp_sweep.storage.select import Measured
from lp_sweep.trials.model.modelfiles import folder_fingerprint
from lp_sweep.trials.train.procedures import Distill, Procedure, teacher_of
from tests.support.stagedplans import ONE, cell_trial, plan_of, spec, the_full
from tests.support.sweepfiles import CPU, PLAIN, make_inputs, make_model, planned

LOGITS = "distill: [none, logits]"
HIDDEN = "distill: [logits+hidden]"


def known(plan: Plan, *done: str, logits: bool = False, networks: tuple[str, ...] = ()) -> Known:
    measures = [m.id for id_ in done for m in plan.measures.get(id_, ())] if logits else []
    profiles = {id_: Measured({}) for id_ in measures}
    return Known(frozenset(done), {}, profiles, networks=frozenset(networks))


def student(plan: Plan, name: str = "direct distill logits", k: int = 2) -> str:
    return cell_trial(plan, procedure=name, k=k, strategy="top")


def test_all_students_share_the_full_network_as_their_teacher(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, LOGITS)
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


def test_a_sweep_without_it_has_the_identifiers_that_it_had(tmp_path: Path) -> None:
    plain, more = plan_of(tmp_path / "a", ""), plan_of(tmp_path / "b", LOGITS)
    assert plain.trials.keys() < more.trials.keys()


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
    assert Rates(gpu=False).kind(longer).stated > CPU.kind(work).stated


def test_texts_that_nobody_learns_from_are_a_note(tmp_path: Path) -> None:
    lines = "tasks:\n  - name: rte\n    unlabelled: absent.csv\n"
    file = make_inputs(tmp_path, PLAIN.replace("tasks: [rte, mrpc]\n", lines))
    plan = planned(file, *ONE)
    assert plan.trials.keys() == plan_of(tmp_path / "b", "").trials.keys()
    [note] = load_sweep(file).notes
    assert note in planned(file).sweep.notes
    assert re.search(r"sweep\.yaml:7.*rte.*distill", note)


def test_starting_from_the_teacher_is_finetune_then_drop(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "distill: [{start: teacher, alpha: 1}]")
    work = plan.trials[student(plan, "finetune_then_drop distill logits alpha=1")]
    assert work.start == the_full(plan) == (work.lesson and work.lesson.teacher)


def test_frozen_layers_that_go_are_frozen_in_the_teacher(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, LOGITS + "\nrecipe: {freeze: {layers: [1, 12]}}")
    work = plan.trials[student(plan)]
    assert work.lesson is not None
    assert spec(plan.trials[work.lesson.teacher]).recipe.freeze_layers == (1, 12)
    assert work.lesson.teacher == student(plan, k=0)


@pytest.mark.parametrize("lines", [LOGITS, HIDDEN])
def test_students_wait_for_what_they_need(tmp_path: Path, lines: str) -> None:
    """For logits the network does not have to be kept."""
    plan = plan_of(tmp_path, lines)
    full, hidden = the_full(plan), lines == HIDDEN
    name = f"direct distill logits{'+hidden' if hidden else ''}"
    assert plan.needs(student(plan, name)) == {full}
    assert plan.needed_networks() == ({full} if hidden else set())
    backlog = Backlog(plan, CPU)
    backlog.fill(plan, Selection())
    first = backlog.first()
    assert first is not None
    assert first.id == full
    waiting = len(backlog)
    backlog.pop()
    handed_out = set()
    while ready := backlog.first():
        handed_out.add(ready.id)
        backlog.pop()
    assert student(plan, name) not in handed_out
    backlog.begun(full)
    backlog.succeeded(full)
    while ready := backlog.first():
        handed_out.add(ready.id)
        backlog.pop()
    assert len(handed_out) == waiting - 1
    assert student(plan, name) in handed_out


def test_a_store_with_the_logits_needs_no_teacher(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, LOGITS)
    full = the_full(plan)
    plan.known = known(plan, full, logits=True)
    assert plan.needs(student(plan)) == set()
    assert full not in {work.id for work in taken_on(plan)}
    plan.known = known(plan, full, networks=(full,))  # kept, and never measured
    assert plan.absent(student(plan)) == {full}
    assert full in {work.id for work in taken_on(plan)}


def test_students_of_a_teacher_that_is_lost_fail(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, LOGITS)
    backlog = Backlog(plan, CPU)
    backlog.fill(plan, Selection())
    assert student(plan) in backlog.lost(the_full(plan))


def test_a_bigger_teacher_is_another_model_of_the_sweep(tmp_path: Path) -> None:
    small = "./folder/of/a/model"
    text = PLAIN.replace(f"  - {small}\n", f"  - {small}\n  - ./large\n")
    assert text != PLAIN
    file = make_inputs(tmp_path, text + "distill: [{from: ./large}]\n")
    make_model(tmp_path / "large", depth=24, weight=1.0)
    plan = planned(file, "task=rte", "seed=42")
    named = "direct distill logits of ./large"
    [cell] = {
        c.trial_id
        for c in plan.cells
        if c.asked.procedure == named and c.asked.model == small and c.asked.k == 0
    }
    assert cell is not None
    work = plan.trials[cell]  # a full network has something to learn from a larger one
    assert work.lesson is not None
    teacher = plan.trials[work.lesson.teacher]
    assert (len(spec(teacher).kept_layers), spec(teacher).distill) == (24, None)
    own = {c.trial_id for c in plan.cells if c.asked.model == "./large" and c.asked.k == 0}
    assert own == {teacher.id}


def test_a_teacher_in_a_folder_is_measured_before_its_students(tmp_path: Path) -> None:
    teacher = make_model(tmp_path / "taught", weight=2.0)
    config = json.loads((teacher / "config.json").read_text())
    (teacher / "config.json").write_text(
        json.dumps(config | {"architectures": ["BertForSequenceClassification"]})
    )
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
    plan.known = plan.known._replace(profiles={work.lesson.logits: Measured({})})
    assert plan.needs(work.id) == set()


def test_a_teacher_must_be_a_classifier(tmp_path: Path) -> None:
    make_model(tmp_path / "taught")
    with pytest.raises(SpecError, match=r"sweep.yaml:\d+.*'./taught'.*models:"):
        plan_of(tmp_path, "distill: [{from: ./taught}]")
    with pytest.raises(SpecError, match=r"sweep.yaml:\d+.*no model folder.*tought"):
        plan_of(tmp_path, "distill: [{from: ./tought}]")


@pytest.mark.parametrize(
    "label",
    [
        "direct distill logits",
        "iterative 3 distill logits+hidden T=4 alpha=0.25",
        "finetune_then_drop frozen distill logits+hidden=10 alpha=1 of ./some model",
        "direct distill logits T=0.1",
    ],
)
def test_a_label_is_read_back(label: str) -> None:
    assert Procedure.parse(label).label == label


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("distill: logit", r"sweep.yaml:\d+.*'logit'.*none, logits, logits\+hidden.*'logits'"),
        ("distill: [{alpha: 0}]", r"sweep.yaml:\d+.*alpha.*greater than 0"),
        ("distill: [{from: larger}]", r"sweep.yaml:\d+.*'larger'.*full, ./folder"),
        ("distill: [{hidden_weight: 2}]", r"hidden_weight.*logits\+hidden"),
        ("distill: [logits, {temperature: 2}]", r"sweep.yaml:\d+.*logits is listed twice"),
        ("procedures: [iterative]\ndistill: [{start: teacher}]", "start: teacher.*iterative"),
        ("distill: [{from: ./model, loss: logits+hidden}]", "teacher: full"),
        ("distill: [{temprature: 2}]", "'temprature'.*teacher, loss, temperature"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, line: str, match: str) -> None:
    file = make_inputs(tmp_path, PLAIN + line + "\n")
    with pytest.raises(SpecError, match=match):
        load_sweep(file)


def test_an_override_names_distillations(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, PLAIN)
    assert load_sweep(file, ["distill=none,logits"]).spec.trainings == [
        "direct",
        "direct distill logits",
    ]


def test_equal_settings_have_one_name() -> None:
    values: dict[str, Any] = {"temperature": 2, "alpha": 0.5}
    assert Distill(**values).label == "logits"
