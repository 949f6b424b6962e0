"""Trials under a limit on this process's memory. Run as a program by test_out_of_memory.

`python shortage.py JOBS.json STORE ROOM OUT.json`: ROOM in KiB beyond what the process has when the
first job is behind it, 0 for no limit. Then the second and the third, in what is left of memory.
OUT holds what came of these two, how many KiB the second took at its most, and whether the limit
was held.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from lp_sweep.trials.worker.run import execute


def main() -> None:
    jobs, store, room, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    small, large, other = (
        {**job, "store": store} for job in json.loads(Path(jobs).read_text(encoding="utf-8"))
    )
    execute(small)
    before = _kib("VmSize")
    if room:
        limit = 1024 * (before + room)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    told: dict[str, Any] = {"large": execute(large), "taken": _kib("VmPeak") - before}
    told |= {"after": execute(other), "enforced": _enforced(room)}
    out.write_text(json.dumps(told), encoding="utf-8")


def _kib(field: str) -> int:
    """This process's address space: `VmSize` is its size, `VmPeak` the largest it ever had."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {field}")


def _enforced(room: int) -> bool:
    try:
        torch.zeros((2 * room + 2**17) * 1024 // 4)
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    main()
