"""Passes that are held as CUDA graphs: `compute: graphs`.

A small encoder at batch 32 keeps a GPU waiting for its host, which launches each operation of each
layer by itself. A graph is recorded once and launched whole. It holds one shape: rows are filled up
to an even length (`unpadded.even`), each length has its graph, and they share their memory, since
no two run at a time. A batch that is not full, the last of an epoch, goes operation by operation.

A graph goes on writing where it was recorded: to the parameters' `.grad`, which therefore are set
to zero between steps and not let go. Its dropout follows the generator's seed at each launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.batches import EncodedSplit
from lp_sweep.trials.device import into
from lp_sweep.trials.forward import by_place
from lp_sweep.trials.steps import Setting, batch_loss
from lp_sweep.trials.unpadded.tokens import even_length, even_tokens

_WARM_UPS = 2  # libraries choose their kernels and take their memory in the first ones


class GraphPass:
    """A `Pass` over rows of one even length. On a CPU, where there are no graphs, the same
    operations one by one."""

    keeps_gradients = True

    def __init__(self, model: PreTrainedModel, setting: Setting) -> None:
        self.model, self.setting = model, setting
        self._held: dict[int, _Held] = {}  # by length
        self._pool = torch.cuda.graph_pool_handle() if setting.device.type == "cuda" else None

    def __call__(self, split: EncodedSplit, rows: np.ndarray, share: float) -> torch.Tensor:
        longest = int(split.lengths_of(rows).max())
        length = max(longest, min(even_length(longest), self.setting.recipe.max_length))
        held = self._held.get(length)
        if held is None or held.rows != len(rows):
            held = _Held(self.model, self.setting, split, len(rows), length)
        held.fill(split, rows, share)
        if len(rows) == self.setting.batches.training and length not in self._held:
            self._held[length] = held
            if self._pool is not None:
                held.record(self._pool)
        return held.launch()


class _Held:
    """A pass over `rows` rows of `length` tokens each, that reads all it needs from its buffers."""

    def __init__(
        self, model: PreTrainedModel, setting: Setting, like: EncodedSplit, rows: int, length: int
    ) -> None:
        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=setting.device)

        self.model, self.setting, self.rows, self.length = model, setting, rows, length
        self.ids = buffer(rows, length)
        self.types = None if like.token_types is None else buffer(rows, length)
        self.lengths = buffer(rows)
        self.target = buffer(rows, dtype=torch.from_numpy(like.labels[:0]).dtype)
        classes = setting.teaching and setting.teaching.logits.shape[1]
        self.taught = buffer(rows, classes, dtype=torch.float32) if classes else None
        self.share = buffer(dtype=torch.float32)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss = self.share  # where the graph leaves it

    def fill(self, split: EncodedSplit, rows: np.ndarray, share: float) -> None:
        """Put a batch where the pass reads it."""
        padding = self.setting.padding
        batch = split.batch(
            rows, pad_id=padding.token_id, pad_left=False, pad_type_id=padding.type_id
        )
        into(self.ids, self._even(batch["input_ids"], padding.token_id))
        if self.types is not None:
            into(self.types, self._even(batch["token_type_ids"], padding.type_id))
        into(self.lengths, split.lengths_of(rows))
        into(self.target, split.labels[rows])
        if self.taught is not None and self.setting.teaching is not None:
            into(self.taught, self.setting.teaching.logits[rows])
        self.share.fill_(share)

    def _even(self, values: np.ndarray, filler: int) -> np.ndarray:
        beyond = self.length - values.shape[1]
        return np.pad(values, ((0, 0), (0, beyond)), constant_values=filler)

    def launch(self) -> torch.Tensor:
        if self.graph is None:
            return self._run()
        self.graph.replay()
        return self.loss

    def record(self, pool: Any) -> None:
        """Record it on the GPU that holds the buffers, which already have a batch. Leaves the
        gradients, and the random stream, as they were."""
        device = self.setting.device
        with torch.random.fork_rng([device]):
            with _gradients_aside(self.model):
                side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                side.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(side):
                    for _ in range(_WARM_UPS):
                        self._run()
                torch.cuda.current_stream(device).wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self.loss = self._run()
        self.graph = graph

    def _run(self) -> torch.Tensor:
        tokens = even_tokens(self.ids, self.types, self.lengths)

        def ahead(model: nn.Module, states: list[torch.Tensor] | None) -> torch.Tensor:
            return by_place(model, tokens, self.setting.definition.pooling, states)

        part = batch_loss(self.model, self.setting, self.target, self.taught, ahead) * self.share
        part.backward()  # type: ignore[no-untyped-call]
        return part.detach()


@contextmanager
def _gradients_aside(model: nn.Module) -> Iterator[None]:
    """Inside, no parameter has a gradient; afterwards each has its own again, and one of zeros if
    it had none and got one inside: what no loss reaches never has any."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    yield
    for parameter, grad in kept:
        if grad is None and parameter.grad is not None:
            grad = torch.zeros_like(parameter)
        parameter.grad = grad
