"""A folder that appears whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from lp_sweep.storage.errors import LpSweepError, SpecError

ABOUT = "lp_sweep.json"  # in every folder that was made here, and so may be made anew
_LOCK = ".lock"  # beside a folder that is being made: a killed process holds none
_DIGITS = 8  # that tell one such folder from another


def check_free(out: Path, *, force: bool) -> None:
    """Raises SpecError where something is in the way. `force` overwrites what was made here."""
    try:
        taken = out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir())))
    except OSError as error:  # a name that no file can have
        raise SpecError(f"can't write {out}: {error}. Name another folder with --out.") from None
    if not taken:
        _check_writable(out)
        return
    ours = out.is_dir() and not out.is_symlink() and (out / ABOUT).is_file()
    if not ours:
        raise SpecError(f"{out} exists, and is no export. Name another folder with --out.")
    if not force:
        raise SpecError(f"{out} exists. Name another with --out, or overwrite it with --force.")
    _check_writable(out)


def _check_writable(out: Path) -> None:
    """Whether a folder can be made where `out`, or the first folder above it that exists, is."""
    try:
        above = next(folder for folder in out.absolute().parents if folder.exists())
        probe = above / f".{uuid.uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except (OSError, ValueError) as error:
        raise SpecError(f"can't write {out}: {error}. Name another folder with --out.") from None


@contextlib.contextmanager
def staged(out: Path, *, force: bool) -> Iterator[Path]:
    """A new folder beside `out`, which takes its place at the end; on an error it is gone, and what
    was there before stays. What a killed process left of an earlier one goes, too.

    Raises SpecError where it can't be written, and where something came in the way meanwhile, as
    for `check_free`.
    """
    out = out.absolute()
    coming = out.with_name(f".{out.name}.new-{uuid.uuid4().hex[:_DIGITS]}")
    lock = FileLock(_lock(coming))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _clear(out)
        check_free(out, force=force)  # anew: what was there before may be back
        lock.acquire()
        coming.mkdir()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SpecError(f"can't write {out}: {error}. Name another folder with --out.") from None
    try:
        yield coming
        check_free(out, force=force)  # anew: training may have taken hours
        _publish(coming, out, force=force)
    finally:
        _remove(coming)
        lock.release()


def _lock(coming: Path) -> Path:
    return coming.with_name(f"{coming.name}{_LOCK}")


def _before(coming: Path) -> Path:
    """Where the folder is, whose place `coming` takes, while it does."""
    start, _, digits = coming.name.rpartition(".new-")
    return coming.with_name(f"{start}.old-{digits}")


def _clear(out: Path) -> None:
    """What killed processes left; `out` as it was, if one was killed before the new one was it."""
    for path in out.parent.glob(f".{glob.escape(out.name)}.new-{'?' * _DIGITS}{_LOCK}"):
        with contextlib.suppress(Timeout, OSError), FileLock(path, timeout=0):
            coming = path.with_name(path.name.removesuffix(_LOCK))
            _settle(_before(coming), out)
            _remove(coming)


def _remove(coming: Path) -> None:
    shutil.rmtree(coming, ignore_errors=True)
    _lock(coming).unlink(missing_ok=True)


def _publish(coming: Path, out: Path, *, force: bool) -> None:
    """Without `force` nothing goes: no folder can get the name of one that holds something."""
    before = _before(coming)
    try:
        if force and out.exists():
            out.rename(before)
        coming.rename(out)
    except OSError as error:
        raise LpSweepError(f"can't write {out}: {error}.") from error
    finally:  # a Ctrl-C, too, may come between the two
        _settle(before, out)


def _settle(before: Path, out: Path) -> None:
    """What was there before goes back to its place, or goes, if that is taken."""
    if out.exists():
        shutil.rmtree(before, ignore_errors=True)
    elif before.exists():
        with contextlib.suppress(OSError):
            before.rename(out)
