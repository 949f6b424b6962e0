"""A tiny real BERT, its tokenizer, data that it can learn, and a sweep over them. Not a test."""

from __future__ import annotations

import csv
import functools
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import BertConfig, BertForSequenceClassification

from lp_sweep.orchestrator.inputs.resolve import resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Work
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.trials.spec.specs import SpeedSpec, TrialSpec
from tests.support.tiny import tiny_tokenizer

GOOD, BAD, PLAIN = ["good", "fine"], ["bad", "poor"], [f"w{i}" for i in range(20)]
_SMALL = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *PLAIN]


def save_model(folder: Path, depth: int = 4, **settings: Any) -> Path:
    """A BERT of `depth` layers, random weights of a fixed seed, with a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _model_files(depth, **settings).items():
        (folder / name).write_bytes(content)
    return folder


@functools.cache
def _model_files(depth: int, **settings: Any) -> dict[str, bytes]:
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as made:
        torch.manual_seed(3)
        config = {"vocab_size": len(WORDS), "num_hidden_layers": depth, **_SMALL, **settings}
        BertForSequenceClassification(BertConfig(**config)).bert.save_pretrained(made)
        tiny_tokenizer(WORDS).save_pretrained(made)
        return {path.name: path.read_bytes() for path in Path(made).iterdir()}


def rows(count: int, seed: int) -> list[dict[str, str]]:
    """One telling word among plain ones: positive or negative."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        positive = draw.random() < 0.5
        words = draw.choices(PLAIN, k=draw.randint(2, 12))
        words.insert(draw.randrange(len(words)), draw.choice(GOOD if positive else BAD))
        made.append({"text": " ".join(words), "label": "pos" if positive else "neg"})
    return made


def save_data(folder: Path, train: int = 256, dev: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 1), ("dev", dev, 2)):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, ["text", "label"])
            writer.writeheader()
            writer.writerows(rows(count, seed))
    return folder


RECIPE = {"learning_rate": 2e-3, "batch_size": 16, "epochs": 3, "max_length": 32}


def sweep_content(**changes: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "toy",
        "models": ["./model"],
        "tasks": [{"name": "mood", "train": "train.csv", "dev": "dev.csv", "text": ["text"]}],
        "seeds": [1],
        "strategies": [{"name": "top", "k": [0, 2]}],
        "recipe": RECIPE,
    } | changes


def save_world(folder: Path, **changes: Any) -> Path:
    """Model, data and sweep file in one folder; gives the sweep file."""
    save_model(folder / "model")
    save_data(folder)
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(sweep_content(**changes)), encoding="utf-8")
    return path


def _is_full(work: Work) -> bool:
    spec, depth = work.spec, work.model.depth
    kept = isinstance(spec, TrialSpec | SpeedSpec) and len(spec.kept_layers) == depth
    return kept and not spec.removed_feed_forwards


def jobs(sweep_file: Path, *overrides: str, cache: Path | None = None) -> list[dict[str, Any]]:
    plan = make_plan(resolve(load_sweep(sweep_file, overrides)), WorkHistory.nothing())
    place = {"cache_dir": str(cache or sweep_file.parent / "cache"), "device": "cpu", "threads": 1}
    works = (*plan.trials.values(), *plan.profiles.values(), *plan.speeds.values())
    if any("(K=0) is added" in note for note in plan.sweep.notes):  # only what the file lists
        needed = plan.needed_networks()
        works = tuple(work for work in works if work.id in needed or not _is_full(work))
    return [{**work.job().to_plain(), **place} for work in works]
