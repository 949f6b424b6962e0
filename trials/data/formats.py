"""Formats of data files, and the files behind a path: one file, a folder of Parquet or Arrow parts,
a folder that `save_to_disk` wrote, or a pattern such as `data/train-*.parquet`. Reads no rows."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn

import pyarrow as pa

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.storage.printable import listed, shown

# file suffix -> format
FORMATS: dict[str, str] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".conll": "conll",
    ".conllu": "conllu",
    ".trec": "trec",
    ".qrels": "trec",
    ".txt": "trec",
}
LFS_POINTER = b"version https://git-lfs"  # how such a file begins
TABLES = ("parquet", "arrow")  # a folder may hold several files of these
_UNPACK: dict[str, Callable[[str], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda path: pa.input_stream(path, compression="zstd"),
}
UNPACKING = (EOFError, zlib.error, lzma.LZMAError)  # errors beside OSError and ValueError
_STATE = "state.json"  # of `save_to_disk`
_SELECTED = ("_indices_files", "_indices_data_files", "_indices")  # of old versions
# as `datasets` finds splits: a word of a file's or folder's name
_SPLITS = {
    "train": re.compile(r"(^|[-._ 0-9])train(ing)?([-._ 0-9]|$)", re.I),
    "validation": re.compile(r"(^|[-._ 0-9])(validation|valid|dev|val)([-._ 0-9]|$)", re.I),
    "test": re.compile(r"(^|[-._ 0-9])(test|testing|eval|evaluation)([-._ 0-9]|$)", re.I),
}
_SHARD = re.compile(r"-\d{5}-of-\d{5}.*")


def suffix_of(path: str | Path) -> str:
    """The part of a name that decides how the file is read: `.csv`, `.csv.gz`."""
    path = Path(path)
    packed = path.suffix if path.suffix.lower() in _UNPACK else ""
    return Path(path.name.removesuffix(packed)).suffix + packed


def file_format(path: str | Path) -> str:
    """A value of `FORMATS`. Raises MissingInputError for an unknown suffix, and for a folder
    without rows."""
    path = Path(path)
    suffix = suffix_of(_parts_of_folder(path)[0] if _is_folder(path) else path).lower()
    kind = _known(suffix)
    if kind is None:
        raise MissingInputError(
            f"{path}: can't read a file whose name ends in {suffix!r}. Readable: "
            f"{', '.join(FORMATS)}, and texts packed as {', '.join(_UNPACK)}. Convert it, or give "
            "it the suffix of its content."
        )
    return kind


def _known(suffix: str) -> str | None:
    """The format of a suffix; tables are never packed as a whole."""
    first = "." + suffix.lower()[1:].split(".")[0]
    kind = FORMATS.get(first)
    return None if kind in TABLES and suffix.lower() != first else kind


def parts_of(path: str | Path) -> list[Path]:
    """The files behind a path, in the order of their rows. Raises MissingInputError for a folder
    without rows. Files need not exist, but for a pattern."""
    path = Path(path)
    if _is_folder(path):
        return _parts_of_folder(path)
    if "*" in path.name and not path.exists():
        return sorted(path.parent.glob(path.name))
    return [path]


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long
        return False


def _parts_of_folder(folder: Path) -> list[Path]:
    if (folder / _STATE).is_file():
        return _saved_parts(folder)
    # hidden files, `_SUCCESS`, and what `datasets` caches next to its rows hold no rows
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    hidden = (".", "_", "cache-", "indices")
    found = [p for p in files if p.suffix[1:] in TABLES and not p.name.startswith(hidden)]
    splits = splits_of(folder)
    if len(splits) > 1 or (splits and not found):
        names = listed(shown(str(path.relative_to(folder))) for path in splits.values())
        _refuse(folder, f"holds several sets of rows ({names}): name the path of one")
    if not found:
        held = listed(sorted(shown(path.name) for path in folder.iterdir()), 8) or "nothing"
        _refuse(
            folder,
            "is a folder without rows. Name a file, a folder of Parquet files, or one that "
            f"`save_to_disk` wrote. It holds {held}",
        )
    if len({path.suffix for path in found}) > 1:
        _refuse(folder, "holds Parquet and Arrow files. Name a folder with one of the two")
    return found


def _saved_parts(folder: Path) -> list[Path]:
    """The parts that `save_to_disk` wrote."""
    try:
        state = json.loads((folder / _STATE).read_bytes())
        if any(state.get(name) for name in _SELECTED):
            _refuse(folder, "holds a selection of its rows: save it again, which applies it")
        parts = [folder / str(part["filename"]) for part in state["_data_files"]]
    except (ValueError, TypeError, KeyError, OSError):
        _refuse(folder, f"{_STATE} can't be read: write the folder again with `save_to_disk`")
    return parts or _refuse(folder, "has no rows: save it again with rows, or remove it")


def _refuse(folder: Path, why: str) -> NoReturn:
    raise MissingInputError(f"{folder}: {why}.")


def splits_of(folder: Path) -> dict[str, Path]:
    """The sets of rows in a folder, by `train`, `validation` and `test`: a file, a folder, or a
    pattern for parts, as `datasets` finds them; also in its folder `data`. {} if it has none. Of
    two sets for one split, the first by name counts."""
    found: dict[str, Path] = {}
    if (folder / _STATE).is_file():
        return found
    for path in sorted(folder.iterdir()):
        split = next((split for split, word in _SPLITS.items() if word.search(path.name)), None)
        if split is None or path.name.startswith((".", "_")):
            continue
        if path.is_dir() or _known(suffix_of(path)):
            whole = _SHARD.sub(f"-*{path.suffix}", path.name)
            found.setdefault(split, path.with_name(whole))
    if not found and (folder / "data").is_dir():
        return splits_of(folder / "data")
    return {split: found[split] for split in _SPLITS if split in found}


def is_packed(path: str | Path) -> bool:
    return Path(path).suffix.lower() in _UNPACK


def open_binary(path: str | Path) -> IO[bytes]:
    """The bytes of a file, unpacked."""
    unpack = _UNPACK.get(Path(path).suffix.lower())
    stream: IO[bytes] = unpack(str(path)) if unpack else open(path, "rb")  # noqa: SIM115, PTH123
    return stream


def open_text(path: str, newline: str = "") -> io.TextIOWrapper:
    """The text of a file, with its line ends as they are. `newline`: as for `open`."""
    return io.TextIOWrapper(open_binary(path), encoding="utf-8-sig", newline=newline)
