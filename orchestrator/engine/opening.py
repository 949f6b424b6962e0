"""Checks before the first trial: that there are GPUs where they are asked for, and that all nodes
see one store. Also sends the store the sweep's own files for nodes that lack them; each node
fetches the hub's files itself.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lp_sweep.orchestrator.engine.capacity import Slots
from lp_sweep.orchestrator.engine.course import Course
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.storage.errors import PreflightError, StoreError
from lp_sweep.storage.runs import FOLDER, Announcement
from lp_sweep.storage.shipped import ship
from lp_sweep.storage.spool import flush
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.tasks import UNLABELLED
from lp_sweep.trials.worker.fetch import data_files, model_files

Everywhere = Callable[..., Mapping[str, Any]]  # node -> the result of a plain function there


def open_run(
    course: Course, slots: Slots, accelerators: Sequence[str] = (), *, joined: bool = False
) -> None:
    """`joined`: on a cluster, whose nodes may see another store and which others may use. Raises
    PreflightError, StoreError."""
    plan, store, reporter = course.queue.plan, course.recorder.store, course.reporter
    for note in _notes_on_gpus(plan, slots, accelerators):
        reporter.note(note)
    if joined:
        for note in look_at_store(plan, store, course.options.node_folder, course.everywhere):
            reporter.note(note)
    else:
        for run in course.presence.beside():
            if crowded := crowded_note(slots, run):
                course.meet(run, crowded)
    if (hours := course.options.max_hours) is not None:
        reporter.note(f"trainings stop after {60 * hours:g} minutes (--max-hours)")
    reporter.opened(course.queue, slots.number)


def _notes_on_gpus(plan: Plan, slots: Slots, accelerators: Sequence[str]) -> Iterator[str]:
    if note := mixed_note(slots, accelerators):
        yield note
    speeds = (work.spec for work in plan.missing_speeds())
    on_gpu = any(spec.kind == "speed" and spec.device_type == "cuda" for spec in speeds)
    if on_gpu and not slots.gpus:
        raise PreflightError(
            "the sweep measures speed on cuda (`measure: {speed: cuda}`), but trials here have no "
            "GPU. Run it on a machine with one, or use measure.speed=cpu."
        )
    if 0 < slots.gpus < 1:
        yield "several trials share a GPU: they take turns unless NVIDIA's MPS runs on each node"


def mixed_note(slots: Slots, accelerators: Sequence[str]) -> str | None:
    """Warns that trials will run on GPUs of several kinds."""
    if not slots.gpus or slots.accelerator_type or len(accelerators) < 2:
        return None
    return (
        f"trials run on GPUs of several kinds ({', '.join(accelerators)}): the seconds in a record "
        "depend on its kind; estimates and speeds never mix kinds. To use one kind: "
        f"resources_per_trial: {{accelerator_type: {accelerators[0]}}}"
    )


def crowded_note(slots: Slots, other: Announcement) -> str | None:
    """Warns about another run on this machine, unless there are cores for both: each has its own
    Ray, which counts all devices."""
    busy = (other.slots + slots.number) * slots.cpus
    if other.slots and not slots.gpus and busy <= (os.cpu_count() or 1):
        return None
    theirs = f"{other.slots} slot{'' if other.slots == 1 else 's'}" if other.slots else "its slots"
    together = f": together {other.slots + slots.number}" if other.slots else ""
    device = "GPUs" if slots.gpus else f"{os.cpu_count()} cores"
    fix = "separate them with CUDA_VISIBLE_DEVICES, or stop" if slots.gpus else "stop"
    return (
        f"another run on this machine (pid {other.pid}) has {theirs}, this one {slots.number}"
        f"{together} on the same {device}, so both are slower: {fix} one. Nothing is lost"
    )


def look_at_store(
    plan: Plan, store: Store, cache_dir: Path, everywhere: Everywhere
) -> Iterator[str]:
    """Checks that all nodes see the store, and sends it their waiting records and the files that
    nodes lack. Yields notes. Raises PreflightError for a node with another store or none, and
    StoreError."""
    name = f"probe-{uuid.uuid4().hex}.txt"
    store.put_text(FOLDER, name, name)
    try:
        seen = everywhere(see, store.location, str(cache_dir), name).values()
    finally:
        store.delete(FOLDER, name)
    blind = sorted(host for host, same, _ in seen if not same)
    if blind:
        raise PreflightError(
            f"{len(blind)} of {len(seen)} nodes don't see the store {store.location}, such as "
            f"{blind[0]}: their records would be lost to it. Name a folder that all nodes share, "
            "or a bucket: --store s3://bucket/prefix."
        )
    if sent := sum(sent for _, _, sent in seen):
        yield f"{sent} finished trials that waited on nodes are stored now"
    if len(seen) > 1 and (shipped := ship_inputs(plan, store)):
        yield f"{shipped} models and data sets went to the store, for nodes without them"


def see(location: str, cache_dir: str, name: str) -> tuple[str, bool, int]:
    """A node's view of the store: its host, whether it sees the driver's probe of this `name`, and
    how many waiting records it has sent to the store."""
    host = socket.gethostname()
    try:
        store = Store(location)
        if store.read_text(FOLDER, name) != name:
            return host, False, 0
        return host, True, flush(store, cache_dir).sent
    except StoreError:
        return host, False, 0


def ship_inputs(plan: Plan, store: Store) -> int:
    """Sends the models and data sets that the store lacks; returns how many. Raises StoreError."""
    models: dict[str, Path] = {}  # fingerprint -> folder
    data: dict[str, Mapping[str, str]] = {}  # fingerprint -> split -> file
    for work in plan.missing():
        if not work.model.of_hub:
            models[work.model.fingerprint] = Path(work.model.path)
        if work.task.source.files and work.spec.kind != "speed":
            data[work.spec.data_fingerprint] = work.task.source.files
        data |= {key: {UNLABELLED: path} for key, path in plan.unlabelled(work).items()}
    sent = [ship(store, key, model_files(folder)) for key, folder in models.items()]
    sent += [ship(store, key, data_files(files)) for key, files in data.items()]
    return sum(sent)
