"""The device a trial runs on: precision, threads, memory, and out-of-memory errors; and
`pick`, a gather that is deterministic there.

Nothing is probed at import.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import functools
import gc
import os
import platform
import re
import resource
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from lp_sweep.storage.errors import (
    DeviceOutOfMemoryError,
    NotDeterministicError,
    UnsupportedDeviceError,
    lines_of,
)


def pick_device(wanted: str = "auto") -> torch.device:
    """`auto`: the CUDA or ROCm device that Ray (or CUDA_VISIBLE_DEVICES) shows this process, else
    the CPU. Raises UnsupportedDeviceError for any other device."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.partition(":")[0] not in ("cpu", "cuda"):
        raise UnsupportedDeviceError(
            f"device {wanted!r}: trials run on NVIDIA and AMD GPUs ('cuda') and on CPUs ('cpu'). "
            "Choose 'cpu' on this machine."
        )
    return torch.device(wanted)


def device_name(device: torch.device) -> str:
    """`NVIDIA H200`, or the processor's model name; if that has no number, as in many virtual
    machines, with the numbers of its family and model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError, KeyError):
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        lines = (line.partition(":") for line in first.splitlines())
        told = {field.strip(): value.strip() for field, _, value in lines}
        if re.search(r"\d", name := told["model name"]):
            return name
        return f"{name} (family {told['cpu family']}, model {told['model']})"
    return platform.processor() or platform.machine()


def bound_by_launches(device: torch.device) -> bool:
    """Whether kernel launches, not arithmetic, limit the speed of a small network here."""
    return device.type != "cpu"


def precision_used(wanted: str, device: torch.device) -> str:
    """`auto` is bf16 on a device with instructions for it, else fp32. Raises UnsupportedDeviceError
    for bf16 on a GPU without them. On a CPU bf16 always works."""
    if wanted == "fp32":
        return wanted
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = bool(_CPU_BF16 & {name for name, has in _cpu_features().items() if has})
    if wanted == "bf16" and device.type == "cuda" and not has_bf16:
        raise UnsupportedDeviceError(
            f"precision: bf16: {device_name(device)} computes no bf16. "
            "Set recipe.precision to auto or fp32."
        )
    return "bf16" if has_bf16 or wanted == "bf16" else "fp32"


# The instructions of Intel's and AMD's servers that multiply matrices in bf16. With AVX512_BF16 a
# step of a MiniLM takes 0.56 to 0.65 times as long (benchmarks/results/trial-cpu.json); AMX is not
# measured there.
_CPU_BF16 = {"amx_bf16", "avx512_bf16"}


def _cpu_features() -> Mapping[str, Any]:
    """Empty in an old PyTorch, which does not list them."""
    found: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)
    return found()


def records_graphs(device: torch.device) -> bool:
    """Whether training steps can be CUDA graphs. They are untested on AMD GPUs."""
    return device.type == "cuda" and torch.version.hip is None


@contextmanager
def noted_waits() -> Iterator[list[str]]:
    """Notes, as `file:line`, where the host waits for the GPU inside. PyTorch finds most places."""
    found: list[str] = []
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        said.clear()  # PyTorch warns of the mode itself
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for item in said:
        waits = "called a synchronizing CUDA operation" in str(item.message)
        if waits:
            found.append(f"{item.filename}:{item.lineno}")
        if before or not waits:
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)


def onto(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """The array's values on `device`, copied without waiting for the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    # CUDA copies unpinned memory only after all earlier work is done
    tensor = tensor.pin_memory() if device.type == "cuda" else tensor
    return tensor.to(device, non_blocking=True)


def all_onto(arrays: Sequence[np.ndarray], device: torch.device) -> tuple[torch.Tensor, ...]:
    """Arrays of one dtype, (n,) each, on `device`, in one copy to a GPU."""
    if device.type == "cpu":
        return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    return torch.split(onto(np.concatenate(arrays), device), [len(array) for array in arrays])


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """With bf16, matrix products run in it; weights stay fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def compute_dtype(device: torch.device) -> torch.dtype:
    """The dtype of matrix products under the current autocast."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return torch.get_default_dtype()


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> int:
    """CUDA: the allocator's peak since the reset. CPU: the peak resident set of the process,
    earlier trials of a reused worker included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def reproducible(threads: int | None, *, strict: bool = False) -> Iterator[None]:
    """Deterministic kernels and a fixed number of CPU threads. All settings are restored at the
    end, because workers are reused.

    `strict`: an operation without a deterministic kernel raises NotDeterministicError. Otherwise
    PyTorch takes another kernel; the backward pass of attention on CUDA always has one.
    cuDNN's attention is off: it makes a plan for each new shape, and most batches have one.

    In this mode PyTorch also fills every new tensor with NaN, to reveal reads of unwritten memory.
    That costs time, and there are no such reads (tests/trials/worker/test_run.py), so it is off.
    """
    threads_before = torch.get_num_threads()
    enabled_before = torch.are_deterministic_algorithms_enabled()
    warn_before = torch.is_deterministic_algorithms_warn_only_enabled()
    new_memory: Any = torch.utils.deterministic  # its one setting is not in the type stubs
    fill_before = new_memory.fill_uninitialized_memory
    cudnn_before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    # cuBLAS reads this when it starts
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    torch.backends.cuda.enable_cudnn_sdp(False)
    new_memory.fill_uninitialized_memory = False
    if threads:
        torch.set_num_threads(threads)
    try:
        yield
    except RuntimeError as error:
        if not strict or _REFUSES not in str(error):
            raise
        raise NotDeterministicError(str(error).partition(_REFUSES)[0].strip()) from error
    finally:
        torch.use_deterministic_algorithms(enabled_before, warn_only=warn_before)
        torch.backends.cuda.enable_cudnn_sdp(cudnn_before)
        new_memory.fill_uninitialized_memory = fill_before
        torch.set_num_threads(threads_before)


_REFUSES = "does not have a deterministic implementation"
# PyTorch raises a plain RuntimeError for the host's memory and for that of CUDA libraries
_WORDS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, torch.AcceleratorError):  # a shortage outside PyTorch's allocator
        return "out of memory" in str(error) and _can_allocate()
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def _can_allocate() -> bool:
    """Whether the device still works: most CUDA errors make it unusable in this process."""
    try:
        torch.zeros(1, device="cuda").item()
    except (RuntimeError, AssertionError):
        return False
    return True


@contextmanager
def memory_errors(batch: int) -> Iterator[None]:
    """Turns a shortage of memory into DeviceOutOfMemoryError; every other error passes."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        said = lines_of(error)[0].rstrip(". ")
        raise DeviceOutOfMemoryError(
            f"a batch of {batch} does not fit: {said}. "
            "Lower recipe.batch_size or recipe.max_length."
        ) from error


def forget_frames(error: BaseException) -> None:
    """Release what the frames of an error hold, above all the network. Its text stays."""
    for link in chain_of(error):
        traceback.clear_frames(link.__traceback__)


def chain_of(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it, the first one last."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def free_memory() -> None:
    """Return unreferenced memory to the system. No training may be under way."""
    _set_imports_aside()
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc keeps freed memory otherwise
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # PyTorch keeps one for each stream, and each training with CUDA graphs has its own stream.
        # They must not go while a graph lives, which reads and writes them
        with suppress(AttributeError):  # not public
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


@functools.cache
def _set_imports_aside() -> None:
    """Excludes imported objects from garbage collection: scanning them takes 0.2 s each time."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # otherwise DuckDB reports its classes as leaked at exit


class Gathering(NamedTuple):
    """m places that take some of n vectors."""

    taken: torch.Tensor  # (m,) int64: the vector that each place takes
    back: torch.Tensor  # (n,) int64: the place that took each vector; any place if none did
    left: torch.Tensor | None = None  # (n, 1) bool: vectors that no place took; None: all taken


def pick(vectors: torch.Tensor, picked: Gathering) -> torch.Tensor:
    """(n, H) gives (m, H), forward and backward by `index_select`. Autograd's own backward sums
    into each place, which on CUDA needs a sort to be deterministic. If several places take one
    vector, only the gradient of the place in `back` counts, and that of the others must be 0."""
    found: torch.Tensor = _Pick.apply(vectors, *picked)  # type: ignore[no-untyped-call]
    return found


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: torch.Tensor,
        index: torch.Tensor,
        back: torch.Tensor,
        left: torch.Tensor | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(back, left)
        return vectors.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        back, left = ctx.saved_tensors
        found = grad.index_select(0, back)
        if left is not None:
            found.masked_fill_(left, 0)
        return found, None, None, None
