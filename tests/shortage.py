"""Trials under a limit on this process's memory. Run as a program by test_out_of_memory.

`python shortage.py JOBS.json STORE ROOM OUT.json`: ROOM in MiB beyond what the process has when the
first job is behind it, 0 for no limit. Then the second and the third, in what is left of memory.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from lp_sweep.trials.run import execute


def main() -> None:
    jobs, store, room, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    small, large, other = json.loads(Path(jobs).read_text(encoding="utf-8"))
    answers: list[Any] = [execute(small, store)]
    if room:
        limit = 1024 * _size_kib() + room * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    answers += [execute(large, store), execute(other, store)]
    answers.append(_enforced(room))
    out.write_text(json.dumps(answers), encoding="utf-8")


def _size_kib() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmSize"):
            return int(line.split()[1])
    raise RuntimeError("no VmSize")


def _enforced(room: int) -> bool:
    try:
        torch.zeros(2 * (room + 64) * 2**20 // 4)
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    main()
