"""A plan's account of a task's rows, against rows that were counted by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lp_sweep.analysis.statistics.estimates import smallest_loss
from lp_sweep.orchestrator.inputs.data import TaskData, looked_at
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.options import Request
from lp_sweep.orchestrator.service.plan import plan
from lp_sweep.trials.data.datasource import load_task
from lp_sweep.trials.data.encode import load_tokenizer
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.spec.specs import Recipe, TaskDefinition

TOY = Path(__file__).parents[3] / "quickstart" / "model"
MODEL = ModelInput("toy", str(TOY), None, 12, "sha256:toy")
RECIPE = Recipe(epochs=3, batch_size=4, max_length=8)
LONG = "the food was good and the people were kind and the room was warm"


def look(
    folder: Path,
    train: Sequence[tuple[str, object]],
    dev: Sequence[tuple[str, object]],
    metric: str = "accuracy",
    positive: str = "",
    models: Sequence[ModelInput] = (MODEL,),
) -> TaskData:
    files = {}
    for name, rows in (("train", train), ("dev", dev)):
        files[name] = str(folder / f"{name}.jsonl")
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        Path(files[name]).write_text("\n".join(lines), encoding="utf-8")
    kind = "regression" if metric == "pearson" else "classification"
    definition = TaskDefinition(
        text_columns=("text",), label_column="label", kind=kind, metric=metric, positive=positive
    )
    loaded = load_task(definition, TaskSource(files=files))
    return looked_at("own", loaded, RECIPE, models)


def test_rows_classes_and_steps(tmp_path: Path) -> None:
    train = [("good", "yes")] * 7 + [("bad", "no")] * 3
    data = look(tmp_path, train, [("good", "no"), ("fine", "yes"), ("bad", "no"), ("bad", "no")])
    assert (data.train_rows, data.dev_rows) == (10, 4)
    assert list(data.classes.items()) == [("yes", 7), ("no", 3)]  # the largest first
    assert data.majority == 75  # always "no", though most train rows are "yes"
    assert data.steps == 9  # of 4, 4 and 2 rows, three times
    text = "\n".join(data.lines())
    assert "10 train rows, 4 dev rows" in text
    assert "'yes' 70%, 'no' 30%" in text
    assert "9 optimiser steps" in text
    assert "34 epochs give 102" in text
    assert "cut" not in text
    assert "unknown" not in text

    foreign = look(tmp_path, [("食物好", "yes"), ("good", "no"), ("bad", "no")], train[:2])
    assert foreign.unknown == 1 / 3  # special tokens don't count
    assert "33% of the tokens are unknown" in "\n".join(foreign.lines())


def test_texts_that_are_cut_as_the_models_own_tokenizer_counts(tmp_path: Path) -> None:
    train = [("good food", "yes"), (LONG, "no"), ("bad", "no"), (f"{LONG} {LONG}", "yes")]
    data = look(tmp_path, train, train[:2])
    tokenizer = load_tokenizer(TOY)
    lengths = [len(tokenizer(text)["input_ids"]) for text, _ in train]
    assert data.cut == sum(length > RECIPE.max_length for length in lengths) / 4 == 0.5
    assert data.tokens == sum(min(length, RECIPE.max_length) for length in lengths) / 4
    assert "50% of the texts are cut at max_length 8" in "\n".join(data.lines())
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")  # a trial says what is wrong
    torn = MODEL._replace(path=str(tmp_path))
    assert look(tmp_path, train, train[:2], models=[torn]).cut is None


def test_an_embedding_task_reads_each_text_of_a_pair_alone(tmp_path: Path) -> None:
    short = "the food was good"  # four tokens and two special ones; two texts joined are eleven
    rows = [json.dumps({"text": short, "other": short, "score": score}) for score in (0.2, 0.8)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    files = {name: str(tmp_path / f"{name}.jsonl") for name in ("train", "dev")}
    for kind, cut in (("embedding", 0.0), ("regression", 1.0)):
        definition = TaskDefinition(
            text_columns=("text", "other"), label_column="score", kind=kind, metric="spearman"
        )
        loaded = load_task(definition, TaskSource(files=files))
        assert looked_at("own", loaded, RECIPE, [MODEL]).cut == cut


def test_rows_that_a_metric_scores(tmp_path: Path) -> None:
    """F1 scores the positive class alone; where classes weigh alike the rare one decides:
    2² / (1/10 + 1/90) = 36 rows. Pairs of a correlation are worth up to four rows each."""
    dev = [(f"a{i}", "fraud") for i in range(10)] + [(f"b{i}", "ok") for i in range(90)]
    for metric, rows in (("accuracy", 100), ("f1", 10), ("macro_f1", 36), ("mcc", 9)):
        data = look(tmp_path, dev[8:12], dev, metric, "fraud" if metric == "f1" else "")
        assert data.shows == pytest.approx({n: smallest_loss(rows, n) for n in (1, 3, 5)})
    pairs = [(f"a{i}", i / 2) for i in range(100)]
    data = look(tmp_path, pairs, pairs, "pearson")
    assert data.classes == {}
    assert data.shows == pytest.approx({n: smallest_loss(200, n) for n in (1, 3, 5)})
    text = "\n".join(data.lines())
    assert "Pearson" in text
    assert f"{data.shows[3]:.1f} with 3" in text


def test_a_few_dev_rows_show_no_loss(tmp_path: Path) -> None:
    rows = [("good", "yes"), ("bad", "no")]
    data = look(tmp_path, rows, rows)
    assert set(data.shows.values()) == {None}
    assert "likely to show: none with 1 seed" in "\n".join(data.lines())


def test_entities_and_queries_are_what_a_score_is_of(tmp_path: Path) -> None:
    tags = ["B-a", "I-a", "O", "B-b"]
    words = pa.table({"words": [["Ada", "B.", "ran", "Ray"]] * 6, "tags": [tags] * 6})
    pq.write_table(words, tmp_path / "words.parquet")
    asked = [f"q{i // 2}" for i in range(8)]
    texts = [f"text {i}" for i in range(8)]
    columns = {"q": asked, "text": texts, "of": asked, "label": [0, 1] * 4}
    pq.write_table(pa.table(columns), tmp_path / "queries.parquet")
    tagging = TaskDefinition(
        text_columns=("words",), label_column="tags", kind="tokens", metric="entity_f1"
    )
    ranking = TaskDefinition(
        text_columns=("q", "text"), kind="ranking", metric="ndcg@10", group="of"
    )
    for definition, name, rows in ((tagging, "words", 12), (ranking, "queries", 10)):
        files = dict.fromkeys(("train", "dev"), str(tmp_path / f"{name}.parquet"))
        loaded = load_task(definition, TaskSource(files=files))
        shows = looked_at("own", loaded, RECIPE, ()).shows
        assert shows == pytest.approx({n: smallest_loss(rows, n) for n in (1, 3, 5)})


def test_the_plan_has_it(tmp_path: Path) -> None:
    look(tmp_path, [(f"good {i}", "yes") for i in range(9)] + [("bad", "no")] * 2, [("x", "yes")])
    (tmp_path / "sweep.yaml").write_text(
        f"""
schema_version: 1
name: own
models: [{TOY}]
tasks: [{{name: own, train: train.jsonl, dev: dev.jsonl, text: text, label: label}}]
seeds: [1]
strategies: [{{name: top, k: [0, 6]}}]
recipe: {{epochs: 3, batch_size: 4, max_length: 8}}
""",
        encoding="utf-8",
    )
    answer = plan(Request(str(tmp_path / "sweep.yaml"), store=str(tmp_path / "store")))
    [data] = answer.to_dict()["data"]
    assert (data["task"], data["train_rows"], data["steps"]) == ("own", 11, 9)
    assert "data of own\n  11 train rows" in answer.text()
