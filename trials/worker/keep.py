"""Saves trained networks (`keep: none`, `best` or `all`) and fetches them.

A kept network is a folder of the store, `weights/<trial_id>/`, that plain transformers loads:
safetensors, the pruned config, the tokenizer. `storage/networks.py` decides which ones stay.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lp_sweep.storage.errors import MissingInputError, StoreError, SweepWarning, lines_of
from lp_sweep.storage.networks import (
    ALL,
    BEST,
    KEPT_BY,
    NEED,
    fetch_network,
    has_network,
    is_best,
    keep_for_good,
    keep_while_needed,
    settle,
    write_sums,
)
from lp_sweep.storage.spool import Outbox
from lp_sweep.trials.model.load import quiet
from lp_sweep.trials.worker.inputs import Inputs


class Keeper:
    """Keeps or deletes one trial's network. `needed`: other trials continue from it."""

    def __init__(self, mode: str, outbox: Outbox, *, needed: bool = False) -> None:
        if mode not in ("none", BEST, ALL):
            raise ValueError(f"keep: {mode!r}. Use none, best or all.")
        self.needed = needed
        self.mode = NEED if needed and mode != ALL else mode
        self.outbox = outbox
        self.unkept = ""  # why the network could not be saved
        self._is_beaten = False  # by another seed; then the network is not saved

    def lacks(self, trial: str) -> bool:
        """Whether other trials need the network of a recorded trial and the store lacks it. Marks a
        stored one as needed. Raises StoreError."""
        store = self.outbox.store
        if not self.needed or store is None:
            return False
        if self.mode == NEED:
            keep_while_needed(store, trial)
        return not has_network(store, trial)

    def keep(self, inputs: Inputs, record: dict[str, Any]) -> None:
        """Saves the trained network to the node's spool, if it is to be kept. If it can't,
        `unkept` says why: the record is worth more."""
        self._is_beaten = self.mode == BEST and self._beaten(record)
        if self.mode == "none" or self._is_beaten:
            return

        def save(folder: Path) -> None:
            save_network(inputs, folder)
            write_sums(folder)  # before KEPT_BY, which changes later
            (folder / KEPT_BY).write_text(f"{self.mode}\n", encoding="utf-8")

        try:
            self.outbox.spool.put_network(record["trial_id"], save)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self.unkept = lines_of(error)[0]

    def _beaten(self, record: dict[str, Any]) -> bool:
        if self.outbox.store is None:
            return False
        try:
            return not is_best(self.outbox.store, record)
        except torch.AcceleratorError:
            raise
        except Exception:
            return False  # it can be deleted later

    def settle(self, record: dict[str, Any]) -> None:
        """Once the record is stored, deletes the networks of its group that are not the best. Only
        warns if it can't: the trial is done."""
        store = self.outbox.store
        if self.mode == "none" or store is None:
            return
        try:
            if self.mode == ALL:
                keep_for_good(store, record["trial_id"])
            elif self.mode == BEST:
                settle(store, record, look=not self._is_beaten)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            warnings.warn(
                f"networks beside {record['trial_id']}: {error}", SweepWarning, stacklevel=2
            )


def save_network(inputs: Inputs, folder: Path) -> None:
    """Config, weights and tokenizer, as plain transformers loads them. A network that lost
    feed-forwards needs `feedforward.load_network`."""
    config = inputs.model.config
    if inputs.encoded.label_names:
        config.id2label = dict(enumerate(inputs.encoded.label_names))
        config.label2id = {label: index for index, label in config.id2label.items()}
    with quiet():
        inputs.model.save_pretrained(folder)
        inputs.tokenizer.save_pretrained(folder)


_ABANDONED_SECONDS = 86_400.0


@contextmanager
def kept_network(outbox: Outbox, trial: str) -> Iterator[Path | None]:
    """The folder of a copy that plain transformers loads; None if the store has no network of the
    trial. Raises MissingInputError if the store refuses."""
    scratch = outbox.cache_dir / "networks"
    scratch.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(scratch)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        try:
            found = outbox.store is not None and fetch_network(outbox.store, trial, folder)
        except StoreError as error:
            raise MissingInputError(f"can't fetch the network of {trial}. {error}") from error
        yield folder if found else None


@contextmanager
def needed_network(outbox: Outbox, trial: str | None) -> Iterator[Path | None]:
    """A copy of the network that a job needs; None without `trial`. Raises MissingInputError."""
    if trial is None:
        yield None
        return
    with kept_network(outbox, trial) as folder:
        if folder is None and outbox.store is None:
            raise MissingInputError(f"can't fetch the network of {trial}. {outbox.refusal}")
        if folder is None:
            raise MissingInputError(
                f"the network of trial {trial}, which this one starts from, is not in the store "
                f"{outbox.location}. Run the sweep again: it trains that network again."
            )
        yield folder


def _remove_abandoned(scratch: Path) -> None:
    """Deletes copies of killed workers: no training needs one for a day."""
    latest = time.time() - _ABANDONED_SECONDS
    for path in scratch.iterdir():
        with contextlib.suppress(OSError):  # gone meanwhile
            if path.stat().st_mtime < latest:
                shutil.rmtree(path, ignore_errors=True)
