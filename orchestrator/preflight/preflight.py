"""What must be true before the first trial starts: data readable, models at hand, room to write.

Says all that is wrong at once, imports no torch, and leaves nothing behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.preflight.inputs import check_inputs, needed
from lp_sweep.orchestrator.preflight.space import needs, space_problems
from lp_sweep.orchestrator.preflight.storeprobe import absent_folders, probed, remove_empty
from lp_sweep.storage.errors import PreflightError, StoreError
from lp_sweep.trials.offline import go_offline


def check(plan: Plan, location: str, cache_dir: Path, *, offline: bool) -> Sequence[str]:
    """Gives notes on the rows. Raises PreflightError that lists everything that is missing, before
    any GPU starts.

    offline: from here on this process, and those it starts, ask no hub. A finished sweep needs
    nothing, and nothing is checked.
    """
    if offline:
        go_offline()
    wanted = needed(plan)
    if not wanted.models and not wanted.tasks:
        return []
    found = check_inputs(plan.sweep, wanted, offline=offline)
    problems = [
        *found.problems,
        *space_problems(needs(plan, location, cache_dir, found.download_bytes)),
        *_write_problems(location),
        *_folder_problems(cache_dir),
    ]
    if problems:
        raise PreflightError("\n".join(problems))
    return found.notes


def _write_problems(location: str) -> list[str]:
    """A probe is put into the store and taken away, and so is the store if it is new."""
    try:
        with probed(location):
            return []
    except StoreError as error:
        return [str(error)]


def _folder_problems(folder: Path) -> list[str]:
    made = absent_folders(folder.absolute())
    probe = folder / f".probe-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        return [
            f"can't write to {folder}: {error.strerror}. Tokens are kept there between trials; "
            "name another folder with --cache-dir."
        ]
    finally:
        remove_empty(made)
    return []
