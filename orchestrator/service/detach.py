"""`run --detach`: submits the same command as a job of the cluster, with its driver on the head.

A job from the head runs in the shell's folder and reads its settings from a file that only this
user can read. A job from another machine runs in its own folder, with the files that were sent and
the head's settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.cluster.jobs import Jobs
from lp_sweep.orchestrator.engine.connection import is_job_server
from lp_sweep.orchestrator.engine.runoptions import RunOptions
from lp_sweep.orchestrator.flags import JOB_SERVER, flags_of
from lp_sweep.orchestrator.inputs.request import Request
from lp_sweep.orchestrator.inputs.resolve import Sweep
from lp_sweep.orchestrator.mirrors.kinds import MirrorKind
from lp_sweep.orchestrator.sweepfile.load import SweepFile
from lp_sweep.storage.bucket import parse_url
from lp_sweep.storage.errors import PreflightError, SpecError
from lp_sweep.storage.files import is_bucket
from lp_sweep.storage.printable import listed
from lp_sweep.trials.data.formats import parts_of
from lp_sweep.trials.model.modelfiles import needed_files

_MIRRORS = "|".join(kind.upper() for kind in MirrorKind)
# variables of the head's shell that the driver gets; workers have those of their nodes. --json
# concerns only the command that submits
_CARRIED = re.compile(
    rf"(?!LP_SWEEP_JSON$)(LP_SWEEP|HF|AWS|{_MIRRORS})_[A-Za-z0-9_]+|XDG_CACHE_HOME"
)
_FORGOTTEN = 24 * 3600.0  # seconds
# variables of another machine that the driver gets: what to run, but not where that machine is
_OF_HERE = ("address", "cache_dir", "inline")
_SAID = (
    *(flag.variables[0] for name, flag in flags_of(RunOptions).items() if name not in _OF_HERE),
    *("LP_SWEEP_STORE_PATIENCE", "LP_SWEEP_EVENTS"),
)
# Ray's job server accepts 100 MiB (DASHBOARD_CLIENT_MAX_SIZE); 1 MiB is for the archive itself
MOST_BYTES = 99 * 2**20
_MIB = 2**20
_ELSEWHERE = (
    "Bring all of it to the head, and start the run there: ray rsync-up cluster.yaml ./ my-sweep/; "
    "ray exec cluster.yaml 'cd my-sweep && lp-sweep run ... --detach'."
)


class Submitted(NamedTuple):
    """The name of a run, and the address of the job server that has it."""

    run: str
    address: str | None


def submit(options: RunOptions, typed: Sequence[str]) -> Submitted:
    """`typed`: the command line after `lp-sweep`. Checks everything before there is a job. Raises
    SpecError and PreflightError."""
    if options.inline:
        raise SpecError("--inline runs trials in this process, --detach on a cluster. Keep one.")
    file = options.sweep_file()
    if is_bucket(location := options.location(file)):
        parse_url(location)  # refuses a credential, which the job server would keep
    jobs = Jobs(options.address or os.environ.get(JOB_SERVER))
    id_ = f"lp-sweep-{uuid.uuid4().hex[:8]}"
    words = job_words(typed)
    if is_job_server(jobs.address):
        _submit_from_afar(jobs, id_, words, options, options.cluster)
    else:
        options.resolved(file)
        _submit_here(jobs, id_, words, file, options.node_folder)
    return Submitted(id_, jobs.address)


def job_words(typed: Sequence[str]) -> list[str]:
    """The typed command as the driver on the head gets it, without options for this terminal."""
    verb, *rest = typed
    kept = [word for word in rest if word not in ("--detach", "--json")]
    while "--address" in kept:
        del kept[(at := kept.index("--address")) : at + 2]
    return [verb, "--address", "auto", *(word for word in kept if word[:10] != "--address=")]


# -- on the head


def _submit_here(
    jobs: Jobs, id_: str, words: Sequence[str], file: SweepFile, node_folder: Path
) -> None:
    settings = node_folder / "jobs" / f"{id_}.sh"
    drop_forgotten(settings.parent)
    write_settings(settings, os.environ)
    run = shlex.join([sys.executable, "-m", "lp_sweep.orchestrator.cli", *words])
    here = f". {shlex.quote(str(settings))} && cd {shlex.quote(str(Path.cwd()))}"
    try:
        jobs.submit(id_, f"{here} && exec {run}", sweep=file.spec.name)
    except BaseException:
        settings.unlink(missing_ok=True)
        raise


def drop_forgotten(folder: Path) -> None:
    """Deletes settings that no job has read for a day; a job reads them within seconds."""
    with contextlib.suppress(OSError):
        for path in folder.glob("*.sh"):
            if time.time() - path.stat().st_mtime > _FORGOTTEN:
                path.unlink(missing_ok=True)


def write_settings(path: Path, environment: Mapping[str, str]) -> None:
    """Writes a shell script that sets the variables and then deletes itself. Raises
    PreflightError."""
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in sorted(environment.items())
        if _CARRIED.fullmatch(name)
    ]
    lines.append(f"rm -f {shlex.quote(str(path))}\n")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.writelines(lines)
    except OSError as error:
        raise PreflightError(
            f"can't write {path}, by which the job gets the settings of this shell: "
            f"{error.strerror}. Name another folder with --cache-dir."
        ) from None


# -- on another machine


def _submit_from_afar(
    jobs: Jobs, id_: str, words: Sequence[str], request: Request, cluster: Path | None
) -> None:
    file = request.sweep_file()
    _refuse_places_of_here(request, file, cluster)
    said = [f"{name}={value}" for name in _SAID if (value := os.environ.get(name))]
    command = f"exec {shlex.join(['env', *said, 'lp-sweep', *words])}"
    with tempfile.TemporaryDirectory(prefix="lp-sweep-") as name:
        folder = Path(name).resolve()
        if not request.is_built_in:
            _pack(request, file, cluster, folder)
        jobs.submit(id_, command, sweep=file.spec.name, folder=folder)


def _refuse_places_of_here(request: Request, file: SweepFile, cluster: Path | None) -> None:
    """Raises SpecError for a place that would be another one on the head."""
    store = request.store or file.spec.store
    if not store or not (is_bucket(store) or Path(store).is_absolute()):
        raise SpecError(
            f"the store is {store or 'not named'}, and the job's own folder goes with the job. "
            "Name the cluster's: --store s3://bucket/prefix, or the folder that all machines share."
        )
    places = {
        "the sweep file": None if request.is_built_in else request.file,
        "--data-dir (or LP_SWEEP_DATA_DIR)": request.data_dir,
        "--manifest": request.manifest,
        "--cluster (or LP_SWEEP_CLUSTER)": cluster,
    }
    for name, place in places.items():
        if place is not None and Path(place).is_absolute():
            raise SpecError(f"{name} is {place}, a path of this machine: give it relative to here.")


def _pack(request: Request, file: SweepFile, cluster: Path | None, folder: Path) -> None:
    """Copies what the head needs to `folder`. Raises PreflightError for what can't be sent."""
    sweep = request.resolved(file)
    beside = [path for path in (sweep.manifest_file, cluster) if path]
    named = [path for path in (Path(request.file), *beside) if path.is_file()]
    pack([*named, *own_files(sweep)], Path.cwd(), folder)
    moved = replace(
        request,
        file=str(folder / request.file),
        data_dir=request.data_dir and folder / request.data_dir,
        manifest=request.manifest and folder / request.manifest,
    )
    check_packed(moved.resolved(moved.sweep_file()), folder)


# -- what another machine needs to run a sweep, by the same relative paths


def pack(files: Iterable[Path], here: Path, target: Path) -> None:
    """Copies files from below `here` to the same places below `target`. Raises PreflightError for
    files elsewhere, and for more bytes than the job server accepts."""
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
    """The files of models and data that do not come from the hub."""
    for model in sweep.all_models:
        if not model.of_hub:
            yield from needed_files(Path(model.path))
    for task in sweep.tasks.values():
        for path in task.source.paths:
            yield from parts_of(path)


def check_packed(sweep: Sweep, target: Path) -> None:
    """Raises PreflightError if the sweep, as read in `target`, still names absolute paths: another
    machine does not have them."""
    absolute = [str(path) for path in own_files(sweep) if not path.is_relative_to(target)]
    if absolute:
        raise PreflightError(
            f"the sweep file has paths of this machine, from / or ~: {listed(absolute, most=3)}. "
            f"Write them relative to the sweep file. {_ELSEWHERE}"
        )
