"""Fine-tunes the quickstart encoder with layers removed, and prints the loss of score.

    python -m benchmarks.quickstart_calibration

It uses plain PyTorch and transformers on one CPU thread, and nothing from lp_sweep. So it is an
independent check of the toy tasks. It prints the tables of quickstart/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as hf_logging

QUICKSTART = Path(__file__).resolve().parent.parent / "quickstart"
TASKS = ("toy-sentiment", "toy-similarity")
Rows = list[dict[str, Any]]


def kept_layers(strategy: str, dropped: int, depth: int) -> list[int]:
    """0-based positions of the layers that stay."""
    return list(range(depth - dropped) if strategy == "top" else range(dropped, depth))


def load_pruned(model_dir: Path, kept: list[int], n_labels: int, seed: int) -> torch.nn.Module:
    """The encoder with only `kept` layers; the head's initial weights depend only on the seed."""
    model = AutoModelForSequenceClassification.from_pretrained(
        model_dir, num_labels=n_labels, use_safetensors=True
    )
    model.bert.encoder.layer = torch.nn.ModuleList(model.bert.encoder.layer[i] for i in kept)
    model.config.num_hidden_layers = len(kept)
    torch.manual_seed(seed)
    torch.nn.init.normal_(model.classifier.weight, std=model.config.initializer_range)
    return model


def read(data_dir: Path, task: str, part: str) -> Rows:
    rows: Rows = pq.read_table(data_dir / task / f"{part}.parquet").to_pylist()
    return rows


def encode(tokenizer: Any, rows: Rows, max_length: int) -> dict[str, torch.Tensor]:
    """Token ids, types and mask of `rows`, padded to their longest."""
    texts = [[row[c] for row in rows] for c in rows[0] if c != "label"]
    return dict(
        tokenizer(*texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    )


def finetune(model: torch.nn.Module, tokenizer: Any, rows: Rows, options: Any, seed: int) -> None:
    """AdamW, linear decay to zero without warm-up, gradients clipped at 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.0, fused=True)
    batches = list(shuffled(rows, options, seed))
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = options.lr * (1 - step / len(batches))
        labels = torch.tensor([row["label"] for row in batch])
        model(**encode(tokenizer, batch, options.max_length), labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def shuffled(rows: Rows, options: Any, seed: int) -> Iterator[Rows]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(options.epochs):
        order = torch.randperm(len(rows), generator=generator).tolist()
        for start in range(0, len(rows), options.batch_size):
            yield [rows[i] for i in order[start : start + options.batch_size]]


@torch.no_grad()
def score(model: torch.nn.Module, tokenizer: Any, rows: Rows, max_length: int) -> float:
    """Accuracy, or Pearson's r if labels are real numbers; both times 100."""
    model.eval()
    logits = model(**encode(tokenizer, rows, max_length)).logits
    labels = torch.tensor([row["label"] for row in rows])
    if labels.is_floating_point():
        return 100 * float(torch.corrcoef(torch.stack([logits[:, 0], labels]))[0, 1])
    return 100 * float((logits.argmax(-1) == labels).float().mean())


@torch.no_grad()
def contribution(model_dir: Path, tokenizer: Any, rows: Rows, max_length: int) -> list[float]:
    """For each layer of the pre-trained encoder, the mean cosine of [CLS] before and after it."""
    model = AutoModelForSequenceClassification.from_pretrained(model_dir, num_labels=2).eval()
    states = model(**encode(tokenizer, rows, max_length), output_hidden_states=True).hidden_states
    cls = [state[:, 0] for state in states]
    return [float(torch.cosine_similarity(a, b, dim=-1).mean()) for a, b in pairwise(cls)]


def trial(options: Any, tokenizer: Any, task: str, kept: list[int], seed: int) -> tuple[float, ...]:
    """(score on validation, CPU seconds of training and scoring)"""
    train, dev = (read(options.data, task, part) for part in ("train", "validation"))
    label = train[0]["label"]
    n_labels = 1 if isinstance(label, float) else len({row["label"] for row in train})
    model = load_pruned(options.model, kept, n_labels, seed)
    started = time.process_time()
    finetune(model, tokenizer, train, options, seed)
    return score(model, tokenizer, dev, options.max_length), time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=QUICKSTART / "model")
    parser.add_argument("--data", type=Path, default=QUICKSTART / "data")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--dropped", nargs="+", type=int, default=[0, 3, 6, 9])
    parser.add_argument("--strategies", nargs="+", default=["top", "bottom"])
    parser.add_argument("--lr", type=float, default=8e-4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    for task in options.tasks:
        print_task(options, tokenizer, task)


def print_task(options: Any, tokenizer: Any, task: str) -> None:
    profile = contribution(
        options.model, tokenizer, read(options.data, task, "validation"), options.max_length
    )
    print(f"{task}: [CLS] cosine per layer: {' '.join(f'{c:.3f}' for c in profile)}", flush=True)
    for strategy in options.strategies:
        for dropped in options.dropped:
            if dropped == 0 and strategy != options.strategies[0]:
                continue  # K=0 is one network for all strategies
            kept = kept_layers(strategy, dropped, len(profile))
            results = [trial(options, tokenizer, task, kept, seed) for seed in options.seeds]
            scores, seconds = [r[0] for r in results], [r[1] for r in results]
            print(
                f"{task:16} {strategy:7} K={dropped}  {statistics.mean(scores):6.2f}  "
                f"[{' '.join(f'{s:.1f}' for s in scores)}]  {statistics.mean(seconds):.1f} CPU s",
                flush=True,
            )


if __name__ == "__main__":
    main()
