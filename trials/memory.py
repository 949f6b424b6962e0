"""When a device has no room: the typed error, and memory given back before another try."""

from __future__ import annotations

import atexit
import ctypes
import errno
import functools
import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from lp_sweep.storage.errors import DeviceOutOfMemoryError
from lp_sweep.trials.batches import BatchSizes

# PyTorch raises a plain RuntimeError for the host's memory, and where a CUDA library ran out
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
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


@contextmanager
def memory_errors(batches: BatchSizes) -> Iterator[None]:
    """Turns a shortage of memory into DeviceOutOfMemoryError; every other error passes."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise DeviceOutOfMemoryError(
            f"a batch of {batches.training} does not fit: {said}. "
            "Lower recipe.batch_size or recipe.max_length."
        ) from error


def forget_frames(error: BaseException) -> None:
    """Let go of what the frames of an error hold, the network above all. Its text stays."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__


def free_memory() -> None:
    """Give back what nothing refers to any more."""
    _set_imports_aside()
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc's: it keeps what was freed, else
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


@functools.cache
def _set_imports_aside() -> None:
    """What the imports made stays for good: to look at it again takes 0.2 s each time."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # else DuckDB counts its classes as leaked when Python ends
