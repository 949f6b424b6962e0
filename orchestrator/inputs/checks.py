"""Checks models, data and this machine's disks before the first trial starts, and finds its GPUs.

Every problem is reported at once. What the cache lacks must be at the hub, from which the workers
fetch it; offline it must be in the cache. Imports no torch, and leaves no files behind.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from huggingface_hub import constants

from lp_sweep.orchestrator.inputs import hub
from lp_sweep.orchestrator.inputs.data import TaskData, beyond_tables, looked_at
from lp_sweep.orchestrator.inputs.folder import config_problems, size_problems
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.pins import Manifest
from lp_sweep.orchestrator.inputs.resolve import (
    NeededInputs,
    SweepInputs,
    TaskInput,
    local_fingerprints,
)
from lp_sweep.orchestrator.inputs.weights import folder_problems
from lp_sweep.orchestrator.sweepfile.spec import SweepSpec
from lp_sweep.storage.errors import LpSweepError, PreflightError
from lp_sweep.storage.printable import also_in_train, listed
from lp_sweep.trials.data.datasource import (
    LoadedTask,
    dev_texts,
    doubtful_rows,
    load_task,
    overlap,
    scored_rows,
)
from lp_sweep.trials.data.formats import parts_of
from lp_sweep.trials.data.hub import is_cached
from lp_sweep.trials.data.tasks import unnamed_positive
from lp_sweep.trials.model.modelfiles import go_offline
from lp_sweep.trials.spec.specs import Recipe
from lp_sweep.trials.train.metrics import gaps

_WHILE_ONE_WAITS = 32 << 20  # bytes of files: about 150,000 rows, read in under a second
_FIRST_ROWS = 50_000  # of a larger train file
_SPARE = 200 * 2**20  # bytes: a disk with less is full for a run
_LONGEST = 35  # bytes; Ray adds 68 for its sockets, whose paths have at most 103, on Linux 107
_DEVICE_FILES = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA, AMD, WSL


def check(
    sweep: SweepInputs,
    wanted: NeededInputs,
    location: str,
    cache_dir: Path,
    *,
    offline: bool,
) -> tuple[list[str], list[TaskData]]:
    """Reads the headers of weights, every row of the data and, online, the hub's listings. Returns
    notes on doubtful rows, which do not stop a run, and a summary of each task. Raises
    PreflightError with every problem.

    offline: from now on this process and its children contact no hub. A finished sweep needs no
    inputs, so nothing is checked.
    """
    if offline:
        go_offline()
    if not wanted.models and not wanted.tasks:
        return [], []
    local, of_hub, notes, data, download = list[str](), list[str](), list[str](), [], 0
    for model in wanted.models:
        with collected(of_hub if model.of_hub else local):
            download += _check_model(sweep, model, offline=offline)
    for task in wanted.tasks:
        with collected(of_hub if task.source.dataset else local):
            loaded = _rows(task, sweep.recipe, offline=offline)
            notes += _row_notes(task, loaded)
            notes += _test_notes(task, loaded, sweep.recipe, offline=offline)
            local += _beyond_tables(sweep, wanted, task, loaded)
            recipe = sweep.expected_recipe(len(loaded.train))
            data.append(looked_at(task.name, loaded, recipe, sweep.models))
    if offline and sweep.manifest is not None:
        local += _changed(sweep, sweep.manifest, wanted)
        of_hub += _not_in_manifest(sweep, sweep.manifest, wanted)
    if of_hub and offline:
        file = shlex.quote(sweep.document.name)
        of_hub.append(
            f"Next: `lp-sweep prefetch {file}` on a machine with a network, then copy its Hugging "
            f"Face cache (here {constants.HF_HOME}) and {sweep.manifest_file} to this one."
        )
    if problems := [*local, *of_hub, *problems_here(location, cache_dir, download)]:
        raise PreflightError("\n".join(problems))
    return notes, data


def check_small_files(sweep: SweepInputs, wanted: NeededInputs) -> tuple[list[str], list[TaskData]]:
    """Checks the folders of models, and the rows that can be read while a user waits for a plan:
    small data as a run does, and the first rows of large data. Returns notes and a summary of each
    task. Raises PreflightError with every problem that would stop a run."""
    left, data = _WHILE_ONE_WAITS, []
    problems, notes, not_cached = list[str](), list[str](), list[str]()
    for model in wanted.models:
        if not model.of_hub and (found := folder_problems(model.folder, depth=model.depth)):
            problems.append(_model_message(model, found))
    for task in wanted.tasks:
        if task.source.dataset and not (task.pinned and is_cached(task.source)):
            not_cached.append(task.name)
            continue
        size = sum(part.stat().st_size for path in task.source.paths for part in parts_of(path))
        whole = bool(task.source.files) and size <= left
        left -= size if whole else 0
        doubtful: list[str] = []  # later rows may solve it, such as a class that comes late
        with collected(problems if whole else doubtful):
            loaded = _rows(task, sweep.recipe, most=None if whole else _FIRST_ROWS, offline=True)
            problems += _beyond_tables(sweep, wanted, task, loaded)
            recipe = sweep.expected_recipe(len(loaded.train))
            data.append(looked_at(task.name, loaded, recipe, sweep.models))
            notes += _row_notes(task, loaded) if whole else ()
            if whole:
                notes += _test_notes(task, loaded, sweep.recipe, offline=True)
        first = f"the first {_FIRST_ROWS:,} train rows of {task.name}"
        notes += [f"{first} alone can't be judged: {why}" for why in doubtful]
    if problems:
        raise PreflightError("\n".join(problems))
    if not_cached:
        notes.append(f"rows not in the hub's cache are not looked at: {listed(not_cached)}")
    return notes, data


@contextmanager
def collected(problems: list[str]) -> Iterator[None]:
    """Goes on after an error of the inputs, and puts it among the problems."""
    try:
        yield
    except LpSweepError as error:
        problems.append(str(error))


def _check_model(sweep: SweepInputs, model: ModelInput, *, offline: bool) -> int:
    """The bytes still to download to this machine. Raises PreflightError."""
    _require_pinned(model, f"model {model.name!r}: {model.revision!r}")
    held = sweep.manifest.find(model.path, model.asked) if sweep.manifest else None
    problems = folder_problems(model.folder, depth=model.depth, sizes=held.sizes if held else {})
    if not problems:
        return 0
    if offline or not model.of_hub:
        raise PreflightError(_model_message(model, problems))
    commit = str(model.revision)
    try:
        hub.read_json(model.path, "config.json", commit)
        files = hub.model_files(model.path, commit)
    except hub.HubRefusal as error:
        raise PreflightError(
            f"model {model.name!r} is not complete in the Hugging Face cache, and {error}."
        ) from None
    sizes = {name: file.size or 0 for name, file in files.items()}
    present = {name: size for name, size in sizes.items() if (model.folder / name).is_file()}
    problems = [*size_problems(model.folder, present).values()]
    if problems:
        problems.append("`lp-sweep prefetch` fetches such a file again")
    elif present == sizes:  # and yet something is wrong
        problems = folder_problems(model.folder, depth=model.depth)
    else:
        problems = config_problems(model.folder / "config.json", model.depth)
    if problems:
        raise PreflightError(_model_message(model, problems))
    return sum(sizes.values()) - sum(present.values())


def _model_message(model: ModelInput, problems: Sequence[str]) -> str:
    return f"model {model.name!r} ({model.folder}): {'; '.join(problems)}"


def _require_pinned(item: ModelInput | TaskInput, what: str) -> None:
    if not item.pinned:
        raise PreflightError(
            f"{what} is not pinned to a commit ({item.why_not_pinned}), and it could change during "
            "the sweep. Write `revision:` and a commit of 40 hex digits, or run `lp-sweep "
            "prefetch` where there is a network."
        )


def _rows(task: TaskInput, recipe: Recipe, *, offline: bool, most: int | None = None) -> LoadedTask:
    """Reads the data once, as a trial will: columns, labels, encoding, limits on the number of
    rows. `most`: only so many train rows, the first. Raises TrialError or PreflightError."""
    _require_pinned(task, f"task {task.name!r}: {task.source.dataset}@{task.source.revision}")
    loaded = load_task(
        task.definition,
        task.source,
        limit_train=recipe.limit_train,
        limit_dev=recipe.limit_dev,
        offline=offline,
        most=most,
        unlabelled=True,
        loss=task.loss,
    )
    if problem := unnamed_positive(task.definition, loaded.label_names):
        raise PreflightError(f"task {task.name!r}: {problem}")
    return loaded


def _row_notes(task: TaskInput, loaded: LoadedTask) -> Iterator[str]:
    if (both := overlap(loaded)).rows:
        yield f"task {task.name!r}: {also_in_train(*both)}"
    if loaded.unlabelled and (leaked := dev_texts(loaded)):
        yield (
            f"task {task.name!r}: {leaked:,} of {len(loaded.unlabelled):,} unlabelled texts are "
            "also dev texts. Scores of students on them are optimistic: remove them from "
            f"{task.source.unlabelled}."
        )
    yield from doubtful_rows(loaded, task.source)
    yield from (f"task {task.name!r}: {gap}" for gap in gaps(loaded))


def _test_notes(
    task: TaskInput, loaded: LoadedTask, recipe: Recipe, *, offline: bool
) -> Iterator[str]:
    """Reads the rows that are set aside, all of them, as the task's own. Raises as `_rows` does."""
    if task.test is None:
        return
    own = task._replace(source=task.test)
    aside = _rows(own, replace(recipe, limit_dev=None), offline=offline)
    seen = {"train": aside, "dev": replace(aside, train=scored_rows(loaded))}
    for side, against in seen.items():
        if (both := overlap(against)).rows:
            yield (
                f"task {task.name!r}: {both.rows:,} of {both.of:,} test rows also occur in {side}. "
                "The test score is optimistic: remove them from one of the two."
            )


def _beyond_tables(
    sweep: SweepInputs, wanted: NeededInputs, task: TaskInput, loaded: LoadedTask
) -> Iterator[str]:
    for model in wanted.models:
        if why := beyond_tables(model.folder, loaded, sweep.recipe.max_length):
            yield f"model {model.name!r}, task {task.name!r}: {why}"


def _not_in_manifest(sweep: SweepInputs, manifest: Manifest, wanted: NeededInputs) -> Iterator[str]:
    """Inputs that the sweep file names and the manifest does not."""
    of = f"is not in the manifest {sweep.manifest_file}"
    for model in wanted.models:
        if model.of_hub and not manifest.find(model.path, model.asked):
            yield f"model {model.name!r} ({model.asked}) {of}"
    for task in wanted.tasks:
        source = task.source
        if source.dataset and not manifest.find(source.dataset, str(task.asked), source.config):
            yield f"task {task.name!r}: {source.dataset} ({task.asked}) {of}"


def _changed(sweep: SweepInputs, manifest: Manifest, wanted: NeededInputs) -> Iterator[str]:
    """Folders and files that have changed since the manifest was written."""
    for name, fingerprint in local_fingerprints(wanted.models, wanted.tasks):
        if manifest.local.get(name, fingerprint) != fingerprint:
            yield (
                f"{name}: its files differ from the manifest {sweep.manifest_file}. Copy "
                f"them again, or, if the change is intended, delete the line from the manifest."
            )


def problems_here(location: str, cache_dir: Path, download_bytes: int) -> Iterator[str]:
    """Which folders here can't hold the store, the tokens, Ray's files or the downloads."""
    sizes = {cache_dir: 0, ray_folder(): 0}
    if "://" not in location:
        sizes[Path(location).expanduser()] = 0
    if download_bytes:
        sizes[Path(constants.HF_HUB_CACHE)] = download_bytes
    for folder, size in sizes.items():
        absolute = folder.absolute()
        there = next(path for path in (absolute, *absolute.parents) if path.exists())
        if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
            yield (
                f"can't write to {folder}: {there} is no folder, or is read-only for this user. "
                "Name another folder with --store (records) or --cache-dir (tokens)."
            )
        free = shutil.disk_usage(there).free
        if free < size + _SPARE:
            yield (
                f"only {free >> 20:,} MiB are free for {folder}, and about {size + _SPARE >> 20:,} "
                "MiB are needed. Free some, or name another folder (--store, --cache-dir, HF_HOME, "
                "TMPDIR)."
            )


def ray_folder() -> Path:
    """Where a Ray of our own keeps its files: RAY_TMPDIR, else TMPDIR or what Python takes in its
    place. If that is too long for Ray, as on many batch systems, a folder below /tmp that only this
    user can read, which may not exist yet."""
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()).absolute()
    short = len(os.fsencode(folder)) <= _LONGEST
    return folder if short else Path(f"/tmp/lp-sweep-{os.getuid()}")


def cores() -> int:
    """The cores that this process may use: a batch system gives it some of a machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_gpus() -> int:
    """The GPUs that this process may use."""
    if not _has_devices():
        return 0  # without the seconds that torch takes to find none
    import torch

    return torch.cuda.device_count()


def _has_devices() -> bool:
    return any(found for pattern in _DEVICE_FILES for found in Path("/dev").glob(pattern))


def gpu_notes(spec: SweepSpec) -> list[str]:
    """A note where trials ask for a GPU that this machine lacks."""
    asked = spec.resources_per_trial.gpu
    if not asked or _has_devices():
        return []
    return [
        f"resources_per_trial asks for {asked:g} GPU a trial, and this machine has none: a run "
        "here does not start. Run the sweep where there is one, or remove `gpu:`."
    ]
