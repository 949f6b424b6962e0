"""Where and with what a record was made: host, device, versions of libraries and code."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import json
import platform
import re
import socket
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lp_sweep.trials.device import device_name

_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "numpy",
    "pyarrow",
    "scikit-learn",
    "scipy",
)
_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("storage", "trials", "analysis", "orchestrator")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def where(device: torch.device, started_at: dt.datetime) -> dict[str, Any]:
    """Columns of every record: machine and time."""
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
    """`lp_sweep`, `code`, `git`, `python`, `platform`, `cuda`, `cudnn`, `nvidia_driver` and the
    libraries behind the numbers, without those that are missing or unknown."""
    cudnn: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    found = {
        "lp_sweep": _version("lp-sweep"),
        "code": code_digest(_ROOT),
        "git": git_state(_ROOT) or _installed_commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cuda": torch.version.cuda,
        "cudnn": cudnn and str(cudnn),
        "nvidia_driver": nvidia_driver(_DRIVER_FILE),
    }
    known = {name: value for name, value in found.items() if value}
    return known | {name: _version(name) for name in _LIBRARIES}


def code_digest(root: Path) -> str:
    """12 hex digits of lp-sweep's running source. Unlike a commit they also identify a wheel and a
    changed checkout."""
    digest = hashlib.sha256()
    for path in sorted(path for room in _ROOMS for path in (root / room).rglob("*.py")):
        name = path.relative_to(root).as_posix().encode()
        digest.update(name + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def git_state(root: Path) -> str | None:
    """The commit, `-dirty` with uncommitted changes; None outside a checkout."""
    if not (root / ".git").exists():
        return None
    # --exclude: else git names a tag instead of the commit
    options = ["--always", "--dirty", "--abbrev=40", "--exclude=*"]
    command = ["git", "-C", str(root), "describe", *options]
    with suppress(OSError, subprocess.SubprocessError, UnicodeError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip() or None
    return None


def _installed_commit() -> str | None:
    """The source that pip recorded when it installed from a repository (PEP 610)."""
    with suppress(metadata.PackageNotFoundError, OSError, ValueError, AttributeError):
        text = metadata.distribution("lp-sweep").read_text("direct_url.json")
        commit = json.loads(text or "{}").get("vcs_info", {}).get("commit_id")
        return commit if isinstance(commit, str) else None
    return None


def nvidia_driver(file: Path) -> str | None:
    """`570.86.10`, from the kernel module; None without it."""
    found = None
    with suppress(OSError, ValueError):
        found = re.search(r"Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s", file.read_text(encoding="utf-8"))
    return found[1] if found else None


def _version(package: str) -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return "unknown"
