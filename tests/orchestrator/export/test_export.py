"""`lp-sweep export`: what is published is the network that was scored, and nothing else is."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
import yaml
from huggingface_hub import ModelCard

from lp_sweep import open_store
from lp_sweep.analysis.report.about import sheets
from lp_sweep.analysis.statistics.intervals import Interval
from lp_sweep.analysis.tables import TABLES as TABLES_SHOWN
from lp_sweep.analysis.views import open_views
from lp_sweep.orchestrator.cli.store import export_lines
from lp_sweep.orchestrator.export import trialfolder
from lp_sweep.orchestrator.export.card import Base, CardFacts, trial_card
from lp_sweep.orchestrator.export.places import spec_of
from lp_sweep.orchestrator.export.trialfolder import ExportResult, kept_instead, trained_again
from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.mirrors.copying import mirrored_run
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.service import export as service
from lp_sweep.orchestrator.service.store import history, show_text
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage import underway
from lp_sweep.storage.errors import ExportError, LpSweepError, SpecError
from lp_sweep.storage.networks import SUMS, changed_files
from lp_sweep.storage.schema import TABLES, TRIALS
from lp_sweep.storage.store import Store
from tests.support.everyday import few
from tests.support.exportworld import (
    QUICK,
    World,
    change_weights,
    in_this_process,
    make_world,
    swap_layers,
)
from tests.support.families import FAMILIES, daily, save_pretrained
from tests.support.faults import wait_for
from tests.support.plain_jobs import execute
from tests.support.program import python, sweep
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import WORDS, jobs, save_world

QUICKSTART = Path(__file__).parents[3] / "quickstart" / "sweep.yaml"
ALONE = """
import json, sys
from transformers import AutoModelForSequenceClassification, pipeline
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1])
classify = pipeline("text-classification", model=sys.argv[1])
said = [answer["label"] for answer in classify(json.loads(sys.argv[2]))]
print(json.dumps([model.config.num_hidden_layers, said, "lp_sweep" in sys.modules]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The folder is loaded by the same program as always, in this process."""
    in_this_process(monkeypatch)
    return made


@pytest.fixture(scope="module")
def exported(made: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportResult, Path]:
    """The kept network's folder, and the result of the export."""
    out = tmp_path_factory.mktemp("exported") / "out"
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
        return made.export(made.kept, out), out


# -- what is in the folder


@pytest.mark.slow
def test_the_folder_is_a_model_of_plain_transformers(made: World, tmp_path: Path) -> None:
    """The whole way, in real processes: of the command, of its check, of a user."""
    place = ("--store", made.store.location, "--file", str(made.file), "--offline")
    done = sweep("export", made.kept[:9], "--out", "smaller 'one'", *place, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "smaller 'one'\n"), done.stderr
    folder = tmp_path / "smaller 'one'"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert {path.name for path in folder.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
        "lp_sweep.json",
        SUMS,
    }
    assert "60 answers" in done.stderr

    texts = [row["text"] for row in _dev_rows(made)]
    alone = python(ALONE, str(folder), json.dumps(texts), cwd=tmp_path)
    layers, said, is_loaded = json.loads(alone.stdout.splitlines()[-1])
    assert (layers, is_loaded) == (2, False)
    stored = sorted(made.store.read("predictions", made.kept), key=lambda row: row["example"])
    assert said == [["neg", "pos"][int(row["prediction"])] for row in stored]


def test_a_program_exports_too(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_store(world.store.location) as results:
        assert results.export(out, world.kept, file=world.file, offline=True) == out
        with pytest.raises(SpecError, match=r"a trial.*--task.*not both"):
            results.export(tmp_path / "other", world.kept, task="mood", within=50)
    assert (out / "model.safetensors").is_file()


def test_the_card_is_one_of_the_hub(world: World, exported: tuple[ExportResult, Path]) -> None:
    done, out = exported
    card = ModelCard.load(out / "README.md")
    (result,) = card.data.eval_results
    (record,) = world.store.read("trials", world.kept)
    assert result.metric_value == round(record["last"], 6)
    assert (result.metric_type, result.dataset_name) == ("accuracy", "mood")
    kind = (card.data.library_name, card.data.pipeline_tag)
    assert kind == ("transformers", "text-classification")
    assert card.data.base_model is None, "no hub can link a folder of one's own"
    assert done.interval is not None
    low, high = done.interval
    assert low <= done.score <= high
    for words in (
        "Layers 1-2 of the 4",
        f"| {100 * record['last']:.2f} |",
        f"{low:.2f} to {high:.2f}",
        "neg, pos",
        "Speed: not measured",
        "licence of that model is unknown",
        world.kept,
    ):
        assert words in card.text, words


def test_what_is_of_the_hub_is_linked(world: World) -> None:
    (record,) = world.store.read("trials", world.kept)
    data = f"hub:nyu-mll/glue@{'1' * 40}:rte:train=train,validation=validation"
    speed = {
        "quantity": "inference", "batch": 32, "max_length": 128, "speedup": 1.93,
        "speedup_q25": 1.91, "speedup_q75": 1.95, "device_name": "H200", "precision_used": "fp32",
    }  # fmt: skip
    facts = CardFacts(
        split="validation",
        base=Base("org/bert", True, "0" * 40, "apache-2.0"),
        label_names=("neg", "pos"),
        interval=Interval(None, None, "none", "no predictions"),
        full=record | {"last": 0.5, "params_total": 2 * record["params_total"]},
        speeds=[speed],
        loaded=0.25,
        chosen="Named.",
        another="it is another network",
    )
    shared = {"dev_in_train": 3, "dev_relabelled": 1, "metric": "f1", "positive": "neg"}
    shared |= {"data_fingerprint": data}
    card = ModelCard(trial_card(spec_of(record), record | shared, facts))
    told = card.data.to_dict()
    assert (told["base_model"], told["license"]) == ("org/bert", "apache-2.0")
    assert told["datasets"] == ["nyu-mll/glue"]
    (result,) = card.data.eval_results
    assert (result.dataset_config, result.dataset_revision) == ("rte", "1" * 40)
    for words in (
        f"org/bert at `{'0' * 40}`",
        "The licence of that model is apache-2.0",
        "| the same in fp32, as this folder is loaded | 25.00 |",
        "1.93 times as fast as all layers (1.91 to 1.95, quartiles): inference",
        "no interval: no predictions",
        "| all 4 layers, same recipe and seed | 50.00 |",
        "50% of the",
        "**it is another network.**",
        "3 of 60 dev rows also occur in train, 1 of them with another label",
        "| f1 of 'neg' on validation |",
    ):
        assert words in card.text, words


def test_what_is_published_names_no_place_of_this_machine(
    world: World, exported: tuple[ExportResult, Path]
) -> None:
    _, out = exported
    texts = [
        path.read_text(encoding="utf-8")
        for path in out.iterdir()
        if path.suffix in (".json", ".md")
    ]
    (record,) = world.store.read("trials", world.kept)
    for secret in (str(Path(world.file).parent), str(out.parent), record["host"]):
        assert not [text for text in texts if secret in text], secret
    about = json.loads((out / "lp_sweep.json").read_text(encoding="utf-8"))
    assert about["record"]["last"] == record["last"]
    assert about["verified"]["examples"] == 60
    assert about["spec"]["kept_layers"] == [1, 2]


def test_the_card_has_the_models_licence_and_names_as_text(
    tmp_path: Path, monkeypatch: Any
) -> None:
    in_this_process(monkeypatch)
    evil = "x<img src=a>](http://b) | #"
    task = {"name": evil, "train": "train.csv", "dev": "dev.csv", "text": ["text"]}
    file = save_world(tmp_path, tasks=[task])
    (tmp_path / "model" / "README.md").write_text("---\nlicense: cc-by-sa-4.0\n---\n# It\n")
    world = _one(file, tmp_path, "k=2")
    world.export(world.kept, tmp_path / "out")
    text = card_of(tmp_path / "out")
    front, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert yaml.safe_load(front)["license"] == "cc-by-sa-4.0"
    assert yaml.safe_load(front)["model-index"][0]["results"][0]["dataset"]["name"] == evil
    assert r"x\<img src=a\>\](http://b) \| \#" in body
    assert "<img" not in body.replace(r"\<img", "")


@pytest.mark.parametrize("family", daily("xlnet"))
def test_every_family_is_exported(family: str, tmp_path: Path, monkeypatch: Any) -> None:
    in_this_process(monkeypatch)
    file = save_world(tmp_path)
    shutil.rmtree(tmp_path / "model")
    save_pretrained(FAMILIES[family], 4, tmp_path / "model")
    tokenizer = tiny_tokenizer(WORDS, types=family == "bert", xlnet=family == "xlnet")
    tokenizer.save_pretrained(tmp_path / "model")
    world = _one(file, tmp_path, "k=2")
    done = world.export(world.kept, tmp_path / "out")
    assert done.verified.other_labels == 0
    assert done.verified.largest_difference <= done.verified.tolerance
    assert not changed_files(tmp_path / "out")
    assert "the 60 answers of the trial" in next(export_lines(done))
    rounded = done.verified._replace(other_labels=2, score=0.25)
    said = next(export_lines(done._replace(verified=rounded)))
    assert "25.00 in fp32, where 2 of 60" in said


def test_two_sentences_and_numbers(tmp_path: Path, monkeypatch: Any) -> None:
    """The built-in sweep: its model and data are in the package."""
    in_this_process(monkeypatch)
    overrides = ("task=toy-similarity", "seed=1", "strategies=[{name: top, k: [9]}]")
    world = _one(QUICKSTART, tmp_path, *overrides, "recipe.limit_train=16")
    done = world.export(world.kept, tmp_path / "out", file="quickstart")
    assert done.kept_layers == [1, 2, 3]
    text = card_of(tmp_path / "out")
    assert "sentence1 and sentence2" in text
    assert "one number" in text
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["problem_type"] == "regression"


@pytest.mark.slow
@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 1))
def test_an_export_that_is_ended_leaves_nothing(
    made: World, tmp_path: Path, number: signal.Signals
) -> None:
    """Neither the folder that is being made nor, in TMPDIR, what it was tried with."""
    (tmp_path / "tmp").mkdir()
    command = (sys.executable, "-m", "lp_sweep.orchestrator.cli", "export", made.kept, "--offline")
    place = ("--out", "out", "--store", made.store.location, "--file", str(made.file))
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(
        [*command, *place],
        cwd=tmp_path,
        env=env,
        stderr=-1,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # `nohup pytest &` ignores some
    ) as done:
        assert done.stderr is not None
        assert any(line.startswith("loading the folder") for line in done.stderr)
        done.send_signal(number)
        assert done.wait(60) == 128 + number
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert not [*(tmp_path / "tmp").glob("lp-sweep-*")]


# -- another network is not published


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_damaged_network_is_not_published(world: World, tmp_path: Path) -> None:
    """Sums show even the lowest bit of a weight, which changes no answer."""
    for place, file in ((-4, "model.safetensors"), (5, "config.json")):
        mine = world.copy(tmp_path / file)
        _flip(mine.weights.with_name(file), place)
        with pytest.raises(ExportError, match=f"is damaged: {file}"):
            mine.export(mine.kept, tmp_path / file / "out")
        assert {path.name for path in (tmp_path / file).iterdir()} <= {"store", "cache"}


def _grow(tensors: dict[str, Any]) -> None:
    name = "bert.encoder.layer.1.output.dense.bias"
    tensors[name] = tensors[name] + np.float32(0.01) * (np.arange(32) == 4)


WITHOUT_SUMS = {
    _grow: "a logit differs from the stored one",
    swap_layers: "a logit differs from the stored one",
    lambda tensors: tensors.pop("classifier.weight"): "1 weights missing",
}


def test_the_answers_show_a_change_where_a_store_has_no_sums(world: World, tmp_path: Path) -> None:
    mine = world.copy(tmp_path)
    (mine.weights.parent / SUMS).unlink()
    whole = mine.weights.read_bytes()
    for change, message in WITHOUT_SUMS.items():
        mine.weights.write_bytes(whole)
        change_weights(mine.weights, change)
        with pytest.raises(ExportError, match=message):
            mine.export(mine.kept, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    mine.weights.write_bytes(whole)
    mine.export(mine.kept, tmp_path / "out")


@pytest.mark.slow
def test_a_folder_that_can_not_be_loaded_is_not_published(made: World, tmp_path: Path) -> None:
    mine = made.copy(tmp_path)
    (mine.weights.parent / SUMS).unlink()
    mine.weights.write_bytes(mine.weights.read_bytes()[:-8])
    with pytest.raises(ExportError, match="can't load the folder in a new process"):
        mine.export(mine.kept, tmp_path / "out")


def scoring(record: dict[str, Any], score: float) -> dict[str, Any]:
    epochs = [
        item | ({"value": score} if item["metric"] == record["metric"] else {})
        for item in record["epoch_metrics"]
    ]
    return record | {"last": score, "epoch_metrics": epochs}


def test_records_that_do_not_agree_are_not_published(world: World, tmp_path: Path) -> None:
    mine = world.copy(tmp_path)
    (record,) = mine.store.read("trials", mine.kept)
    mine.store.put("trials", mine.kept, [scoring(record, record["last"] - 1 / 60)])
    with pytest.raises(ExportError, match="the stored logits give"):
        mine.export(mine.kept, tmp_path / "out")
    rows = mine.store.read("predictions", mine.kept)
    mine.store.delete("predictions", f"{mine.kept}.parquet")
    mine.store.put("predictions", mine.kept, rows[:-1])
    with pytest.raises(ExportError, match="are not of the dev rows"):
        mine.export(mine.kept, tmp_path / "out")


# -- training again


def test_what_was_not_kept_is_trained_again(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    watched = Mock(wraps=trialfolder._told)  # the training ends before a line is due
    monkeypatch.setattr(trialfolder, "_told", watched)
    done = world.export(world.unkept, tmp_path / "out")
    said = capsys.readouterr().err
    assert f"{world.unkept} is trained again: its network was not kept. It took" in said
    assert [call.args[1] for call in watched.call_args_list] == [world.unkept]
    (record,) = world.store.read("trials", world.unkept)
    assert done.retrained
    assert done.score == 100 * record["last"]
    assert not (Path(world.store.location) / "weights" / world.unkept).exists()


def test_how_far_it_is_is_told_once_in_every_tenth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(trialfolder, "say", told.append)
    for module in (underway, trialfolder):
        monkeypatch.setattr(module, "EVERY_SECONDS", 0.001)
    store = Store(tmp_path, create=True)
    with trialfolder._told(store, "t1-a"):
        for step, lines in ((1, 1), (2, 1), (12, 2)):
            far = underway.Underway(step, 100, None, 60.0)._asdict()
            store.put_text(underway.FOLDER, "t1-a.json", json.dumps(far))
            wait_for(lambda lines=lines: len(told) >= lines, "a line")
            time.sleep(0.05)
    assert told == [f"step {step} of 100, 1:00 left" for step in (1, 12)]


@pytest.mark.parametrize(("used", "graphs"), [("graphs", True), ("packed", False)])
def test_it_is_trained_again_with_graphs_only_if_it_had_them(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, used: str, graphs: bool
) -> None:
    asked = []

    def fail(job: dict[str, Any]) -> dict[str, Any]:
        asked.append(job["graphs"])
        return {"status": "failed", "error_type": "bug", "message": "enough"}

    def of_another_device(job: Any, record: dict[str, Any], *rest: Any) -> Any:
        return trained_again(job, {**record, "compute_used": used}, *rest)

    monkeypatch.setattr("lp_sweep.trials.worker.run.execute", fail)
    monkeypatch.setattr(trialfolder, "trained_again", of_another_device)
    with pytest.raises(ExportError, match="bug enough"):
        world.export(world.unkept, tmp_path / "out")
    assert asked == [graphs]


def test_a_seed_whose_network_was_kept_is_named(world: World) -> None:
    """`keep: best` keeps the best seed, and `--best` takes the median one."""
    both = {1: world.unkept, 2: world.kept}
    told = kept_instead(world.store, world.unkept, both)
    assert told is not None
    assert "seed 2 was kept: --seed 2 takes it" in told
    assert kept_instead(world.store, world.kept, both) is None
    assert kept_instead(world.store, world.unkept, {1: world.unkept, 2: "t1-0"}) is None


def test_another_score_is_published_only_where_that_is_accepted(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of a network that was kept without its predictions."""
    mine = world.copy(tmp_path)
    mine.store.delete("predictions", f"{mine.kept}.parquet")
    assert mine.export(mine.kept, tmp_path / "alone").retrained
    assert "no predictions to hold its network against" in capsys.readouterr().err
    (record,) = mine.store.read("trials", mine.unkept)
    mine.store.put("trials", mine.unkept, [scoring(record, record["last"] + 1 / 60)])
    with pytest.raises(ExportError, match=r"it is another network.*--accept-retrained"):
        mine.export(mine.unkept, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = mine.export(mine.unkept, tmp_path / "out", accept_retrained=True)
    assert done.score == 100 * record["last"]
    text = card_of(tmp_path / "out")
    assert f"trained again it scores {100 * record['last']:.2f} accuracy" in text


@pytest.mark.slow
def test_stages_are_trained_again_in_their_order(tmp_path: Path, monkeypatch: Any) -> None:
    in_this_process(monkeypatch)
    file = save_world(tmp_path, procedures=["finetune_then_drop"])
    store = Store(tmp_path / "store", create=True)
    works = {job["start"]: job for job in jobs(file, "k=2", *QUICK)}
    first = works.pop(None)
    (job,) = works.values()
    assert execute({**first, "network": True}, store.location)["status"] == "done"
    assert execute(job, store.location)["status"] == "done"
    world = World(file, store, job["id"], job["id"])
    (record,) = store.read("trials", job["id"])
    done = world.export(job["id"], tmp_path / "out")
    assert done.retrained
    assert done.score == 100 * record["last"]


def taught(folder: Path, distill: str) -> World:
    """A student whose network was not kept; its teacher's was, for hidden states alone."""
    file, store = save_world(folder), Store(folder / "store", create=True)
    overrides = [f"distill={distill}", "strategies=[{name: top, k: [2]}]", *QUICK]
    plan = make_plan(resolve(load_sweep(file, overrides)), WorkHistory.nothing())
    place = {"cache_dir": str(folder / "cache"), "device": "cpu", "threads": 1}
    for work in plan.trials.values():  # teachers first
        job = plan.job(work, network=not work.lesson).to_plain() | place
        assert execute(job, store.location)["status"] == "done"
    [student] = [id_ for id_, work in plan.trials.items() if work.lesson]
    return World(file, store, student, student)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("distill", "words"),
    [
        ("logits", ["T=2 (alpha=0.5)", "| start | pre-trained layers |"]),
        (
            "[{loss: logits+hidden, hidden_weight: 9, start: teacher, temperature: 4, alpha: 0.9}]",
            ["0.1 × labels + 0.9", "T=4 + 9 × hidden states", "fine-tuned full model |"],
        ),
    ],
    ids=["logits", "hidden states, from the teacher's layers"],
)
def test_a_student_is_trained_again_by_its_teacher(
    distill: str, words: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    in_this_process(monkeypatch)
    world = taught(tmp_path, distill)
    (record,) = world.store.read("trials", world.kept)
    done = world.export(world.kept, tmp_path / "out")
    assert (done.retrained, done.score) == (True, 100 * record["last"])
    card = card_of(tmp_path / "out")
    named = f"all layers, trial {record['teacher']} |"
    for expected in ("| teacher | ", named, "| all 4 layers, same recipe and seed |", *words):
        assert expected in card
    shown = show_text(history(world.store, world.kept))
    assert f"{record['distill']}\n" in shown
    assert record["teacher"] in shown
    shutil.rmtree(tmp_path / "store" / "teacher_logits")
    with pytest.raises(ExportError, match=r"logits of its teacher, t1-.*keep: all"):
        world.export(world.kept, tmp_path / "other")


# -- what can't be


def test_a_network_without_feed_forwards_is_refused(world: World, tmp_path: Path) -> None:
    mine = world.copy(tmp_path)
    (record,) = mine.store.read("trials", mine.kept)
    mine.store.put("trials", mine.kept, [record | {"removed_feed_forwards": [2]}])
    with pytest.raises(SpecError, match=r"no feed-forward in layers 2.*--as onnx"):
        mine.export(mine.kept, tmp_path / "out")


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def _one(file: Path, folder: Path, *overrides: str) -> World:
    """A world of one kept trial."""
    store = Store(folder / "store", create=True)
    job = jobs(file, *overrides, "recipe.epochs=1", cache=folder / "cache")[0]
    assert execute({**job, "keep": "all"}, store.location)["status"] == "done"
    return World(file, store, job["id"], job["id"])


def test_a_network_with_a_bridge_is_one_of_plain_transformers(world: World, tmp_path: Path) -> None:
    """It was not kept, so the map is fitted again; the folder's answers are the record's."""
    bridged = (job for job in jobs(Path(world.file), "k=2", "bridge=linear", *QUICK))
    job = next(job for job in bridged if job["spec"].get("bridge"))
    assert execute(job, world.store.location)["status"] == "done"
    assert world.export(job["id"], tmp_path / "out").retrained
    assert "in place of dropped layers | linear map" in card_of(tmp_path / "out")


def _dev_rows(world: World) -> list[dict[str, str]]:
    with (Path(world.file).parent / "dev.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_texts_of_dev_rows_are_looked_for_as_the_environment_says(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`report --dev-rows`: without a network no hub is asked."""
    asked: list[bool] = []
    monkeypatch.setenv("LP_SWEEP_OFFLINE", "1")
    monkeypatch.setattr(service, "_sweep", lambda options, *rest: asked.append(options.offline))
    service.dev_texts(made.store, made.kept)
    assert asked == [True]


# -- what a user must know before taking it


def test_a_network_that_did_not_learn_is_exported_with_a_warning(
    world: World, tmp_path: Path, capsys: Any
) -> None:
    """One that is named by its identifier; `--best` warns as well."""
    mine = world.copy(tmp_path)
    (record,) = mine.store.read("trials", mine.kept)
    for lead, warned in ((0.0, True), (0.01, False)):
        mine.store.put("trials", mine.kept, [record | {"majority": record["last"] - lead}])
        mine.export(mine.kept, tmp_path / "out", force=True)
        card = card_of(tmp_path / "out")
        for text in (capsys.readouterr().err, card):
            assert ("no better than guessing" in text) == warned


SECRET = "s3cret-of-a-later-version"


def test_a_column_of_a_later_version_is_not_published(
    world: World, tmp_path: Path, monkeypatch: Any
) -> None:
    """Published files are listed: no other column, version or file."""
    monkeypatch.setitem(TABLES, "trials", TABLES["trials"].append(pa.field("owner", pa.string())))
    mine = world.copy(tmp_path)
    (record,) = mine.store.read("trials", mine.kept)
    versions = [*record["versions"], ("login", SECRET)]
    mine.store.put("trials", mine.kept, [record | {"owner": SECRET, "versions": versions}])
    (mine.weights.parent / "optimizer.json").write_text(SECRET)
    (read,) = mine.store.read("trials", mine.kept)
    assert read["owner"] == SECRET, "a program that knows the column"
    mine.export(mine.kept, tmp_path / "out")
    found = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(found) > 5
    assert not [path.name for path in found if SECRET.encode() in path.read_bytes()]
    about = json.loads((tmp_path / "out" / "lp_sweep.json").read_text())["record"]
    private = {"host", "command", "spec", "model", "peak_memory_bytes"}
    assert about.keys() | private == set(TRIALS.names)
    assert about["versions"] == dict(record["versions"])
    assert SECRET not in repr(mirrored_run("toy", read, []))
    with open_views(mine.store) as catalog:
        assert SECRET in str(catalog.query("SELECT owner FROM trials").to_pylist())
        assert SECRET not in str(sheets(catalog, "sources"))
        assert SECRET not in str([TABLES_SHOWN[name](catalog) for name in ("tasks", "setups")])


# -- before anything is loaded or trained


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"out": "taken"}, "taken exists"),
        ({"out": "taken/file/out"}, "can't write .*out: .*Name another folder"),
        ({"trial": "t1-0000"}, "nothing on t1-0000"),
        ({"trial": "t1-"}, r"is the beginning of \d identifiers"),
        ({"store": "nowhere"}, "no store at"),
        ({"file": None}, "data of task 'mood'.*--file"),
        ({"file": "quickstart"}, "data of task 'mood'.*known by its content.*--file"),
        ({"file": "missing.yaml"}, "missing.yaml"),
    ],
    ids=["out", "unwritable", "trial", "two trials", "store", "data", "other data", "file"],
)
def test_what_can_be_known_before_is_said_before(
    made: World, tmp_path: Path, monkeypatch: Any, wrong: dict[str, Any], said: str
) -> None:
    def too_late(*_: Any) -> None:
        raise AssertionError("a network was looked for")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trialfolder, "from_store", too_late)
    monkeypatch.setattr(trialfolder, "_device", too_late)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    options = {"trial": made.unkept, "out": tmp_path / "new" / "folder"} | wrong
    with pytest.raises(LpSweepError, match=re.compile(said, re.DOTALL)):
        made.export(options.pop("trial"), Path(options.pop("out")), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"], "nothing is left behind"
