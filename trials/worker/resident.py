"""Caches tokenizers, tokens and pre-trained encoders in a worker from one trial to the next.

Earlier trials never change what a later one gets: tokens are read-only, and each network is a copy,
the same to the last bit as `load_pruned` reads it. Files may change under the same name, so the key
of an entry is a stamp of its files. Without a stamp (a branch of the hub) files are read each time.
"""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.data.batches import EncodedTask
from lp_sweep.trials.data.encode import load_tokenizer, tokenizer_digest
from lp_sweep.trials.data.tasks import is_commit
from lp_sweep.trials.kinds import ProblemType
from lp_sweep.trials.model.load import LoadedEncoder, initialise_head
from lp_sweep.trials.model.prune import finish, keep_layers, load_original

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Stamp = tuple[object, ...]

MAX_ENCODER_BYTES = 2 << 30  # of all cached encoders, in host memory, per worker
_ENCODERS, _TOKENIZERS, _TASKS = 8, 4, 16
_CHOICES = 16  # choices of layers whose modules are cached: about 5 kB a module, without tensors


class _Shelf(Generic[K, V]):
    """A cache of at most `room` items. The least recently used one is dropped before a new one is
    made, so that memory never holds both."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.items: dict[K, V] = {}  # in the order of their last use

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The cached value, else the one that `make` returns."""
        if key not in self.items:
            self.leave(self._room - 1)
        item = self.items.pop(key) if key in self.items else make()
        self.items[key] = item
        return item

    def leave(self, number: int) -> None:
        """Drops all but the `number` that were used last."""
        while len(self.items) > number:
            del self.items[next(iter(self.items))]


class Source(NamedTuple):
    """Where a model is: a folder, or a hub id at a revision."""

    path: str
    revision: str | None
    offline: bool

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of a loading function, except the path."""
        return {"revision": self.revision, "local_files_only": self.offline}

    def stamp(self) -> Stamp | None:
        """Equal stamps mean the same files. None if nothing can guarantee that."""
        if not Path(self.path).is_dir():
            return (self.path, self.revision) if is_commit(self.revision) else None
        try:
            with os.scandir(self.path) as entries:
                files = [(entry.name, entry.stat()) for entry in entries if entry.is_file()]
        except OSError:  # loading reports it
            return None
        # unlike the mtime, the ctime can't be set back
        known = [
            (name, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            for name, found in files
        ]
        return (str(Path(self.path).absolute()), *sorted(known))


class Head(NamedTuple):
    """A task's addition to an encoder."""

    num_labels: int
    problem_type: ProblemType


class Words(NamedTuple):
    """A tokenizer, which must not be changed, and its digest."""

    tokenizer: Any
    digest: str


class Original:
    """One encoder with one kind of head, as `prune.load_original` returns it."""

    def __init__(self, loaded: LoadedEncoder) -> None:
        self._loaded = loaded
        self._pruned: _Shelf[tuple[int, ...] | None, PreTrainedModel] = _Shelf(_CHOICES)

    def sharing(self, others: Sequence[Original]) -> Original:
        """This one with the tensors of `others`, which have other heads on the same encoder: memory
        then holds it once. Tensors that a new head overwrites may also be shared."""
        model = self._loaded.model
        theirs = {name: value for other in others for name, value in other.parameters().items()}
        for name, parameter in self.parameters().items():
            if name in theirs and theirs[name].shape == parameter.shape:
                path, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(path), leaf, theirs[name])
        return self

    def parameters(self) -> dict[str, nn.Parameter]:
        return dict(self._loaded.model.named_parameters(remove_duplicate=False))

    def network(self, kept_layers: Sequence[int] | None, seed: int) -> PreTrainedModel:
        """A new network of these layers, as `load_pruned` reads it; also for errors."""
        kept = None if kept_layers is None else tuple(kept_layers)
        network = copy.deepcopy(self._pruned.get(kept, lambda: self._prune(kept)))
        initialise_head(network, self._loaded.fresh, seed)
        return network

    def _prune(self, kept: tuple[int, ...] | None) -> PreTrainedModel:
        """A network with its own modules and the original's tensors."""
        model = self._loaded.model
        tensors = [*model.parameters(), *model.buffers()]
        shallow = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
        if kept is not None:
            keep_layers(shallow, kept)
        return shallow

    def become(self, kept_layers: Sequence[int] | None, seed: int) -> PreTrainedModel:
        """The same without a copy. The original must not be used afterwards."""
        return finish(self._loaded, kept_layers, seed)


def _bytes(originals: Iterable[Original]) -> int:
    """Bytes of their parameters, each counted once."""
    tensors = {id(p): p for one in originals for p in one.parameters().values()}
    return sum(p.numel() * p.element_size() for p in tensors.values())


class Resident:
    """A worker's caches. Each has a limited size; encoders also share a limit in bytes."""

    def __init__(self) -> None:
        self._words: _Shelf[Stamp, Words] = _Shelf(_TOKENIZERS)
        self._tasks: _Shelf[Path, EncodedTask] = _Shelf(_TASKS)
        self._encoders: _Shelf[tuple[Stamp, Head], Original] = _Shelf(_ENCODERS)

    def words(self, source: Source) -> Words:
        """Raises MissingInputError as `load_tokenizer` does."""

        def read() -> Words:
            tokenizer = load_tokenizer(source.path, **source.options)
            return Words(tokenizer, tokenizer_digest(tokenizer))

        stamp = source.stamp()
        return read() if stamp is None else self._words.get(stamp, read)

    def tokens(self, folder: Path, make: Callable[[], EncodedTask]) -> EncodedTask:
        """The tokens in a folder of the token cache. Its name identifies them."""
        return self._tasks.get(folder, make)

    def network(
        self, source: Source, head: Head, kept_layers: Sequence[int] | None, seed: int
    ) -> PreTrainedModel:
        """A trial's own network. See `load_pruned`, also for errors."""

        def read() -> Original:
            options = {**source.options, **head._asdict()}
            others = [one for key, one in self._encoders.items.items() if key[0] == stamp]
            return Original(load_original(source.path, **options)).sharing(others)

        stamp = source.stamp()
        if stamp is None:
            return read().become(kept_layers, seed)
        original = self._encoders.get((stamp, head), read)
        while _bytes(self._encoders.items.values()) > MAX_ENCODER_BYTES:
            self._encoders.leave(len(self._encoders.items) - 1)
        if not self._encoders.items:  # it alone is too large
            return original.become(kept_layers, seed)
        return original.network(kept_layers, seed)

    def forget(self) -> None:
        """Empties all caches, to free memory."""
        for shelf in (self._words, self._tasks, self._encoders):
            shelf.leave(0)


@functools.cache
def resident() -> Resident:
    """The caches of this process."""
    return Resident()
