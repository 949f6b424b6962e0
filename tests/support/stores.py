"""Records, places and files for stores. Not a test."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lp_sweep.storage.schema import SCHEMA_VERSION, TABLES
from lp_sweep.storage.store import Store


def answers_in(store: Path) -> dict[str, str]:
    """Trial -> its answers, bit for bit."""
    files = (store / "predictions").glob("t*.parquet")
    return {file.stem: str(pq.read_table(file).to_pylist()) for file in files}


def trial(name: str, value: float = 0.5) -> dict[str, Any]:
    return {"trial_id": name, "model": "bert", "kept_layers": [1, 2], "last": value}


def cell(sweep: str = "demo", number: int = 0, **columns: Any) -> dict[str, Any]:
    """A cell that waits for a measurement."""
    told = {"model": "bert", "task": "rte", "strategy": "top", "procedure": "direct"}
    return {"sweep": sweep, "cell": number, "depth": 4, "seed": 1, **told, **columns}


def predictions(name: str) -> list[dict[str, Any]]:
    return [{"trial_id": name, "split": "validation", "example": i} for i in range(20)]


def place_of(request: pytest.FixtureRequest) -> str:
    """By the fixture's parameter: a bucket of a real S3 server, or a folder; nothing is there."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3_location"))
    return str(request.getfixturevalue("tmp_path") / "store")


def everything(store: Store) -> dict[str, bytes]:
    """All files of all folders, those that no listing shows too, and what was set aside."""
    folders = [*TABLES, *(f"{table}/packs" for table in TABLES), "runs", "checkpoints"]
    folders += [f"set-aside/{folder}" for folder in folders]
    return {
        path: store.files.read(path)
        for folder in folders
        for path in [f"{folder}/{info.name}" for info in store.files.list(folder)]
    }


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """A real file system of its own at `folder`, in memory."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting a file system is not permitted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_disk(path: Path) -> None:
    """With one file, until the disk takes no more."""
    for size in (2**22, 2**12):
        with path.open("ab", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.write(b"0" * size):
                pass


def newer(content: bytes) -> bytes:
    """The file as a later version of lp-sweep would write it."""
    rows = pq.read_table(pa.BufferReader(content))
    metadata = {**rows.schema.metadata, b"lp_sweep.schema_version": str(SCHEMA_VERSION + 1)}
    sink = pa.BufferOutputStream()
    pq.write_table(rows.replace_schema_metadata(metadata), sink)
    return bytes(sink.getvalue().to_pybytes())
