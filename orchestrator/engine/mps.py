"""NVIDIA's MPS on the nodes: with it several processes run on one GPU at the same time, without it
by turns. `share_gpus` is what a task on each node runs."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable

from lp_sweep.orchestrator.inputs.gpumemory import unhidden

_CONTROL = "nvidia-cuda-mps-control"
_SECONDS = 120  # a first process on a GPU imports torch
FOUND, STARTED = "found", "started"
_TRY = "import torch; torch.zeros(1, device='cuda').item()"


def share_gpus() -> tuple[str, str]:
    """This node's name, and FOUND, STARTED, or why trials on it take turns."""
    return socket.gethostname(), _share()


def _share() -> str:
    """A daemon that no process can use is stopped again."""
    if shutil.which(_CONTROL) is None:
        return f"{_CONTROL} is not installed"
    try:
        done = _run([_CONTROL, "-d"])
        said = (done.stdout + done.stderr).strip()
        if "already running" in said:
            return FOUND
        if done.returncode:
            return said.splitlines()[-1] if said else f"{_CONTROL} ended with {done.returncode}"
        if _run([sys.executable, "-c", _TRY]).returncode == 0:
            return STARTED
        _run([_CONTROL], "quit\n")
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "no process could use the GPU with MPS, so it was stopped again"


def _run(command: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        input=text,
        env=unhidden(),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        start_new_session=True,  # the daemon outlives this process
    )


def shared_note(told: Iterable[tuple[str, str]]) -> str:
    """A sentence on MPS, from the answers of all nodes."""
    of: dict[str, list[str]] = {FOUND: [], STARTED: []}
    for node, said in sorted(told):
        of.setdefault(said, []).append(node)
    parts = []
    if of[FOUND]:
        parts.append(f"was running on {_nodes(of[FOUND])}")
    if of[STARTED]:
        stop = f"`echo quit | {_CONTROL}` stops it there"
        parts.append(f"was started on {_nodes(of[STARTED])} ({stop})")
    parts += [
        f"is not used on {_nodes(nodes)}: {why}, so trials there take turns"
        for why, nodes in of.items()
        if why not in (FOUND, STARTED)
    ]
    return f"several trials share a GPU: NVIDIA's MPS {'; '.join(parts)}"


def _nodes(names: list[str]) -> str:
    return f"{len(names)} nodes" if len(names) > 1 else names[0]
