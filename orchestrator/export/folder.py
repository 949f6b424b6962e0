"""Makes a folder that appears whole or not at all, and sends it to the hub on request."""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lp_sweep.analysis.render import finite
from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError
from lp_sweep.storage.networks import write_sums
from lp_sweep.storage.printable import short
from lp_sweep.storage.redact import redact_text

ABOUT = "lp_sweep.json"  # in every folder that was made here, which --force may overwrite


def check_free(out: Path, *, force: bool) -> None:
    """Raises SpecError if something is in the way, or if no folder can be made there. `force`
    overwrites an earlier export."""
    try:
        is_folder = out.is_dir() and not out.is_symlink()
        taken = out.is_symlink() or (out.exists() and not (is_folder and not any(out.iterdir())))
        if taken and not (is_folder and (out / ABOUT).is_file()):
            raise SpecError(f"{out} exists and is not an export. Name another folder with --out.")
        if taken and not force:
            raise SpecError(f"{out} exists. Name another with --out, or overwrite it with --force.")
        above = next(folder for folder in out.absolute().parents if folder.exists())
        probe = above / f".{uuid.uuid4().hex}"
        probe.mkdir()
        probe.rmdir()
    except (OSError, ValueError) as error:  # such as a name that no file can have
        raise SpecError(f"can't write {out}: {error}. Name another folder with --out.") from None


@contextlib.contextmanager
def staged(out: Path, *, force: bool) -> Iterator[Path]:
    """Gives a new folder next to `out`, which replaces `out` at the end. On an error it is removed,
    and `out` stays as it was. Removes what a killed process left there, and restores `out` if that
    one died while it replaced it.

    Raises SpecError if it can't be written, if something came in the way (see `check_free`), or if
    another process is at it.
    """
    out = out.absolute()
    names = (f".{out.name}.lp-sweep-{end}" for end in ("new", "old", "lock"))  # no user's own
    coming, before, lock = map(out.with_name, names)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock, timeout=0).acquire()
    except Timeout:
        raise SpecError(f"another export writes {out} now. Name another with --out.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SpecError(f"can't write {out}: {error}. Name another folder with --out.") from None
    with held:
        try:
            _settle(before, out)
            shutil.rmtree(coming, ignore_errors=True)
            check_free(out, force=force)  # again: an earlier folder may be back
            coming.mkdir()
            yield coming
            check_free(out, force=force)  # again: training may have taken hours
            _publish(coming, before, out, force=force)
        finally:
            shutil.rmtree(coming, ignore_errors=True)
            lock.unlink(missing_ok=True)


def _publish(coming: Path, before: Path, out: Path, *, force: bool) -> None:
    """Without `force` nothing is lost: a folder can't be renamed to one that has content."""
    try:
        if force and out.exists():
            out.rename(before)
        coming.rename(out)
    except OSError as error:
        raise LpSweepError(f"can't write {out}: {error}.") from error
    finally:  # also after a Ctrl-C between the two
        _settle(before, out)


def _settle(before: Path, out: Path) -> None:
    """Moves the earlier folder back to its place, or removes it if the place is taken."""
    if out.exists():
        shutil.rmtree(before, ignore_errors=True)
    elif before.exists():
        with contextlib.suppress(OSError):
            before.rename(out)


def describe(folder: Path, card: str, about: Mapping[str, Any]) -> None:
    """Writes the card, what the folder is, and last the checksums of all its files."""
    (folder / "README.md").write_text(card, encoding="utf-8")
    text = json.dumps(finite(about), indent=2, ensure_ascii=False) + "\n"
    (folder / ABOUT).write_text(text, encoding="utf-8")
    write_sums(folder)


def check_may_push(repo_id: str, *, offline: bool) -> None:
    """Checks before hours of work. Raises SpecError for a bad name or in offline mode,
    PreflightError if the hub can't be reached or the token may not write."""
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if offline or constants.HF_HUB_OFFLINE:
        which = "--offline" if offline else "HF_HUB_OFFLINE"
        raise SpecError(f"--push-to-hub {repo_id}: {which} is set, so nothing goes to the hub.")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise SpecError(f"--push-to-hub: {error}") from None
    option = f"--push-to-hub {repo_id}"
    if get_token() is None:
        raise PreflightError(f"{option}: there is no token. {_LOG_IN}.")
    later = "Write a folder alone, and send it later with `hf upload`"
    with _as_sentences(f"{option}: can't ask the hub", later):
        who = HfApi().whoami()
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise PreflightError(f"{option}: the token may only read. {_LOG_IN}.")


_LOG_IN = "Set HF_TOKEN to a token that may write there, or log in with `hf auth login`"


@contextlib.contextmanager
def _as_sentences(what: str, later: str) -> Iterator[None]:
    """Raises PreflightError in place of an error of the hub or of the network."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code
        help_ = _LOG_IN if status in (401, 403) else "Try again later"
        raise PreflightError(f"{what}: it refused: {status}. {help_}. {later}.") from None
    except Exception as error:  # no network, no token, a bad file: types of three libraries
        said = short(redact_text(str(error))).rstrip(".") or type(error).__name__
        raise PreflightError(f"{what}: {said}. {later}.") from None


def push(folder: Path, repo_id: str, *, private: bool) -> str:
    """Sends the folder in one commit, to a new repository if there is none. Returns its address.
    Raises PreflightError."""
    from huggingface_hub import HfApi

    api = HfApi()
    later = f"The folder is whole; send it with `hf upload {repo_id} {folder}`"
    with _as_sentences(f"can't send {repo_id} to the hub", later):
        made = api.create_repo(repo_id, private=private or None, exist_ok=True, repo_type="model")
        api.upload_folder(
            repo_id=made.repo_id,
            folder_path=folder,
            repo_type="model",
            commit_message="Exported by lp-sweep",
        )
    return str(made)
