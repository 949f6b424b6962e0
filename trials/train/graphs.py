"""Whole training steps as CUDA graphs.

With a small encoder at batch 32 a GPU waits for its host, which launches each operation of each
layer. A graph is recorded once and launched as a whole: forward, backward, clipping and AdamW. It
has a fixed shape, so the rows of a batch are packed into bins of `max_length` tokens, in which each
row attends only to itself, and there is a graph for each number of bins. Graphs share memory, since
only one runs at a time. The input of a step is one copy.

The first step with a number of bins runs operation by operation, which prepares libraries and AdamW
for a recording. The second is recorded, which computes nothing, and launched. Batches that are not
full or are in micro-batches always run operation by operation. So do all steps if the host waits
for the device in one, which could not be recorded. A graph's dropout follows the generator's seed
at each launch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.storage.errors import GraphRecordingError, SweepWarning, lines_of
from lp_sweep.trials.data.batches import EncodedSplit
from lp_sweep.trials.device import chain_of, noted_waits
from lp_sweep.trials.fast.forward import GRAPHS, PACKED, by_place
from lp_sweep.trials.fast.networks import tagged
from lp_sweep.trials.fast.tokens import Bins, RealTokens, aligned, packed_tokens
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.tokens import NO_ANSWER, NO_TAG, SILENT
from lp_sweep.trials.train.steps import DeviceRows, EagerPass, Setting, update

Run = Callable[[], torch.Tensor]


class Recording(NamedTuple):
    launch: Callable[[], object]
    loss: torch.Tensor  # a launch writes it


class CudaRecorder:
    """Records all graphs of a training on one stream and in one pool of memory. `waits`: where the
    host waited for the device in a warm-up, as `file:line`."""

    def __init__(self, device: torch.device) -> None:
        self.waits: list[str] = []
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, run: Run) -> torch.Tensor:
        """Run it on the stream of the recording."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), noted_waits() as waits:
            loss = run()
        current.wait_stream(self._stream)
        self.waits += waits
        return loss

    def record(self, run: Run) -> Recording:
        """Raises GraphRecordingError, after which this process can't use the device: PyTorch's
        allocator and random generator still take it for recording."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                loss = run()
        except RuntimeError as error:
            torch.cuda.set_stream(current)  # a recording that fails leaves its own
            refuse_recording(error)
            raise
        return Recording(graph.replay, loss)


# cudaErrorStreamCaptureUnsupported to cudaErrorStreamCaptureWrongThread
_CAPTURE_ERRORS = range(900, 909)


def refuse_recording(error: BaseException) -> None:
    """Raises GraphRecordingError if `error` is one of recording; others, such as a lack of memory,
    leave the process fit."""
    links = [*chain_of(error)]
    if any(getattr(e, "error_code", 0) in _CAPTURE_ERRORS or "captur" in str(e) for e in links):
        raise GraphRecordingError(
            f"a CUDA graph could not be recorded: {lines_of(links[-1])[0]}. The trial runs again "
            "without graphs."
        ) from error


class GraphPass(EagerPass):
    """Passes over packed rows. Without a recorder, as on a CPU, they run operation by operation."""

    def __init__(
        self, model: PreTrainedModel, setting: Setting, recorder: CudaRecorder | None = None
    ) -> None:
        super().__init__(model, setting)
        if recorder is None and setting.graphs and setting.device.type == "cuda":
            recorder = CudaRecorder(setting.device)
        self._recorder = recorder
        self._held: dict[int, tuple[_Buffer, Recording]] = {}  # by number of bins
        self._warm: set[int] = set()  # numbers of bins that had a step

    def on_device(self, split: EncodedSplit, rows: np.ndarray) -> DeviceRows:
        return self._rows(_Buffer(self._packed(split, rows), self.setting.device))

    @property
    def compute(self) -> str:
        return GRAPHS if self._recorder is not None and self._in_one_pass() else PACKED

    def _in_one_pass(self) -> bool:
        """Whether a full batch is not in micro-batches."""
        setting = self.setting
        return setting.compares_batch or setting.recipe.batch_size <= setting.batches.training

    def step_at_once(
        self, optimizer: torch.optim.Optimizer, split: EncodedSplit, rows: np.ndarray
    ) -> torch.Tensor | None:
        full = len(rows) == self.setting.recipe.batch_size * self.setting.rows_together
        if self._recorder is None or not full or not self._in_one_pass():
            return None
        batch = self._packed(split, rows)
        bins = batch.bins.number
        # A launch repeats the recorded kernels at the recorded addresses. So a graph's input is
        # copied into the buffer that it was recorded with, and its loss is always the same tensor,
        # which the next launch overwrites. A recording runs nothing: it is launched at once, since
        # this step is still due. AdamW makes its state at its first step, outside of
        # any graph, which is one reason for a warm-up.
        if bins in self._held:
            buffer, recorded = self._held[bins]
            buffer.fill(batch)
            recorded.launch()
            return recorded.loss
        buffer = _Buffer(batch, self.setting.device)

        def run() -> torch.Tensor:
            loss = self.loss(self._rows(buffer))
            loss.backward()  # type: ignore[no-untyped-call]
            update(self.model, optimizer, self.setting.recipe)
            return loss.detach()

        if bins not in self._warm:
            self._warm.add(bins)
            return self._warmed_up(self._recorder, run)
        begun = time.perf_counter()
        recorded = self._recorder.record(run)
        self.recordings[bins] = time.perf_counter() - begun
        self._held[bins] = (buffer, recorded)
        recorded.launch()
        return recorded.loss

    def _warmed_up(self, recorder: CudaRecorder, run: Run) -> torch.Tensor:
        loss = recorder.warm_up(run)
        if recorder.waits:
            warnings.warn(
                "the training goes on without CUDA graphs: a step waits for the GPU, at "
                f"{recorder.waits[0]}",
                SweepWarning,
                stacklevel=2,
            )
            self._recorder = None
            self._held.clear()
        return loss

    def _packed(self, split: EncodedSplit, rows: np.ndarray) -> _Batch:
        padding, teaching = self.setting.padding, self.setting.teaching
        longest = int(split.lengths_of(rows).max())
        length = aligned(max(longest, self.setting.recipe.max_length))
        bins = Bins.packed(split, rows, length, padding.token_id, padding.type_id)
        target, taught = split.labels[rows], None if teaching is None else teaching.logits[rows]
        if split.words is not None:  # their number varies: each token of a bin counts as a word
            target = bins.at_words(split, rows, np.maximum(target, NO_ANSWER), NO_TAG)
            taught = None if taught is None else bins.at_words(split, rows, taught, SILENT)
        return _Batch(bins, target, taught)

    def _rows(self, buffer: _Buffer) -> DeviceRows:
        definition = self.setting.definition

        def ahead(model: nn.Module, states: list[torch.Tensor] | None) -> torch.Tensor:
            if kind_of(definition).words:
                return tagged(model, buffer.tokens())
            return by_place(model, buffer.tokens(), definition.pooling, states)

        return DeviceRows(buffer.target, buffer.taught, ahead)


class _Batch(NamedTuple):
    """The input of a step, on the host."""

    bins: Bins
    labels: np.ndarray  # (B, ...); for words (bins, length)
    taught: np.ndarray | None  # (B, C), a teacher's logits; for words (bins, length, C)

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
