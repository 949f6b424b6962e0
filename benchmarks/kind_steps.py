"""Compares steps of other kinds of tasks with plain loops, on one CPU thread.

    python -m benchmarks.kind_steps --model FOLDER --data-dir GLUE --more DATA --out kind-steps.json

DATA has the folders `wnut17` and `cranfield` in Parquet. Batches, clock and turns are those of
`trial_cpu.py`:

- `plain`: batches of rows of similar length, each padded to its longest row, transformers' forward
  pass, clipping and fused AdamW.
- `lp_sweep`: as a trial runs by default, with the rows in random order.

Both train the same network: tags of words (WNUT 2017), a reranker (Cranfield: each judged document
and as many others), and half the layers that imitate the full model's embeddings (the texts of
STS-B). `encoding` makes embeddings of those texts without training. `difference` is the largest
relative difference of the losses of random batches without dropout, or of the embeddings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedModel

from benchmarks.clocks import CpuClock
from benchmarks.glue_rows import LENGTH
from benchmarks.trial_cpu import BATCH, Watch, cpu_name, grouped_batches, plain_steps, ratios
from lp_sweep.trials.data.batches import (
    BatchSizes,
    EncodedTask,
    Padding,
    chunks,
    to_device,
)
from lp_sweep.trials.data.datasource import load_task
from lp_sweep.trials.data.encode import encode_task
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.device import reproducible
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.prune import load_pruned
from lp_sweep.trials.spec.procedures import Phase
from lp_sweep.trials.spec.specs import Distillation, Recipe, TaskDefinition
from lp_sweep.trials.train.distill import Teaching
from lp_sweep.trials.train.finetune import finetune
from lp_sweep.trials.train.steps import EagerPass, Setting, evaluate

KINDS = {
    "tokens": TaskDefinition(
        text_columns=("tokens",), label_column="tags", kind="tokens", metric="entity_f1"
    ),
    "ranking": TaskDefinition(
        text_columns=("query", "passage"),
        label_column="relevance",
        kind="ranking",
        metric="ndcg@10",
    ),
    "embedding": TaskDefinition(
        text_columns=("sentence1", "sentence2"),
        kind="embedding",
        metric="spearman",
        pooling="mean",
    ),
}
RECIPE = Recipe(learning_rate=2e-5, batch_size=BATCH, epochs=1, compute="fast")


def candidates(cranfield: Path) -> pa.Table:
    """Each judged document of a query, and as many drawn at random."""
    read = {name: pq.read_table(cranfield / f"{name}.parquet").to_pylist() for name in _PARTS}
    texts = {row["id"]: row["text"] for row in read["corpus"] if row["text"]}
    queries, others = {row["id"]: row["text"] for row in read["queries"]}, [*texts]
    pairs = {(row["query_id"], row["doc_id"]): row["relevance"] for row in read["qrels"]}
    drawn = np.random.default_rng(0).integers(len(others), size=len(pairs))
    for (query, _), other in zip([*pairs], drawn, strict=True):
        pairs.setdefault((query, others[other]), 0)
    rows = [
        {"query": queries[query], "passage": texts[document], "relevance": relevance}
        for (query, document), relevance in pairs.items()
        if document in texts
    ]
    return pa.Table.from_pylist(rows)


_PARTS = ("corpus", "queries", "qrels")


class Case(NamedTuple):
    """A kind's rows and its network, on both sides."""

    model: Callable[[], PreTrainedModel]
    data: EncodedTask
    setting: Setting

    def plain_loss(self, model: PreTrainedModel, rows: np.ndarray) -> torch.Tensor:
        """As one would write it with transformers."""
        split, setting = self.data.train, self.setting
        batch = to_device(split, rows, setting.padding, model.device)
        if setting.teaching:
            taught = torch.from_numpy(setting.teaching.logits[rows])
            return 1 - functional.cosine_similarity(pooled(model, batch), taught).mean()
        logits = model(**batch).logits
        if split.words is None:
            relevant = torch.from_numpy((split.labels[rows, 0] > 0).astype(np.float32))
            return functional.binary_cross_entropy_with_logits(logits[:, 0], relevant)
        tags = torch.full(logits.shape[:2], -100)
        row, word = np.nonzero(split.words[rows] >= 0)
        tags[row, split.words[rows][row, word]] = torch.from_numpy(split.labels[rows][row, word])
        return functional.cross_entropy(logits.flatten(0, 1), tags.flatten())

    def plain(self) -> list[float]:
        model, rows = self.model().train(), np.arange(len(self.data.train))
        return plain_steps(model, rows, lambda some: self.plain_loss(model, some), CpuClock())

    def lp_sweep(self) -> list[float]:
        watch = _Steps(len(self.data.train) // BATCH)
        with reproducible(None), contextlib.suppress(StopIteration):
            finetune(self.model(), self.data, self.setting, watch)
        return watch.clock.steps()

    def difference(self) -> float:
        """The largest relative difference of the losses of the two sides."""
        model, split, found = self.model().eval(), self.data.train, []
        own = EagerPass(model, self.setting)
        with torch.inference_mode():
            for rows in chunks(np.random.default_rng(0).permutation(len(split)), BATCH):
                plain, loss = self.plain_loss(model, rows), own.loss(own.on_device(split, rows))
                found.append(float(abs(loss / plain - 1)))
        return max(found)


class _Steps(Watch):
    """Ends a training before its evaluation."""

    def __init__(self, count: int) -> None:
        super().__init__(CpuClock())
        self.left = count

    def due(self) -> bool:
        self.left -= 1
        if super().due() or not self.left:
            raise StopIteration
        return False


class Encoding(Case):
    """Embeddings of the texts, without training. A step is a batch of texts."""

    def _plain(self, model: PreTrainedModel) -> np.ndarray:
        split, parts = self.data.train, []
        order = np.argsort(split.lengths, kind="stable")[::-1]
        with torch.inference_mode():
            for rows in chunks(order, BATCH):
                batch = to_device(split, rows, self.setting.padding, model.device)
                parts.append(pooled(model, batch).numpy())
        return np.concatenate(parts)[np.argsort(order)]

    def _own(self, model: PreTrainedModel) -> np.ndarray:
        with reproducible(None):
            return evaluate(
                model,
                self.data.train,
                self.setting.padding,
                precision="fp32",
                compute="fast",
                pooling="mean",
            )

    def _timed(self, encode: Callable[[PreTrainedModel], np.ndarray]) -> list[float]:
        model, clock = self.model(), CpuClock()
        clock.mark()
        encode(model)
        clock.mark()
        return [sum(clock.steps()) / (len(self.data.train) / BATCH)]

    def plain(self) -> list[float]:
        return self._timed(self._plain)

    def lp_sweep(self) -> list[float]:
        return self._timed(self._own)

    def difference(self) -> float:
        plain, own = self._plain(self.model()), self._own(self.model())
        return float((np.linalg.norm(own - plain, axis=1) / np.linalg.norm(plain, axis=1)).max())


def pooled(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, H), the mean over tokens."""
    states, mask = model.base_model(**batch).last_hidden_state, batch["attention_mask"][..., None]
    return (states * mask).sum(1) / mask.sum(1)


def case_of(options: Any, name: str, folder: Path) -> Case:
    definition = KINDS["embedding" if name == "encoding" else name]
    places = {"tokens": options.more / "wnut17", "ranking": folder}
    place = places.get(name, options.data_dir / "stsb")
    if name == "ranking":
        for split in ("train", "validation"):
            pq.write_table(candidates(options.more / "cranfield"), folder / f"{split}.parquet")
    files = {split: str(place / f"{split}.parquet") for split in ("train", "validation")}
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    data = encode_task(
        tokenizer, load_task(definition, TaskSource(files=files)), name, LENGTH, folder
    )
    steps = 10 * options.steps if name == "encoding" else options.steps
    chosen = grouped_batches(data.train.lengths, steps).ravel()
    everything = {"train": data.train, **data.dev}  # its words are in the word table
    data = replace(data, train=data.train.take(chosen), dev=everything)

    def network(kept: tuple[int, ...] | None) -> PreTrainedModel:
        problem = kind_of(definition).problem_type
        return load_pruned(
            options.model,
            kept_layers=kept,
            num_labels=data.num_labels,
            problem_type=problem,
            seed=1,
        )

    depth = network(None).config.num_hidden_layers
    kept = tuple(range(1, depth // 2 + 1 if name == "embedding" else depth + 1))
    padding, teaching = Padding.of(tokenizer), None
    if name == "embedding":
        vectors = evaluate(network(None), data.train, padding, precision="fp32", pooling="mean")
        taught = Distillation(teacher="full", fine_tuned=True, alpha=1.0)
        teaching = Teaching(settings=taught, logits=vectors)
    setting = Setting(
        definition=definition,
        recipe=RECIPE,
        seed=1,
        device=torch.device("cpu"),
        padding=padding,
        precision="fp32",
        batches=BatchSizes.halved(BATCH, 0),
        phases=(Phase(kept, 1),),
        label_names=data.label_names,
        teaching=teaching,
    )
    return (Encoding if name == "encoding" else Case)(lambda: network(kept), data, setting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--more", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"cpu": cpu_name(), "steps": options.steps, "kinds": {}}
    for name in (*KINDS, "encoding"):
        with tempfile.TemporaryDirectory() as folder:
            case = case_of(options, name, Path(folder))
            difference, rounds = case.difference(), []
            for number in range(options.rounds):
                sides = [("plain", case.plain), ("lp_sweep", case.lp_sweep)]
                turns = sides[:: 1 if number % 2 == 0 else -1]
                rounds.append({side: statistics.mean(timed()) for side, timed in turns})
        ratio = ratios(rounds, "plain", "lp_sweep")
        found["kinds"][name] = {"rounds": rounds, "ratio": ratio, "difference": difference}
        print(name, json.dumps(found["kinds"][name]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
