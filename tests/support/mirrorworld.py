"""A store with trials for a mirror, and readers of what mirrors write. Not a test."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event

from lp_sweep.storage.store import Store
from tests.support.fake_records import FakeSweep

SECRET = "Zq-hunter2-hunter2"


def mirrored_store(folder: Path, name: str = "demo") -> Store:
    """Two trials that are done, one of them of two cells; one that has failed; one to do."""
    fake = FakeSweep(folder, name)
    fake.cell(k=0, score=92.5)
    fake.cell(k=0, score=92.5, strategy="bottom")
    private = {"command": f"lp-sweep run --token {SECRET}", "host": SECRET}
    fake.cell(k=4, score=90.0, learning_rate=3e-5, **private)
    fake.cell(k=8, state="failed")
    fake.cell(k=10, state="pending")
    return fake.publish()


def trial_of(store: Store, sweep: str = "demo", **cell: Any) -> str:
    """The identifier of the trial of the cell."""
    rows = store.read("sweeps", sweep)
    (found,) = {row["trial_id"] for row in rows if cell.items() <= row.items()}
    return str(found)


def events(folder: Path) -> Iterator[Event]:
    """Reads the one event file of a folder: each record is length, checksum, bytes, checksum."""
    (path,) = folder.iterdir()
    content, at = path.read_bytes(), 0
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        yield Event.FromString(content[at + 12 : at + 12 + length])
        at += 12 + length + 4


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value)."""
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def texts(folder: Path) -> dict[str, str]:
    """Tag -> text."""
    return {
        value.tag.removesuffix("/text_summary"): value.tensor.string_val[0].decode()
        for event in events(folder)
        for value in event.summary.value
        if value.tag.endswith("/text_summary")
    }
