"""Packs what another machine needs to run a sweep: the sweep file, its manifest, and the models and
data that are no hub's, in a folder of their own, by the same relative paths."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from lp_sweep.orchestrator.inputs.resolve import Sweep
from lp_sweep.storage.errors import PreflightError
from lp_sweep.storage.printable import listed
from lp_sweep.trials.modelfiles import needed_files

# what Ray's job server takes (its DASHBOARD_CLIENT_MAX_SIZE), without 1 MiB for the archive's own
MOST_BYTES = 99 * 2**20
_MIB = 2**20
_ELSEWHERE = (
    "Bring all of it to the head, and start the run there: ray rsync-up cluster.yaml ./ my-sweep/; "
    "ray exec cluster.yaml 'cd my-sweep && lp-sweep run ... --detach'."
)


def pack(files: Iterable[Path], here: Path, target: Path) -> None:
    """Copy the files, which are below `here`, to the same places below `target`. Raises
    PreflightError for what is elsewhere, and for more than the job server takes."""
    found = [Path(os.path.normpath(here / path)) for path in files]
    outside = sorted({os.path.relpath(p, here) for p in found if not p.is_relative_to(here)})
    if outside:
        raise PreflightError(
            f"a detached run can only take files below the current folder, not "
            f"{listed(outside, most=5)}. Start it from a folder above them. {_ELSEWHERE}"
        )
    total = sum(path.stat().st_size for path in found)
    if total > MOST_BYTES:
        largest = max(found, key=lambda path: path.stat().st_size)
        raise PreflightError(
            f"the sweep's own files are {total / _MIB:.0f} MiB, such as "
            f"{largest.relative_to(here)}, and Ray's job server takes {MOST_BYTES / _MIB:.0f}. "
            f"{_ELSEWHERE}"
        )
    for path in found:
        copy = target / path.relative_to(here)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def own_files(sweep: Sweep) -> Iterator[Path]:
    """The files of the models and the data that are no hub's."""
    for model in sweep.models:
        if not model.of_hub:
            yield from needed_files(Path(model.path))
    for task in sweep.tasks.values():
        yield from map(Path, task.source.paths)


def check_packed(sweep: Sweep, target: Path) -> None:
    """`sweep`: as it is found in `target`. Raises PreflightError where it names absolute paths,
    which on another machine lead nowhere."""
    absolute = [str(path) for path in own_files(sweep) if not path.is_relative_to(target)]
    if absolute:
        raise PreflightError(
            f"the sweep file has paths of this machine, from / or ~: {listed(absolute, most=3)}. "
            f"Write them relative to the sweep file. {_ELSEWHERE}"
        )
