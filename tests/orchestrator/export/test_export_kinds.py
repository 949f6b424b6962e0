"""`lp-sweep export` of several labels, rankings and tags: plain transformers gives the answers that
were scored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from huggingface_hub import ModelCard
from transformers import AutoTokenizer, pipeline

from lp_sweep.storage.store import Store
from lp_sweep.trials.model.plainload import load, logits_of
from tests.support.everyday import few
from tests.support.exportworld import World, in_this_process, two_networks
from tests.support.kindworlds import (
    embedding_world,
    in_order,
    label_world,
    ranking_world,
    search_world,
    tagged,
    token_world,
)
from tests.support.plain_jobs import execute
from tests.support.program import python
from tests.support.toyworld import jobs, save_world

Worlds = Callable[[str], World]
LABELS, TAGS = ("bad", "good", "none"), ("B-x", "I-x", "B-y", "I-y", "O")
# the name of the task and of the metric on the hub, that of the metric here, words of the card
KINDS = {
    "half": ("text-classification", "f1", "micro_f1", "(sigmoid) for each of bad, good, none"),
    "tuned": ("text-classification", "f1", "micro_f1", "threshold of each label was chosen"),
    "bce": ("text-ranking", "ndcg@10", "ndcg@10", "the more relevant is the passage"),
    "listwise": ("text-ranking", "ndcg@10", "ndcg@10", "the more relevant is the passage"),
    "tags": ("token-classification", "f1", "entity_f1", "at its first token, one of B-x, I-x"),
}


def _file(name: str, folder: Path) -> Path:
    if name in ("half", "tuned"):
        return label_world(folder, {"tune_thresholds": name == "tuned"})
    if name == "tags":  # which reads 9 tokens: not every sentence whole
        return token_world(folder, recipe={"max_length": 9, "epochs": 3, "batch_size": 16})
    file = ranking_world(folder, {"loss": name})
    table = pq.read_table(folder / "dev.parquet")  # candidates of a query that are apart
    table = table.take(np.random.default_rng(0).permutation(len(table)))
    pq.write_table(table, folder / "dev.parquet")
    return file


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Networks of four layers and of two, by the name in KINDS."""
    made: dict[str, World] = {}

    def of(name: str) -> World:
        if name not in made:
            file = _file(name, tmp_path_factory.mktemp(name) / "world")
            made[name] = two_networks(file, in_order(file))
        return made[name]

    return of


def exported(made: World, out: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The export's messages, the stored predictions, and the folder's config."""
    done = made.export(made.kept, out)
    assert done.interval is not None
    stored = sorted(made.store.read("predictions", made.kept), key=lambda row: row["example"])
    return done, stored, json.loads((out / "config.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tuned", "half"])
def test_a_pipeline_gives_the_labels_that_were_scored(
    worlds: Worlds, name: str, tmp_path: Path
) -> None:
    made, out = worlds(name), tmp_path / "out"
    done, stored, config = exported(made, out)
    assert (done.verified.examples, done.verified.other_labels) == (len(stored), 0)
    label = pipeline("text-classification", str(out), top_k=None, truncation=True, max_length=32)
    texts = pq.read_table(Path(made.file).parent / "dev.parquet")["text"].to_pylist()
    found = [{each["label"]: each["score"] for each in row} for row in label(texts)]
    scores = np.array([[row[label] for label in LABELS] for row in found])
    logits = np.array([row["scores"] for row in stored])
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert config["problem_type"] == "multi_label_classification"
    assert [config["id2label"][str(i)] for i in range(3)] == [*LABELS]


def test_a_pipeline_gives_the_tags_that_were_scored(worlds: Worlds, tmp_path: Path) -> None:
    out, sentences = tmp_path / "out", [row["tokens"] for row in tagged(40, 2)]
    done, stored, config = exported(worlds("tags"), out)
    assert done.verified.examples == sum(min(len(words), 7) for words in sentences)
    assert done.verified.other_labels == 0
    tag = pipeline("token-classification", str(out), ignore_labels=[])
    for row, words in zip(stored, sentences, strict=True):
        logits = np.reshape(row["scores"], (len(words), -1))[:7]
        found = [each["entity"] for each in tag(" ".join(words))]
        assert found == [TAGS[each] for each in logits.argmax(axis=1)]
    assert config["architectures"] == ["BertForTokenClassification"]
    assert [config["id2label"][str(i)] for i in range(5)] == [*TAGS]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bce", "listwise"])
def test_the_folder_ranks_as_in_the_sweep(worlds: Worlds, name: str, tmp_path: Path) -> None:
    made, out = worlds(name), tmp_path / "out"
    done, stored, config = exported(made, out)
    assert done.verified.score == pytest.approx(done.verified.recorded_score)
    model, missing = load(out, "AutoModelForSequenceClassification")
    assert not missing
    table = pq.read_table(Path(made.file).parent / "dev.parquet").to_pydict()
    texts = [table["query"], table["passage"]]
    logits = logits_of(model, AutoTokenizer.from_pretrained(out), texts, 32)[:, 0]
    of_query: dict[int, list[float]] = {}
    for query, logit in zip(table["id"], logits.tolist(), strict=True):
        of_query.setdefault(query, []).append(logit)
    for found, row in zip(of_query.values(), stored, strict=True):
        assert found == pytest.approx(row["scores"], abs=1e-5)
    assert len(config["id2label"]) == 1
    after = config["sentence_transformers"]["activation_fn"].rpartition(".")[2]
    assert after == ("Identity" if name == "listwise" else "Sigmoid")
    assert json.loads((out / "tokenizer_config.json").read_text())["model_max_length"] == 32


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_the_card_its_code_and_another_network(worlds: Worlds, name: str, tmp_path: Path) -> None:
    made, out = worlds(name), tmp_path / "out"
    made.export(made.kept, out)
    card = ModelCard.load(out / "README.md")
    (result,) = card.data.eval_results
    found = (card.data.pipeline_tag, result.metric_type, result.metric_name)
    assert found == (result.task_type, *KINDS[name][1:3]) == KINDS[name][:3]
    assert KINDS[name][3] in card.text
    assert ("threshold of each label was chosen" in card.text) == (name == "tuned")
    codes = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    ranks = card.data.library_name == "sentence-transformers"
    assert (ranks, len(codes)) == ((True, 2) if name in ("bce", "listwise") else (False, 1))
    for code in codes:
        if "sentence_transformers" not in code or find_spec("sentence_transformers"):
            python(code, cwd=out)
    made.refuses_swapped_layers(tmp_path / "other")


SIDED = {
    "labels": label_world,
    "rankings": ranking_world,
    "tags": token_world,
    "vectors": embedding_world,
    "search": search_world,
    "classes": save_world,
}
SHORT = {"epochs": 1, "max_length": 24, "limit_train": 48, "batch_size": 16, "compute": "reference"}


def pad_left(model: Path) -> None:
    path = model / "tokenizer_config.json"
    told = json.loads(path.read_text(encoding="utf-8")) | {"padding_side": "left"}
    path.write_text(json.dumps(told), encoding="utf-8")


@pytest.mark.parametrize("kind", few([*SIDED], 2))
def test_a_tokenizer_that_pads_left_changes_no_answer(kind: str, tmp_path: Path) -> None:
    """BERT's first token and positions would be padding; right of the text it changes nothing."""
    file = SIDED[kind](tmp_path / "world", recipe=SHORT, strategies=[{"name": "top", "k": [0]}])
    pad_left(file.parent / "model")
    todo = [job for job in jobs(file) if job["kind"] == "trial"]
    store = Store(tmp_path / "store", create=True)
    assert execute({**todo[0], "keep": "all"}, store.location)["status"] == "done"
    made = World(file, store, todo[0]["id"], "")
    done, _, _ = exported(made, tmp_path / "out")
    assert done.verified.score == pytest.approx(done.verified.recorded_score)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").padding_side == "right"
