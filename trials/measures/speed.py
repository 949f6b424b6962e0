"""Times a batch through a pruned network and through the network with all its layers.

Both are in one process on one device and take turns. They use transformers' own forward pass on
batches without padding, so that only the layers differ.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.device import autocast, forget_frames, free_memory, is_out_of_memory
from lp_sweep.trials.measures.pairs import RULE, Comparison, Rule, RunTime, compare
from lp_sweep.trials.spec.specs import Recipe
from lp_sweep.trials.train.steps import make_optimizer, update

FINETUNE, INFERENCE = "finetune", "inference"
_Rows = dict[str, torch.Tensor]
_Once = Callable[[], None]


class Timing(NamedTuple):
    """One quantity at one batch."""

    quantity: str
    batch: int
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The input of both networks: batches of `length` tokens a row, in fp32 or bf16."""

    length: int
    batches: Sequence[int]
    precision: str = "fp32"


def compare_networks(
    full: PreTrainedModel, pruned: PreTrainedModel, load: Load, rule: Rule = RULE
) -> list[Timing]:
    """Inference and fine-tuning steps at each batch; the weights of both change.

    Inference, or fine-tuning, ends at the first batch size that does not fit into memory; the
    smallest has to fit. Both are on one device.
    """
    smallest, found = min(load.batches), []
    fitting = {INFERENCE: _inference, FINETUNE: _finetuning}
    for batch in sorted(load.batches):
        rows = random_rows(full, batch, load.length)
        for quantity, make in list(fitting.items()):
            try:
                once = partial(make, rows=rows, precision=load.precision)
                found.append(Timing(quantity, batch, _compared((full, pruned), once, rule)))
            except (RuntimeError, MemoryError) as error:
                if batch == smallest or not is_out_of_memory(error):
                    raise
                del fitting[quantity]
                forget_frames(error)
                for model in (full, pruned):  # of the step that was broken off
                    model.zero_grad()
            free_memory()
    return found


def _compared(
    networks: Sequence[PreTrainedModel], make: Callable[[PreTrainedModel], _Once], rule: Rule
) -> Comparison:
    """Times both networks. Frees on return what `make` makes, such as an optimiser's averages."""
    full, pruned = (partial(_timed, make(network), network.device) for network in networks)
    return compare(full, pruned, rule)


def random_rows(model: PreTrainedModel, batch: int, length: int) -> _Rows:
    """`input_ids` and `attention_mask`, (B, T) int64 on the model's device, without padding."""
    words = model.get_input_embeddings().weight.shape[0]
    ids = torch.randint(words, (batch, length), generator=torch.Generator().manual_seed(0))
    padding = getattr(model.config, "pad_token_id", None)
    if padding is not None:  # RoBERTa gives padding no position
        ids[ids == padding] = (padding + 1) % words
    rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return {name: tensor.to(model.device) for name, tensor in rows.items()}


def _inference(model: PreTrainedModel, rows: _Rows, precision: str) -> _Once:
    model.eval()

    def once() -> None:
        with torch.inference_mode(), autocast(precision, model.device):
            model(**rows)

    return once


def _finetuning(model: PreTrainedModel, rows: _Rows, precision: str) -> _Once:
    """A step as trials take it: forward, backward, clipping, fused AdamW."""
    model.train()
    recipe = Recipe()
    optimizer = make_optimizer(model, recipe)
    labels = torch.zeros(len(rows["input_ids"]), dtype=torch.int64, device=model.device)

    def once() -> None:
        with autocast(precision, model.device):
            logits = model(**rows).logits
        nn.functional.cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
        update(model, optimizer, recipe)

    return once


def _timed(once: _Once, device: torch.device) -> RunTime:
    """On a CPU the ratio is of the process's own time, without that of other processes."""
    if device.type == "cuda":
        return _timed_on_gpu(once, device)
    wall, used = time.perf_counter(), time.process_time()
    once()
    return RunTime(1e3 * (time.process_time() - used), 1e3 * (time.perf_counter() - wall))


def _timed_on_gpu(once: _Once, device: torch.device) -> RunTime:
    begun, ended = (
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(2)
    )
    torch.cuda.synchronize(device)
    wall = time.perf_counter()
    begun.record()
    once()
    ended.record()
    torch.cuda.synchronize(device)
    elapsed = time.perf_counter() - wall
    return RunTime(begun.elapsed_time(ended), 1e3 * elapsed)


_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle and waiting for a disk, of the columns of /proc/stat
_COLUMNS = 8  # up to steal; the next ones are included in these


class Bystanders:
    """Measures from its construction on how busy other processes keep this machine."""

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._begun, self._own = time.perf_counter(), time.process_time()
        self._busy = _busy_seconds(stat)

    def busy_cores(self) -> float | None:
        """The mean number of cores that others kept busy; None if the system does not report it.

        The load average would count trials that ended minutes ago.
        """
        busy = _busy_seconds(self._stat)
        if busy is None or self._busy is None:
            return None
        others = (busy - self._busy) - (time.process_time() - self._own)
        return max(0.0, others / (time.perf_counter() - self._begun))


def _busy_seconds(stat: Path) -> float | None:
    """Busy seconds of all cores since the machine started."""
    try:
        words = stat.read_text(encoding="ascii").split(maxsplit=_COLUMNS + 1)[1 : _COLUMNS + 1]
        ticks = [int(word) for word in words]
    except (OSError, ValueError):
        return None
    if not any(ticks):  # a sandbox that hides its host
        return None
    return sum(t for i, t in enumerate(ticks) if i not in _IDLE) / os.sysconf("SC_CLK_TCK")
