"""Whole training steps as CUDA graphs: `compute: graphs`.

With a small encoder at batch 32 a GPU waits for its host, which launches each operation of each
layer. A graph is recorded once and launched as a whole: forward, backward, clipping and AdamW. It
has a fixed shape, so the rows of a batch are packed into bins of `max_length` tokens, in which each
row attends only to itself, and there is a graph for each number of bins. Graphs share memory, since
only one runs at a time. The input of a step is one copy.

The first step with a number of bins runs operation by operation, which prepares libraries and AdamW
for a recording. The second is recorded, which computes nothing, and launched. Batches that are not
full or are in micro-batches always run operation by operation. A graph's dropout follows the
generator's seed at each launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import EncodedSplit
from lp_sweep.trials.fast.forward import by_place
from lp_sweep.trials.fast.tokens import Bins, RealTokens, aligned, packed_tokens
from lp_sweep.trials.train.steps import EagerPass, Setting, update

Run = Callable[[], torch.Tensor]


class Recorded(NamedTuple):
    launch: Callable[[], object]
    loss: torch.Tensor  # a launch writes it


class CudaRecorder:
    """Records all graphs of a training on one stream and in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Run) -> torch.Tensor:
        """Run it on the stream of the recording."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            loss = run()
        current.wait_stream(self._stream)
        return loss

    def record(self, run: Run) -> Recorded:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            loss = run()
        return Recorded(graph.replay, loss)


class GraphPass(EagerPass):
    """Passes over packed rows. Without a recorder, as on a CPU, they run operation by operation."""

    def __init__(
        self, model: PreTrainedModel, setting: Setting, recorder: CudaRecorder | None = None
    ) -> None:
        super().__init__(model, setting)
        if recorder is None and setting.device.type == "cuda":
            recorder = CudaRecorder(setting.device)
        self._recorder = recorder
        self._held: dict[int, tuple[_Buffer, Recorded]] = {}  # by number of bins
        self._warm: set[int] = set()  # numbers of bins that had a step

    def __call__(self, split: EncodedSplit, rows: np.ndarray, share: float) -> torch.Tensor:
        batch = self._packed(split, rows)
        return self._backward(_Buffer(batch, self.setting.device), share)

    def step(
        self, optimizer: torch.optim.Optimizer, split: EncodedSplit, rows: np.ndarray
    ) -> torch.Tensor:
        whole = len(rows) == self.setting.recipe.batch_size == self.setting.batches.training
        if self._recorder is None or not whole:
            return super().step(optimizer, split, rows)
        batch = self._packed(split, rows)
        if batch.bins.number in self._held:
            buffer, recorded = self._held[batch.bins.number]
            buffer.fill(batch)
            recorded.launch()
            return recorded.loss
        buffer = _Buffer(batch, self.setting.device)

        def run() -> torch.Tensor:
            loss = self._backward(buffer, 1.0)
            update(self.model, optimizer, self.setting.recipe)
            return loss

        if batch.bins.number not in self._warm:
            self._warm.add(batch.bins.number)
            return self._recorder.warm_up(run)
        try:
            recorded = self._recorder.record(run)
        except torch.AcceleratorError:
            raise
        except RuntimeError as error:
            self._give_up(error)
            optimizer.zero_grad(set_to_none=True)
            return run()
        self._held[batch.bins.number] = (buffer, recorded)
        recorded.launch()
        return recorded.loss

    def _give_up(self, error: RuntimeError) -> None:
        """Continue operation by operation."""
        said = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"compute: graphs goes on without CUDA graphs: one could not be recorded: {said}",
            stacklevel=4,
        )
        self._recorder = None
        self._held.clear()

    def _packed(self, split: EncodedSplit, rows: np.ndarray) -> _Batch:
        padding, teaching = self.setting.padding, self.setting.teaching
        longest = int(split.lengths_of(rows).max())
        length = aligned(max(longest, self.setting.recipe.max_length))
        return _Batch(
            Bins.packed(split, rows, length, padding.token_id, padding.type_id),
            split.labels[rows],
            None if teaching is None else teaching.logits[rows],
        )

    def _backward(self, buffer: _Buffer, share: float) -> torch.Tensor:
        pooling = self.setting.definition.pooling

        def ahead(model: nn.Module, states: list[torch.Tensor] | None) -> torch.Tensor:
            return by_place(model, buffer.tokens(), pooling, states)

        return self.backward(buffer.target, buffer.taught, ahead, share)


class _Batch(NamedTuple):
    """The input of a step, on the host."""

    bins: Bins
    labels: np.ndarray  # (B,)
    taught: np.ndarray | None  # (B, C), a teacher's logits

    def arrays(self) -> list[np.ndarray]:
        taught = [] if self.taught is None else [self.taught]
        return [*self.bins.arrays(), self.labels, *taught]


_ALIGNED = 8  # bytes


class _Buffer:
    """The input of a step, on the device: one tensor of bytes, and views into it."""

    def __init__(self, batch: _Batch, device: torch.device) -> None:
        self._count, self._length = batch.bins.number, batch.bins.length
        sizes = [-(-array.nbytes // _ALIGNED) * _ALIGNED for array in batch.arrays()]
        self._bytes = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        self.fill(batch)
        views = [
            part[: array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
            for part, array in zip(torch.split(self._bytes, sizes), batch.arrays(), strict=True)
        ]
        bins = len(batch.bins.arrays())
        self._bins, self.target = views[:bins], views[bins]
        self.taught = None if batch.taught is None else views[bins + 1]

    def fill(self, batch: _Batch) -> None:
        """Copies the batch to the device in one copy, without waiting for it."""
        gpu = self._bytes.is_cuda
        # PyTorch's cache of pinned memory does not reuse it before it was read
        host = torch.empty(self._bytes.shape, dtype=torch.uint8, pin_memory=gpu)
        values, begin = host.numpy(), 0
        for array in batch.arrays():
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            values[begin : begin + len(flat)] = flat
            begin += -(-len(flat) // _ALIGNED) * _ALIGNED
        self._bytes.copy_(host, non_blocking=True)

    def tokens(self) -> RealTokens:
        return packed_tokens(self._count, self._length, *self._bins)
