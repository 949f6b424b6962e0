"""Learning from a teacher: the losses, the states that are imitated, the worker's way to them."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import unlabelled_fingerprint
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.fast.forward import forward
from lp_sweep.trials.fast.networks import PASSES
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.modelfiles import folder_fingerprint
from lp_sweep.trials.model.prune import keep_layers
from lp_sweep.trials.model.states import layer_states
from lp_sweep.trials.spec.identity import profile_id
from lp_sweep.trials.spec.procedures import imitated_layers, teacher_of
from lp_sweep.trials.spec.specs import Distillation, TaskDefinition, TrialSpec
from lp_sweep.trials.train.distill import Teaching, hidden_loss, student_loss
from lp_sweep.trials.train.steps import EagerPass, evaluate
from lp_sweep.trials.worker.job import Lesson
from lp_sweep.trials.worker.resident import resident
from tests.support.everyday import few
from tests.support.families import NAMES
from tests.support.fastnets import (
    CPU,
    assert_learns_alike,
    assert_within_1e5,
    network,
    one_pass,
    padding_of,
    setting,
    split_of,
)
from tests.support.plain_jobs import assert_fails, done, load_inputs
from tests.support.staging import (
    DEPTH,
    Job,
    assert_same,
    cut_off,
    made,
    measurement,
    profile_spec,
    spec_of,
    with_spec,
)
from tests.support.toyworld import RECIPE, save_world

CLASSES = TaskDefinition(text_columns=("text",))
NUMBERS = replace(CLASSES, kind="regression", metric="pearson")
LENGTHS = [3, 9, 1, 5]
FINE_TUNED = Distillation(teacher="sha256:00", fine_tuned=True)
QUICK = {"limit_train": 32}


@pytest.mark.parametrize(("alpha", "temperature"), [(0.3, 4.0), (1.0, 1.0)])
def test_the_loss_of_classes_is_hintons(alpha: float, temperature: float) -> None:
    student, teacher = np.random.default_rng(0).normal(size=(2, 6, 3))
    labels = np.array([2, 0, 1, 1, 0, 2])
    p, q = (softmax(logits / temperature, axis=1) for logits in (teacher, student))
    divergence = (p * np.log(p / q)).sum(axis=1).mean() * temperature**2
    of_labels = -np.log(softmax(student, axis=1)[np.arange(6), labels]).mean()
    found = student_loss(
        torch.tensor(student),
        torch.tensor(labels),
        CLASSES,
        Distillation(alpha=alpha, temperature=temperature),
        torch.tensor(teacher, dtype=torch.float32),
    )
    assert float(found) == pytest.approx((1 - alpha) * of_labels + alpha * divergence, rel=1e-5)


def test_the_loss_of_numbers_mixes_squared_differences() -> None:
    found = student_loss(
        torch.tensor([[1.0], [2.0]]),
        torch.tensor([0.0, 4.0]),
        NUMBERS,
        Distillation(alpha=0.25),
        torch.tensor([[1.0], [5.0]]),
    )
    assert float(found) == pytest.approx(0.75 * (1 + 4) / 2 + 0.25 * (0 + 9) / 2)


@pytest.mark.parametrize("definition", [CLASSES, NUMBERS], ids=["classes", "numbers"])
def test_a_row_without_a_label_learns_from_the_teacher_alone(definition: TaskDefinition) -> None:
    """The mean is over all rows, and its gradient is a number where none has a label."""
    kind = kind_of(definition)
    settings = Distillation(alpha=0.3, unlabelled="sha256:00")
    width = 3 if kind.counts_labels else 1
    student, teacher = torch.randn(2, 4, width, generator=torch.Generator().manual_seed(0))
    labels = np.concatenate([np.array([1, 0], kind.no_labels(0).dtype), kind.no_labels(2)])

    def loss(rows: slice, alpha: float = 0.3) -> float:
        logits = student[rows].clone().requires_grad_()
        target, how = torch.from_numpy(labels[rows]), replace(settings, alpha=alpha)
        found = student_loss(logits, target, definition, how, teacher[rows])
        found.backward()  # type: ignore[no-untyped-call]
        assert logits.grad is not None
        assert bool(logits.grad.isfinite().all())
        return float(found.detach())

    plain = replace(settings, unlabelled="")
    labelled = student_loss(
        student[:2], torch.from_numpy(labels[:2]), definition, plain, teacher[:2]
    )
    assert loss(slice(2, 4)) == pytest.approx(0.3 * loss(slice(2, 4), alpha=1.0))
    assert loss(slice(0, 2)) == pytest.approx(float(labelled))
    assert loss(slice(0, 4)) == pytest.approx((loss(slice(0, 2)) + loss(slice(2, 4))) / 2)


def test_hidden_states_are_compared_at_unit_length() -> None:
    one, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 7.0]])
    assert float(hidden_loss([one, one], [one * 5, other], [(0, 0), (1, 1)])) == pytest.approx(1.0)


def teaching(teacher: Any, rows: int, **settings: Any) -> Teaching:
    draw = np.random.default_rng(1)
    return Teaching(
        settings=Distillation(**settings),
        logits=draw.normal(size=(rows, 2)).astype(np.float32),
        network=teacher,
    )


@pytest.mark.parametrize("name", NAMES)
def test_sentence_states_are_those_of_every_layer(name: str) -> None:
    """As `layer_states` reads them, in the rows' order."""
    model, padding = network(name).eval(), padding_of()
    split, rows = split_of(LENGTHS), np.array([2, 0, 3, 1])
    whole = {key: torch.from_numpy(array) for key, array in split.batch(rows, padding).items()}
    [expected] = layer_states(model, [whole], only_sentence=True)
    ways: list[tuple[Any, str]] = [(c, p) for c in ("reference", "fast") for p in ("", "mean")]
    for compute, pooling in ways:
        states: list[torch.Tensor] = []
        with torch.no_grad():
            forward(model, split, rows, padding, CPU, compute, states, pooling=pooling)
        for found, layer in zip(states, expected.sentence()[1:], strict=True):
            assert_within_1e5(found.numpy(), layer.numpy())


def test_all_kept_layers_but_the_last_imitate_their_own() -> None:
    student = network("bert", depth=4)
    keep_layers(student, [1, 3, 4])
    assert teaching(None, 4).pairs(student) == [(0, 0), (1, 2)]
    spec = TrialSpec(
        model_fingerprint="sha256:00",
        kept_layers=(1, 3, 4),
        task=CLASSES,
        data_fingerprint="sha256:00",
        seed=1,
        distill=Distillation(hidden_weight=1.0),
    )
    assert [*imitated_layers(spec, 4)] == [1, 2, 3]


@pytest.mark.parametrize("name", few([n for n in PASSES if n != "xlnet"], 1))
@pytest.mark.parametrize(("weight", "unlabelled"), [(0.0, ""), (3.0, ""), (0.0, "sha256:00")])
def test_every_compute_teaches_alike(name: str, weight: float, unlabelled: str) -> None:
    """Loss and gradients of a student are the reference's, without padding and in a fixed shape."""
    model = network(name).train()
    teacher = network(name).eval().requires_grad_(False)
    split, rows = split_of(LENGTHS), np.array([2, 0, 3, 1])
    settings = {"alpha": 0.7, "hidden_weight": weight, "unlabelled": unlabelled}
    how = {"teaching": teaching(teacher if weight else None, 4, **settings)}
    loss, _ = one_pass(EagerPass(model, setting("reference", **how)), split, rows)
    plain, _ = one_pass(EagerPass(model, setting("reference")), split, rows)
    assert loss != pytest.approx(plain, abs=1e-3)
    if unlabelled:
        split = replace(split, labels=np.zeros(4, np.int64))
        loss, _ = one_pass(EagerPass(model, setting("reference", **how)), split, rows)
        split = replace(split, labels=np.where(rows > 1, kind_of(CLASSES).no_labels(4), 0))
        less, _ = one_pass(EagerPass(model, setting("reference", **how)), split, rows)
        assert less < loss - 1e-3
    assert_learns_alike(model, split, **how)
    assert all(parameter.grad is None for parameter in teacher.parameters())


# -- the worker


def taught(world: Path, **distill: Any) -> tuple[Job, Job]:
    """The trial of the teacher, with the measurement that a student reads, and the student."""
    job = made(world, recipe=QUICK, distill=Distillation(**distill))
    teacher = with_spec(job, teacher_of(spec_of(job), DEPTH), network=True)
    measure = measurement(
        teacher,
        "teacher",
        limit_train=spec_of(teacher).recipe.limit_train,
        unlabelled=distill.get("unlabelled", ""),
    )
    lesson = Lesson(teacher["id"], measure["id"])
    return teacher | {"measures": [measure]}, job | {"lesson": lesson._asdict()}


def test_a_student_learns_from_the_stored_logits(world: Path, store: Store) -> None:
    teacher, student = taught(world, hidden_weight=1.0, temperature=3.0)
    assert_fails(store, taught(world)[1], "missing_input", teacher["id"])
    assert not store.names("trials")
    full, record = done(store, teacher), done(store, student)
    assert (full["distill"], full["teacher"], full["seconds_teacher"]) == (None, None, None)
    assert (record["distill"], record["teacher"]) == ("logits+hidden T=3", teacher["id"])
    assert record["seconds_teacher"] > 0
    assert record["train_losses"] != done(store, made(world, recipe=QUICK))["train_losses"]
    name = student["lesson"]["logits"]
    logits = store.read("teacher_logits", name)
    assert [row["example"] for row in logits] == list(range(full["train_examples"]))
    spec = spec_of(student)
    fewer = with_spec(student, replace(spec, recipe=replace(spec.recipe, limit_train=5)))
    assert_fails(store, fewer, "missing_input", "rows")
    store.delete("teacher_logits", f"{name}.parquet")  # lost, they are computed again
    done(store, teacher)
    assert store.read("teacher_logits", name) == logits


def left_by(store: Store, job: dict[str, Any]) -> dict[str, Any]:
    """The stored results of an uninterrupted training, for `assert_same`."""
    [record] = store.read("trials", job["id"])
    return {"record": record, "predictions": store.read("predictions", job["id"])}


def test_a_student_that_is_cut_off_goes_on_as_if_nothing_had_been(
    world: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, student = taught(world)
    half = done(store, teacher, student)["steps"] // 2
    other, logits = Store(tmp_path / "other", create=True), student["lesson"]["logits"]
    other.put("teacher_logits", logits, store.read("teacher_logits", logits))
    cut_off(student, other, monkeypatch, half)
    done(other, student | {"checkpoint_every": 1.0})
    assert assert_same(other, student, left_by(store, student))["resumed_from_step"] == half


# -- texts without labels


def with_more(job: Job, texts: Path) -> Job:
    source = TaskSource(**{**job["task"]["source"], "unlabelled": str(texts)})
    name = unlabelled_fingerprint(source, spec_of(job).task)
    return {**job, "unlabelled": {name: str(texts)}}


def test_a_student_learns_from_more_texts_than_its_teacher(
    world: Path, store: Store, tmp_path: Path
) -> None:
    texts = tmp_path / "more.csv"
    texts.write_text("note,text\na,good w1 w2\nb,w3 poor\nc,w4 fine w5 w6\nd,bad\ne,w7 w8\n")
    [name] = with_more(made(world), texts)["unlabelled"]
    pair = taught(world, unlabelled=name)
    teacher, student = (with_more(job, texts) for job in pair)
    full, record = done(store, teacher), done(store, student)
    assert record["train_examples"] == full["train_examples"] + 5
    assert record["steps"] == math.ceil(record["train_examples"] / 16)
    assert (full["distill"], record["distill"]) == (None, "logits unlabelled")
    for name in ("majority", "dev_in_train", "dev_relabelled", "data_fingerprint"):
        assert record[name] == full[name]
    logits = store.read("teacher_logits", student["lesson"]["logits"])
    assert [row["example"] for row in logits] == list(range(record["train_examples"]))

    probes = measurement(student, "probes", rows=1000)  # of the labelled rows
    done(store, {**student, "measures": [probes], "keep": "all"})
    [row] = store.read("profiles", probes["id"])
    assert all(0 <= item["value"] <= 1 for item in row["values"])

    texts.write_text(texts.read_text() + "f,w9\n")
    shutil.rmtree(world.parent / "cache")
    resident().forget()
    later = with_spec(student, replace(spec_of(student), seed=9))
    assert_fails(store, later, "missing_input", "changed since the run was planned")


def test_tasks_that_differ_only_in_unlabelled_texts_share_a_teacher(
    tmp_path: Path, store: Store
) -> None:
    """A student's bridge is fitted on the rows of the plain one's."""
    (tmp_path / "more.csv").write_text("text\ngood w1 w2\n")
    own = {"train": "train.csv", "dev": "dev.csv", "text": ["text"]}
    tasks = [{"name": "more", "unlabelled": "more.csv"} | own, {"name": "plain"} | own]
    recipe = RECIPE | {"epochs": 1, "limit_train": 16}
    changes = {"distill": ["none", "logits"], "bridge": ["linear"], "recipe": recipe}
    strategies = [{"name": "drop", "layers": [2, 3]}]
    file = save_world(tmp_path, tasks=tasks, strategies=strategies, **changes)
    plan = make_plan(resolve(load_sweep(file)), WorkHistory.nothing())
    assert len(plan.trials) == 1 + 1 + 2
    records = {}
    for work in sorted(plan.trials.values(), key=lambda work: work.lesson is not None):
        place = {"cache_dir": str(tmp_path / "cache"), "device": "cpu", "threads": 1}
        job = plan.job(work, network=False).to_plain()
        records[work.id] = done(store, {**job, **place})
    students = [record for record in records.values() if record["distill"]]
    rows = {record["task"]: record["train_examples"] for record in students}
    assert rows == {"plain": 16, "more": 17}
    lefts = [record["bridge_left"] for record in records.values() if record["bridge"]]
    assert len(lefts) == 3
    assert all(left == lefts[0] for left in lefts)


# -- a teacher that has learned its task before


def graduate(world: Path, store: Store, student: Job, labels: tuple[str, ...]) -> Job:
    """The profile of a folder whose classifier is the network of a kept trial, its classes in the
    order of `labels`."""
    full = with_spec(student, teacher_of(spec_of(student), DEPTH), lesson=None, keep="all")
    done(store, full)
    folder = world.parent / "graduate"
    shutil.copytree(Path(store.location) / "weights" / full["id"], folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = {str(index): label for index, label in enumerate(labels)}
    config["label2id"] = {label: index for index, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config))
    spec = profile_spec(
        student,
        model_fingerprint=folder_fingerprint(folder),
        measure="teacher",
        limit_train=spec_of(student).recipe.limit_train,
    )
    model = {**student["model"], "name": "./graduate", "path": str(folder)}
    plain = {"id": profile_id(spec), "kind": "profile", "spec": asdict(spec), "model": model}
    return {**student, **plain, "lesson": None}


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
def test_a_folder_teaches_by_the_names_of_its_classes(
    world: Path, store: Store, turned: bool
) -> None:
    student = made(world, recipe=QUICK, distill=FINE_TUNED)
    names = ("neg", "pos")
    job = graduate(world, store, student, names[::-1] if turned else names)
    record = done(store, job, student | {"lesson": Lesson("", job["id"])._asdict()})
    assert (record["teacher"], record["distill"]) == (job["id"], "logits")
    own = np.array([row["scores"] for row in store.read("teacher_logits", job["id"])])
    store.delete("teacher_logits", f"{job['id']}.parquet")
    done(store, job)  # once more: they are gone
    again = np.array([row["scores"] for row in store.read("teacher_logits", job["id"])])
    assert np.array_equal(own, again)
    inputs = load_inputs(student, spec_of(student), None, 0, Path(job["model"]["path"]))
    logits = evaluate(inputs.model, inputs.encoded.train, inputs.padding, precision="fp32")
    assert_within_1e5(own, logits[:, ::-1] if turned else logits)


def test_a_folder_without_a_classifier_for_these_classes_is_a_missing_input(
    world: Path, store: Store
) -> None:
    student = made(world, recipe=QUICK, distill=FINE_TUNED)
    job = graduate(world, store, student, ("no", "yes"))
    assert_fails(store, job, "missing_input", "no, yes.*neg, pos")
    assert_fails(
        store, job | {"model": student["model"]}, "missing_input", "no classifier for 2 classes"
    )
