"""Pre-trains a small BERT by masked language modelling, and grows it during training. CPU, seeded.

A 12-layer post-norm network of this size hardly starts to learn in minutes, but a 3-layer one does.
So each stage begins with copies of the previous stage's layers. It sees only text, no task.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from transformers import BertConfig, BertForPreTraining, PreTrainedTokenizerFast

from benchmarks.toy_language.grammar import Passage, telling_words

IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of `steps` batches. The network has one layer per entry of `sources`, which is the
    layer (from 1) of the previous stage's network that it copies. In the first stage, all layers
    start at random.
    """

    sources: tuple[int, ...]
    steps: int
    lr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to pre-train. Every stage warms up linearly; the last stage decays linearly to zero."""

    seed: int
    stages: tuple[Stage, ...]
    batch_size: int
    warmup_steps: int
    weight_decay: float
    mask_rate: float
    # Words that can be guessed only from the first sentence are masked more often than others.
    telling_mask_rate: float


def pretrain(
    config: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
    text: Iterator[Passage],
    recipe: Recipe,
) -> BertForPreTraining:
    """A model trained through all stages of `recipe`; progress goes to stderr."""
    torch.manual_seed(recipe.seed)
    stream = batches(tokenizer, text, recipe)
    model = None
    for stage in recipe.stages:
        grown = BertForPreTraining(BertConfig(**config, num_hidden_layers=len(stage.sources)))
        if model is not None:
            copy_layers(model, grown, stage.sources)
        model = grown.train()
        train_stage(model, stream, stage, recipe, decay=stage is recipe.stages[-1])
    assert model is not None
    return model.eval()


def copy_layers(
    small: BertForPreTraining, large: BertForPreTraining, sources: tuple[int, ...]
) -> None:
    """Copy the weights of `small` into `large`; its layers copy those (from 1) in `sources`."""
    weights = small.state_dict()
    grown = {name: weight for name, weight in weights.items() if ".layer." not in name}
    for target, source in enumerate(sources):
        prefix = f"bert.encoder.layer.{source - 1}."
        for name, weight in weights.items():
            if name.startswith(prefix):
                grown[f"bert.encoder.layer.{target}.{name.removeprefix(prefix)}"] = weight
    large.load_state_dict(grown)


def train_stage(
    model: BertForPreTraining,
    stream: Iterator[dict[str, torch.Tensor]],
    stage: Stage,
    recipe: Recipe,
    *,
    decay: bool,
) -> None:
    """Train for `stage.steps` batches with a fresh AdamW optimiser."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=stage.lr, weight_decay=recipe.weight_decay, fused=True
    )
    started, losses = time.perf_counter(), []
    for step, batch in enumerate(islice(stream, stage.steps), start=1):
        left = (stage.steps - step) / (stage.steps - recipe.warmup_steps) if decay else 1.0
        for group in optimizer.param_groups:
            group["lr"] = stage.lr * min(step / recipe.warmup_steps, left)
        labels = batch.pop("labels")
        chosen = labels != IGNORED
        hidden = model.bert(**batch).last_hidden_state[chosen]  # (masked words, H)
        loss = torch.nn.functional.cross_entropy(model.cls.predictions(hidden), labels[chosen])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 250 == 0:
            mean, seconds = sum(losses[-250:]) / 250, time.perf_counter() - started
            print(
                f"{len(stage.sources):2d} layers  step {step:5d}  loss {mean:.3f}  {seconds:.0f} s",
                file=sys.stderr,
            )


def batches(
    tokenizer: PreTrainedTokenizerFast, text: Iterator[Passage], recipe: Recipe
) -> Iterator[dict[str, torch.Tensor]]:
    """Endless batches of masked passages."""
    generator = torch.Generator().manual_seed(recipe.seed)
    telling = torch.tensor(tokenizer.convert_tokens_to_ids(telling_words()))
    while True:
        group = list(islice(text, recipe.batch_size))
        yield _mask(tokenizer, group, telling, recipe, generator)


def _mask(
    tokenizer: PreTrainedTokenizerFast,
    group: list[Passage],
    telling: torch.Tensor,
    recipe: Recipe,
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    """One batch. 80% of the chosen words become [MASK], 10% a random word, and 10% stay."""
    batch = dict(tokenizer([_pair(p) for p in group], padding=True, return_tensors="pt"))
    ids = batch["input_ids"]  # (B, T)
    n_special = len(tokenizer.all_special_ids)  # these have the first ids
    rates = torch.full(ids.shape, recipe.mask_rate)
    rates[torch.isin(ids, telling) & (batch["token_type_ids"] == 1)] = recipe.telling_mask_rate
    rates[ids < n_special] = 0.0
    chosen = torch.rand(ids.shape, generator=generator) < rates
    batch["labels"] = torch.where(chosen, ids, IGNORED)
    fate = torch.rand(ids.shape, generator=generator)
    words = torch.randint(n_special, len(tokenizer), ids.shape, generator=generator)
    ids = torch.where(chosen & (fate < 0.9), words, ids)
    batch["input_ids"] = torch.where(chosen & (fate < 0.8), tokenizer.mask_token_id, ids)
    return batch


def _pair(passage: Passage) -> str | tuple[str, str]:
    return passage.first if passage.second is None else (passage.first, passage.second)
