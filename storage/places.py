"""Paths as users write them, and files that arrive whole."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.printable import shown

DEFAULT_STORE = "lp-sweep-store"  # in the working directory
BUILT_IN = "quickstart"  # the name of the built-in sweep, unless a file has this name
_RUN_WITH = "# lp-sweep: "  # begins the first line of a stored sweep file


def run_with(file: str, data_dir: Path | None) -> str:
    """A comment for the first line of a stored sweep file: the paths of the file and the data, for
    commands that can be pasted anywhere. `quickstart` is not a path."""
    places = {"--file": str(Path(file).absolute()) if Path(file).is_file() else file}
    if data_dir is not None:
        places["--data-dir"] = str(data_dir.expanduser().absolute())
    return f"{_RUN_WITH}{json.dumps(places)}\n"


def options_of(stored: str | None) -> list[str]:
    """The options with which a command finds the inputs of a stored sweep file; [] if the file no
    longer exists."""
    line = (stored or "").partition("\n")[0]
    try:
        places = json.loads(line.removeprefix(_RUN_WITH)) if line.startswith(_RUN_WITH) else {}
        found = {str(name): str(place) for name, place in dict(places).items()}
    except (TypeError, ValueError):  # not ours
        return []
    file = found.get("--file", "")
    if not (file and (file == BUILT_IN or is_file(Path(file)))):
        return []
    return [
        word for name in ("--file", "--data-dir") if name in found for word in (name, found[name])
    ]


def is_file(path: Path) -> bool:
    """Whether it is a file; False also for a name that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def expanded(text: str | Path) -> Path:
    """The path with `~` expanded. Raises SpecError for an impossible path."""
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # ~nobody
        raise SpecError(f"{shown(str(text))}: {error} Write the whole path.") from None
    if not str(text) or "\0" in str(text):
        raise SpecError(f"{shown(str(text))} can't be the name of a file or folder. Name another.")
    return path


def node_folder(given: Path | None) -> Path:
    """The cache folder of this node, `given` or the default: tokenised data, which is safe to
    delete, and the spool of unsent records."""
    if chosen := given or os.environ.get("LP_SWEEP_CACHE_DIR"):
        return expanded(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lp-sweep"


def is_bucket(location: str | Path) -> bool:
    """Whether the location is a bucket, not a folder."""
    return isinstance(location, str) and location.startswith("s3://")


@contextlib.contextmanager
def arriving(target: Path) -> Iterator[Path]:
    """Yields a temporary path next to `target`, which is renamed to `target` at the end. Its name
    starts with a dot and ends in .tmp, so no listing takes it for a record."""
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):  # usually it was renamed
            temporary.unlink()
