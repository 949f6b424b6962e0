"""The shipped quickstart data and model are what the generator says."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from statistics import mean, pstdev

import pyarrow.parquet as pq
import pytest

from benchmarks.toy_language import build, grammar

QUICKSTART = build.QUICKSTART
TASKS = tuple(grammar.ROWS)
PARTS = {"train": build.N_TRAIN, "validation": build.N_VALIDATION}
generated = pytest.mark.slow  # what is shipped changes only with the generator


def shipped(task: str, part: str) -> list[grammar.Row]:
    rows: list[grammar.Row] = pq.read_table(
        QUICKSTART / "data" / task / f"{part}.parquet"
    ).to_pylist()
    return rows


def shipped_rows(task: str) -> list[grammar.Row]:
    return [row for part in PARTS for row in shipped(task, part)]


@generated
@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(task: str) -> None:
    first = grammar.task_rows(task, 3, 40, 20)
    assert grammar.task_rows(task, 3, 40, 20) == first
    assert grammar.task_rows(task, 4, 40, 20) != first


@generated
def test_pretraining_text_is_deterministic_and_leaves_out_validation_texts() -> None:
    held_out = build.held_out()
    drawn = list(islice(grammar.passages(build.RECIPE.seed, held_out), 4_000))
    assert drawn == list(islice(grammar.passages(build.RECIPE.seed, held_out), 4_000))
    telling = set(grammar.telling_words())
    for passage in drawn:
        assert (passage.first,) not in held_out
        plain = " ".join(w for w in (passage.second or "").split() if w not in telling)
        assert (passage.first, plain) not in held_out


@generated
def test_the_vocabulary_holds_every_word_of_rows_and_pretraining_text() -> None:
    known = set(grammar.vocabulary())
    for passage in islice(grammar.passages(0), 4_000):
        assert known.issuperset(f"{passage.first} {passage.second or ''}".split()), passage
    for task in TASKS:
        for text in grammar.texts(shipped_rows(task)):
            assert known.issuperset(" ".join(text).split()), text


@generated
def test_telling_words_stay_out_of_the_tasks() -> None:
    telling = set(grammar.telling_words())
    for task in TASKS:
        for text in grammar.texts(shipped_rows(task)):
            assert telling.isdisjoint(" ".join(text).split()), text


@generated
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("task", TASKS)
def test_shipped_rows_are_the_generated_rows(task: str, part: str) -> None:
    split = grammar.task_rows(task, build.DATA_SEED, build.N_TRAIN, build.N_VALIDATION)
    table = pq.read_table(QUICKSTART / "data" / task / f"{part}.parquet")
    assert table.to_pylist() == getattr(split, part)
    assert table.num_rows == PARTS[part]
    assert table.schema.equals(build.to_table(task, table.to_pylist()).schema, check_metadata=True)


@pytest.mark.parametrize("task", TASKS)
def test_no_text_occurs_twice_so_the_parts_are_disjoint(task: str) -> None:
    texts = grammar.texts(shipped_rows(task))
    assert len(set(texts)) == len(texts) == sum(PARTS.values())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("task", ["toy-sentiment", "toy-entailment"])
def test_classes_are_balanced_and_named_in_the_file(task: str, part: str) -> None:
    counts = Counter(row["label"] for row in shipped(task, part))
    assert max(counts.values()) - min(counts.values()) <= 1
    schema = pq.read_schema(QUICKSTART / "data" / task / f"{part}.parquet")
    assert schema.field("label").type == "int64"
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert tuple(features["label"]["names"]) == grammar.CLASSES[task]
    assert sorted(counts) == list(range(len(features["label"]["names"])))


@pytest.mark.parametrize("part", PARTS)
def test_similarity_scores_spread_over_the_scale(part: str) -> None:
    scores = [float(row["label"]) for row in shipped("toy-similarity", part)]
    assert min(scores) >= 0
    assert max(scores) == 5
    assert 2.5 < mean(scores) < 3.5
    assert pstdev(scores) > 1.0
    schema = pq.read_schema(QUICKSTART / "data" / "toy-similarity" / f"{part}.parquet")
    assert schema.field("label").type == "float"


# --- the model folder ---------------------------------------------------------------------------


def test_the_model_folder_holds_safetensors_and_twelve_layers() -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = QUICKSTART / "model"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, use_safetensors=True
    )
    assert model.config.num_hidden_layers == len(model.bert.encoder.layer) == 12
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_shipped_tokenizer_knows_every_word_and_fits_every_row() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(QUICKSTART / "model")
    assert tokenizer.is_fast
    assert tokenizer.get_vocab() == build.make_tokenizer().get_vocab()
    for task in TASKS:
        columns = list(zip(*grammar.texts(shipped_rows(task)), strict=True))
        batch = tokenizer(*(list(column) for column in columns))
        assert all(tokenizer.unk_token_id not in ids for ids in batch["input_ids"])
        assert max(map(len, batch["input_ids"])) <= 32
        assert {t for types in batch["token_type_ids"] for t in types} == set(range(len(columns)))


def test_everything_shipped_is_small() -> None:
    shipped_bytes = sum(
        path.stat().st_size
        for folder in ("model", "data")
        for path in (QUICKSTART / folder).rglob("*")
        if path.is_file()
    )
    assert shipped_bytes < 5_000_000
