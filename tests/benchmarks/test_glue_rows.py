"""A benchmark of training steps does what a trial does: its words, and its deterministic mode."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.glue_rows import LENGTH, encoded_task, words_of
from tests.support.tiny import tiny_tokenizer
from tests.support.toyworld import save_model

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


def test_a_step_is_timed_as_in_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in ("OMP_NUM_THREADS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")  # the benchmark sets them; this restores them
    baseline = ModuleType("hf_trainer")  # the real one needs a package that only benchmarks have
    baseline.step_seconds = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hf_trainer", baseline)
    trial_cpu = importlib.import_module("trial_cpu")
    monkeypatch.setattr(trial_cpu, "finetune", lambda *_: modes.append(deterministic()))
    modes: list[bool] = []
    deterministic = torch.are_deterministic_algorithms_enabled
    rows = (str(save_model(tmp_path)), [["good w1", "bad w2"]], np.array([0, 1]), 2)
    for wanted in (True, False):
        trial_cpu.lp_sweep(*rows, np.arange(8), trial_cpu.CpuClock(), deterministic=wanted)
    assert modes == [True, False]
    assert not deterministic()
