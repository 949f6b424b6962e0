"""What stays in a worker from one trial to the next: tokenizers, tokens, pre-trained encoders, and
what the last of these made of a task's dev rows.

A trial starts from what `load_tokenizer`, `open_tokens` and `load_pruned` would give it, to the
last bit, whatever the trials before it did: tokens are read-only, a network is a copy. What a name
stands for may change (a folder is written anew, a branch moves): a thing is kept under a stamp of
its files, and what has none is read each time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from lp_sweep.trials.encoded import EncodedTask
from lp_sweep.trials.load import ProblemType
from lp_sweep.trials.measures.devstates import DevPass
from lp_sweep.trials.original import Original
from lp_sweep.trials.prune import load_original
from lp_sweep.trials.shelf import Shelf
from lp_sweep.trials.tasks import is_commit
from lp_sweep.trials.tokenizer import load_tokenizer, tokenizer_digest

MAX_ENCODERS = 2
MAX_ENCODER_BYTES = 2 << 30  # of all that are kept: on the host, and in each worker of a node
_HEADS, _TOKENIZERS, _TASKS = 8, 4, 16

Stamp = tuple[object, ...]


class Source(NamedTuple):
    """Where a model is: a folder, or a hub id at a revision."""

    path: str
    revision: str | None
    offline: bool

    @property
    def options(self) -> dict[str, Any]:
        """As loading takes them, beside the path."""
        return {"revision": self.revision, "local_files_only": self.offline}

    def stamp(self) -> Stamp | None:
        """Two equal stamps stand for the same files; None where nothing can promise that."""
        if not Path(self.path).is_dir():
            return (self.path, self.revision) if is_commit(self.revision) else None
        try:
            with os.scandir(self.path) as entries:
                files = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
        except OSError:  # loading says what is wrong
            return None
        # the time of a change of the file's entry can't be set back, as that of its content can
        known = [
            (name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            for name, found in files
        ]
        return (str(Path(self.path).absolute()), *sorted(known))


class Head(NamedTuple):
    """What a task needs on top of an encoder."""

    num_labels: int
    problem_type: ProblemType


class Words(NamedTuple):
    """A tokenizer, which is not to be changed, and its digest."""

    tokenizer: Any
    digest: str


class Resident:
    """Bounded: so many of each, and of the encoders so many bytes; the oldest go first."""

    def __init__(self) -> None:
        self._words: Shelf[Stamp, Words] = Shelf(_TOKENIZERS)
        self._tasks: Shelf[Path, EncodedTask] = Shelf(_TASKS)
        self._encoders: Shelf[Stamp, Shelf[Head, Original]] = Shelf(MAX_ENCODERS)
        self._passes: Shelf[Hashable, DevPass] = Shelf(1)

    def words(self, source: Source) -> Words:
        """Raises MissingInputError as `load_tokenizer` does."""

        def read() -> Words:
            tokenizer = load_tokenizer(source.path, **source.options)
            return Words(tokenizer, tokenizer_digest(tokenizer))

        stamp = source.stamp()
        return read() if stamp is None else self._words.get(stamp, read)

    def tokens(self, folder: Path, make: Callable[[], EncodedTask]) -> EncodedTask:
        """Those of a folder of the token cache, whose name says what it holds."""
        return self._tasks.get(folder, make)

    def network(
        self, source: Source, head: Head, kept_layers: Sequence[int] | None, seed: int
    ) -> PreTrainedModel:
        """A network of its own for a trial: see `load_pruned`, also for what is raised."""

        def read() -> Original:
            return Original(load_original(source.path, **source.options, **head._asdict()))

        stamp = source.stamp()
        if stamp is None:
            return read().become(kept_layers, seed)
        heads = self._encoders.get(stamp, lambda: Shelf(_HEADS))
        original = heads.get(head, lambda: read().sharing(heads.values()))
        if original.bytes > MAX_ENCODER_BYTES:
            self._encoders.drop(stamp)
            return original.become(kept_layers, seed)
        if self._encoder_bytes() > MAX_ENCODER_BYTES:
            self._encoders.leave(1)
        return original.network(kept_layers, seed)

    def _encoder_bytes(self) -> int:
        """Heads of one encoder share its tensors."""
        return sum(
            original.bytes for heads in self._encoders.values() for original in heads.values()[:1]
        )

    def dev_pass(self, key: Hashable, make: Callable[[], DevPass]) -> DevPass:
        """The last pass over dev rows, if it is that of `key`."""
        return self._passes.get(key, make)

    def forget(self) -> None:
        """Let go of everything, for one who needs the memory."""
        for shelf in (self._words, self._tasks, self._encoders, self._passes):
            shelf.leave(0)


@functools.cache
def resident() -> Resident:
    """This process's."""
    return Resident()
