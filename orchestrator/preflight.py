"""What must be true before the first trial starts: data readable, models at hand, room to write."""

from __future__ import annotations

import shutil
from pathlib import Path

from lp_sweep.orchestrator.plan import Plan
from lp_sweep.orchestrator.resolve import TaskInput
from lp_sweep.storage.errors import PreflightError, TrialError
from lp_sweep.storage.store import Store
from lp_sweep.trials.datasource import load_task

_MIN_FREE_BYTES = 200 * 2**20


def check(plan: Plan, store: Store, *, offline: bool) -> None:
    """Raises PreflightError that lists everything that is missing, before any GPU starts."""
    missing = [*plan.missing_profiles(), *plan.missing_trials()]
    tasks = {work.task.fingerprint: work.task for work in missing}
    deferred = {cell.asked.task for cell in plan.cells if cell.state == "deferred"}
    tasks |= {plan.sweep.tasks[name].fingerprint: plan.sweep.tasks[name] for name in deferred}
    problems = [problem for task in tasks.values() if (problem := _task_problem(task, offline))]
    if offline:
        models = {work.model.name: work.model for work in missing}
        problems += [
            f"model {model.name!r} is not in the Hugging Face cache, and --offline is set"
            for model in models.values()
            if model.fingerprint.startswith("hub:") and not _cached(model.path, model.revision)
        ]
    free = shutil.disk_usage(store.root).free
    if free < _MIN_FREE_BYTES:
        problems.append(f"only {free // 2**20} MiB are free at the store, {store.root}")
    if problems:
        raise PreflightError("\n".join(problems))


def _task_problem(task: TaskInput, offline: bool) -> str | None:
    """Reads the data once, as a trial will: columns, labels, encoding."""
    try:
        load_task(task.definition, task.source, offline=offline)
    except TrialError as error:
        return str(error)
    return None


def _cached(name: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)


def default_cache_dir() -> Path:
    """Where tokens are kept between trials: node-local, safe to delete."""
    import os

    base = os.environ.get("LP_SWEEP_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    if os.environ.get("LP_SWEEP_CACHE_DIR"):
        return Path(str(base)).expanduser()
    return (Path(base) if base else Path.home() / ".cache") / "lp-sweep"
