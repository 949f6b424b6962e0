"""What a benchmark trains on has the table of words of the whole task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.glue_rows import LENGTH, encoded_task, words_of
from tests.tiny import tiny_tokenizer

WORDS = [f"word{number}" for number in range(300)]


def test_the_words_are_of_the_whole_task_and_not_of_the_rows(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    splits = {"train": WORDS[:200], "validation": WORDS[200:290], "test": WORDS[290:]}
    for split, texts in splits.items():
        table = pa.table({"sentence": texts, "label": [0] * len(texts)})
        pq.write_table(table, tmp_path / "sst2" / f"{split}.parquet")
    tokenizer = tiny_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
    words = words_of(tmp_path, "sst2", tokenizer)
    expected = {token for text in WORDS[:290] for token in tokenizer(text)["input_ids"]}
    assert set(words) == expected
    task = encoded_task(tokenizer, [WORDS[:2]], np.array([0, 1]), 2, words)
    assert (len(task.train), task.train.token_count) == (2, 6)
    assert set(task.dev["dev"].tokens) == expected, "a network is cut to these"
    assert task.dev["dev"].lengths.max() == LENGTH, "as long as the network takes"
