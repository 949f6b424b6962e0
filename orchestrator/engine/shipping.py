"""A cluster of several machines and one store: that all of them see it, and what they lack of the
sweep's own files, which are on no other disk, goes there. What comes of a hub each node fetches.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.inputs.room import has_probe, probe
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage.errors import PreflightError, StoreError
from lp_sweep.storage.shipped import ship
from lp_sweep.storage.store import Store
from lp_sweep.trials.job import data_files, model_files


class _Seen(NamedTuple):
    """What a node says of the store: whether it is the driver's, and how many records that waited
    on the node it took."""

    host: str
    same: bool
    sent: int


def look_at_store(plan: Plan, store: Store, cache_dir: Path) -> Iterator[str]:
    """What is worth saying. Raises PreflightError where a node has another store, or none, by that
    name; StoreError."""
    from lp_sweep.orchestrator.engine.everynode import on_each_node

    with probe(store) as name:
        told = on_each_node(see, store.location, str(cache_dir), name)
    seen = [_Seen(*fields) for fields in told.values()]
    blind = sorted(node.host for node in seen if not node.same)
    if blind:
        raise PreflightError(
            f"{len(blind)} of {len(seen)} nodes don't see the store {store.location}, such as "
            f"{blind[0]}: their records would be lost to it. Name a folder that all nodes share, "
            "or a bucket: --store s3://bucket/prefix."
        )
    if sent := sum(node.sent for node in seen):
        yield f"{sent} finished trials that waited on nodes are stored now"
    if len(seen) > 1 and (shipped := ship_inputs(plan, store)):
        yield f"{shipped} models and data sets went to the store, for nodes without them"


def see(location: str, cache_dir: str, name: str) -> tuple[str, bool, int]:
    """On a node: the fields of `_Seen`; `name` is that of the driver's probe. A worker then finds
    its record in the store."""
    from lp_sweep.storage.spool import flush

    host = socket.gethostname()
    try:
        store = Store(location)
        if not has_probe(store, name):
            return host, False, 0
        return host, True, flush(store, cache_dir).sent
    except StoreError:
        return host, False, 0


def ship_inputs(plan: Plan, store: Store) -> int:
    """How many models and data sets were sent; what the store has already is not. Raises
    StoreError."""
    models: dict[str, Path] = {}  # fingerprint -> folder
    data: dict[str, Mapping[str, str]] = {}  # fingerprint -> split -> file
    for work in plan.missing():
        if not work.model.of_hub:
            models[work.model.fingerprint] = Path(work.model.path)
        if work.task.source.files and work.spec.kind != "speed":
            data[work.spec.data_fingerprint] = work.task.source.files
    sent = [ship(store, key, model_files(folder)) for key, folder in models.items()]
    sent += [ship(store, key, data_files(files)) for key, files in data.items()]
    return sum(sent)
