"""A store with a kept network and one that was not kept, to be exported. Not a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from lp_sweep.orchestrator.export import graphs, trialfolder
from lp_sweep.orchestrator.export.trialfolder import ExportResult
from lp_sweep.orchestrator.export.verify import FolderAnswers
from lp_sweep.orchestrator.service import export as service
from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.networks import SUMS
from lp_sweep.storage.store import Store
from lp_sweep.trials.model.plainload import answer_of
from tests.support.plain_jobs import execute
from tests.support.toyworld import jobs, save_world

QUICK = ("recipe.epochs=1", "recipe.limit_train=64")


class World(NamedTuple):
    """A sweep file with its inputs and its store."""

    file: Path | str
    store: Store
    kept: str  # a trial of two layers, whose network the store has
    unkept: str  # of three

    def export(self, trial: str, out: Path, **options: Any) -> ExportResult:
        place = {"store": self.store.location, "cache_dir": self.cache, "offline": True}
        return service.export_trial(
            service.ExportOptions(
                trial=trial, out=out, **({"file": str(self.file)} | place | options)
            )
        )

    @property
    def cache(self) -> Path:
        return Path(self.store.location).with_name("cache")

    @property
    def weights(self) -> Path:
        return Path(self.store.location) / "weights" / self.kept / "model.safetensors"

    def copy(self, folder: Path) -> World:
        """The same with a store of its own, to be broken."""
        shutil.copytree(self.store.location, folder / "store")
        return self._replace(store=Store(folder / "store"))

    def refuses_swapped_layers(self, folder: Path, what: str = "logit") -> None:
        """A kept network with its layers in another order is not published."""
        mine = self.copy(folder)
        (mine.weights.parent / SUMS).unlink()
        change_weights(mine.weights, swap_layers)
        with pytest.raises(ExportError, match=f"a {what} differs from the stored one"):
            mine.export(mine.kept, folder / "out")
        assert not (folder / "out").exists()


def make_world(folder: Path) -> World:
    file = save_world(folder)
    store = Store(folder / "store", create=True)
    ids = []
    for k, keep in ((2, "all"), (1, "none")):
        job = jobs(file, f"k={k}", *QUICK)[0]
        assert execute({**job, "keep": keep}, store.location)["status"] == "done"
        ids.append(job["id"])
    return World(file, store, *ids)


def two_networks(file: Path, order: Sequence[dict[str, Any]]) -> World:
    """The trained and kept networks of two jobs, the one with all layers first."""
    store = Store(file.parent.with_name("store"), create=True)
    for job in order:
        assert execute({**job, "keep": "all"}, store.location)["status"] == "done"
    full, pruned = order
    return World(file, store, pruned["id"], full["id"])


def answer_here(folder: Path, request: Mapping[str, Any]) -> FolderAnswers:
    """Answers as `process.ask` does, but in this process: ten times as fast."""
    plain: dict[str, Any] = json.loads(json.dumps(request))
    values, told = answer_of(str(folder), plain | {"threads": None})
    return FolderAnswers(values, told["missing"], told["labels"])


def in_this_process(monkeypatch: Any) -> None:
    """For what is not about the process: its start takes seconds."""
    for module in (trialfolder, graphs):
        monkeypatch.setattr(module, "ask", answer_here)


def change_weights(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def swap_layers(tensors: dict[str, np.ndarray]) -> None:
    """The first layer's weights in the place of the second's, and the other way round."""
    names = [name for name in tensors if ".layer.0." in name]
    assert names
    for name in names:
        other = name.replace(".layer.0.", ".layer.1.")
        tensors[name], tensors[other] = tensors[other], tensors[name]
