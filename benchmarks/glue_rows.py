"""Rows of a GLUE task for a benchmark, and the words of the whole task. Not a benchmark."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from lp_sweep.trials.data.batches import EncodedSplit, EncodedTask

LENGTH = 128  # at most this many tokens per row
TEXTS = {
    "sst2": ["sentence"],
    "qqp": ["question1", "question2"],
    "stsb": ["sentence1", "sentence2"],
    "mnli": ["premise", "hypothesis"],
    "mrpc": ["sentence1", "sentence2"],
    "qnli": ["question", "sentence"],
    "rte": ["sentence1", "sentence2"],
}


def rows_of(folder: Path, task: str, count: int) -> tuple[list[list[str]], np.ndarray]:
    """Texts by column, and labels, of random rows of the train set."""
    table = pq.read_table(sorted((folder / task).glob("train*.parquet"))[0])
    chosen = np.sort(np.random.default_rng(0).permutation(table.num_rows)[:count])
    table = table.take(chosen)
    return [table[name].to_pylist() for name in TEXTS[task]], np.asarray(table["label"])


def words_of(folder: Path, task: str, tokenizer: Any) -> np.ndarray:
    """(R,) int32, ascending: every token of the whole task, train and dev."""
    named: set[int] = set()
    for split in ("train", "validation"):
        for file in sorted((folder / task).glob(f"{split}*.parquet")):
            for some in pq.ParquetFile(file).iter_batches(10_000):
                texts = [some[name].to_pylist() for name in TEXTS[task]]
                encoded = tokenizer(*texts, max_length=LENGTH, truncation=True)
                named.update(chain.from_iterable(encoded["input_ids"]))
    return np.array(sorted(named), np.int32)


def encoded_task(
    tokenizer: Any, texts: Any, labels: Any, classes: int, words: np.ndarray
) -> EncodedTask:
    """The rows as `train`. `dev` is made up, and no step reads it. Its rows have each word once, so
    the network's word table is cut to these words."""
    encoded = tokenizer(*texts, max_length=LENGTH, truncation=True)
    ends = np.cumsum([0, *map(len, encoded["input_ids"])])
    types = encoded.get("token_type_ids")
    train = EncodedSplit(
        tokens=np.concatenate(encoded["input_ids"]).astype(np.int32),
        offsets=ends.astype(np.int64),
        token_types=None if types is None else np.concatenate(types).astype(np.uint8),
        labels=labels.astype(np.float32 if classes == 1 else np.int64),
    )
    starts = np.arange(0, len(words), LENGTH)
    dev = EncodedSplit(
        tokens=words,
        offsets=np.append(starts, len(words)),
        token_types=None if types is None else np.zeros(len(words), np.uint8),
        labels=np.zeros(len(starts), train.labels.dtype),
    )
    return EncodedTask(
        train=train, dev={"dev": dev}, label_names=(), num_labels=classes, from_cache=True
    )
