"""Room on disks: what a sweep is going to write, and whether there is room for it.

Rough on purpose, and low: a check that refuses what would have worked is worse than none.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.preflight.inputs import needed

MARGIN = 100 * 2**20  # bytes that a disk in use should keep free
_RECORD = 40_000  # bytes of a record with its curves, and of a log
_PREDICTION = 30  # bytes of a dev example's row, compressed
_TOKENS = 64  # mean length, as the estimate of hours has it
_TOKEN = 5  # bytes in the cache: an int32 and a type
_RAY = 300 * 2**20  # bytes of logs, and of the object store where there is no /dev/shm
_WEIGHT = 4  # bytes


class Need(NamedTuple):
    """So many bytes are going to be written below a folder, which needn't exist yet."""

    folder: Path
    bytes: int
    what: str


def needs(plan: Plan, location: str, cache_dir: Path, download_bytes: int) -> list[Need]:
    """Of this machine's disks; other nodes and object stores are not looked at."""
    from huggingface_hub import constants

    tasks = {task.name: task for task in needed(plan).tasks}
    rows = sum(task.train_rows + task.dev_rows for task in tasks.values())
    tokens = rows * min(plan.sweep.recipe.max_length, _TOKENS) * _TOKEN
    asked = [
        Need(cache_dir, tokens, "tokens"),
        Need(Path(constants.HF_HUB_CACHE), download_bytes, "downloads"),
        Need(Path(tempfile.gettempdir()), _RAY, "Ray's files"),
    ]
    if "://" not in location:
        asked.append(Need(Path(location).expanduser(), _store_bytes(plan), "records"))
    return asked


def _store_bytes(plan: Plan) -> int:
    trials = plan.missing_trials()
    records = sum(_RECORD + work.task.dev_rows * _PREDICTION for work in trials)
    weights = {work.id: (work.model.parameters or 0) * _WEIGHT for work in trials}
    needed = plan.needed_networks()  # by what comes after all of them: they are there at one time
    spec = plan.sweep.spec
    share = {"none": 0.0, "best": 1 / len(spec.seeds), "all": 1.0}[spec.keep]
    kept = sum(size if id_ in needed else share * size for id_, size in weights.items())
    # weights and both moments of one trial at a time, at least
    checkpoint = 3 * max(weights.values(), default=0) if spec.checkpoint_every else 0
    return records + int(kept) + checkpoint


def space_problems(asked: Sequence[Need]) -> list[str]:
    """Folders of one disk share its room."""
    disks: dict[int, list[Need]] = defaultdict(list)
    for need in asked:
        disks[existing(need.folder).stat().st_dev].append(need)
    problems = []
    for together in disks.values():
        total = sum(need.bytes for need in together) + MARGIN
        free = shutil.disk_usage(existing(together[0].folder)).free
        if free < total:
            parts = ", ".join(f"{_mib(n.bytes)} of {n.what} in {n.folder}" for n in together)
            problems.append(
                f"only {_mib(free)} are free, and about {_mib(total)} are needed: {parts}, and "
                f"{_mib(MARGIN)} to spare. Free some, or name other folders (--store, "
                f"--cache-dir, HF_HOME, TMPDIR)."
            )
    return problems


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _mib(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
