"""Where and with what a record was made: host, device, library and code versions."""

from __future__ import annotations

import datetime as dt
import functools
import platform
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lp_sweep.trials.device import device_name

_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "pyarrow",
    "scikit-learn",
    "scipy",
)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def where(device: torch.device, started_at: dt.datetime) -> dict[str, Any]:
    """The columns that every record has of the machine and the moment."""
    return {
        "host": socket.gethostname(),
        "device_type": device.type,
        "device_name": device_name(device),
        "threads": torch.get_num_threads(),
        "started_at": started_at,
        "ended_at": now(),
        "versions": versions(),
    }


@functools.cache
def versions() -> dict[str, str]:
    """`lp_sweep`, `git` (only in a checkout), `python`, and the libraries that make the numbers."""
    found = {"lp_sweep": _version("lp-sweep"), "python": platform.python_version()}
    git = _git_state()
    if git:
        found["git"] = git
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    return found | {name: _version(name) for name in _LIBRARIES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _git_state() -> str | None:
    """The commit, `-dirty` with uncommitted changes; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
