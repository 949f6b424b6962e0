"""The shipped quickstart data and model are what the generator says."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.toy_language import build, grammar

QUICKSTART = build.QUICKSTART
TASKS = build.SHIPPED


def shipped(task: str, part: str) -> list[grammar.Row]:
    rows: list[grammar.Row] = pq.read_table(file_of(task, part)).to_pylist()
    return rows


def file_of(task: str, part: str) -> Path:
    return QUICKSTART / "data" / task / f"{part}.parquet"


def texts_of(task: str) -> list[tuple[str, ...]]:
    return grammar.texts([row for part in grammar.Split._fields for row in shipped(task, part)])


@pytest.mark.slow  # what is shipped changes only with the generator
@pytest.mark.parametrize("task", TASKS)
def test_shipped_rows_are_the_generated_rows(task: str) -> None:
    split = grammar.task_rows(task, build.DATA_SEED, *build.SIZES[task])
    for part, rows in split._asdict().items():
        table = pq.read_table(file_of(task, part))
        assert table.to_pylist() == rows
        schema = build.to_table(task, table.to_pylist()).schema
        assert table.schema.equals(schema, check_metadata=True)
    assert grammar.task_rows(task, 4, 40, 20) != grammar.task_rows(task, 3, 40, 20)


@pytest.mark.parametrize("task", TASKS)
def test_words_are_known_and_tell_nothing_and_no_text_occurs_twice(task: str) -> None:
    """So train and validation are disjoint."""
    telling, known, texts = set(grammar.telling_words()), {*grammar.vocabulary()}, texts_of(task)
    words = {word for text in texts for word in " ".join(text).split()}
    assert words <= known
    assert not words & telling
    assert len(set(texts)) == len(texts) == sum(build.SIZES[task])


def test_the_model_has_twelve_layers_and_a_tokenizer_that_fits_every_row() -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = QUICKSTART / "model"
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == names
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, use_safetensors=True
    )
    assert model.config.num_hidden_layers == len(model.bert.encoder.layer) == 12
    assert all(torch.isfinite(p).all() for p in model.parameters())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.is_fast
    assert tokenizer.get_vocab() == build.make_tokenizer().get_vocab()
    for task in TASKS:
        columns = list(zip(*texts_of(task), strict=True))
        batch = tokenizer(*(list(column) for column in columns))
        assert all(tokenizer.unk_token_id not in ids for ids in batch["input_ids"])
        assert max(map(len, batch["input_ids"])) <= 32
        assert {t for types in batch["token_type_ids"] for t in types} == set(range(len(columns)))


def test_everything_shipped_is_small() -> None:
    paths = [path for name in ("model", "data") for path in (QUICKSTART / name).rglob("*")]
    assert sum(path.stat().st_size for path in paths if path.is_file()) < 5_000_000
