"""The files of a model folder: whether they can be read, and what JSON and tokenizer files hold."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lp_sweep.storage.printable import short, shown
from lp_sweep.storage.sense import DEEPEST
from lp_sweep.trials.data.formats import LFS_POINTER
from lp_sweep.trials.model.modelfiles import DEPTH_FIELDS

# a tokenizer's files with words; its other files only say how to treat them
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
# other files of a tokenizer
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
_READ = {".json", ".safetensors", ".txt", ".model", ".jinja"}  # the ends of names of files we read


class TornFile(Exception):
    """A file is missing, can't be read or is not complete. The text is for messages."""


def file_problems(folder: Path) -> list[str]:
    """The files of a folder that can't be read, or hold a pointer in place of their content."""
    paths = [path for pattern in ("*", "[0-9]_*/*") for path in sorted(folder.glob(pattern))]
    whys = {path: _why_unreadable(path) for path in paths if path.suffix in _READ}
    return [f"{path.relative_to(folder)} {why}" for path, why in whys.items() if why]


def _why_unreadable(path: Path) -> str | None:
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            return "is a folder, and a file is expected"
        if not stat.S_ISREG(found.st_mode):
            return "is no file but a pipe, a socket or a device"
        with path.open("rb") as stream:
            start = stream.read(len(LFS_POINTER))
    except OSError as error:
        target = f", a link to {shown(str(path.readlink()))}" if path.is_symlink() else ""
        return f"can't be read{target}: {error.strerror}"
    if start == LFS_POINTER:
        return "is a pointer of Git LFS, not the file itself. Run `git lfs pull` in its repository"
    return None


def size_problems(folder: Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """File -> why it is not whole: it is missing, or has another number of bytes."""
    found: dict[str, str] = {}
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file():
            found[name] = f"{name} is missing"
        elif (bytes_ := path.stat().st_size) != size:
            found[name] = f"{name} has {bytes_} bytes and should have {size}"
    return found


def config_depth(config: Mapping[str, Any] | None) -> int | None:
    """The number of layers in a config, if it can be one."""
    values = (config.get(name) for name in DEPTH_FIELDS) if config else ()
    return next((n for n in values if type(n) is int and 0 < n <= DEEPEST), None)


def has_vocabulary(names: Iterable[str]) -> bool:
    """Whether a tokenizer's vocabulary is among these files."""
    return any(Path(name).match(pattern) for name in names for pattern in VOCABULARIES)


def tokenizer_problems(folder: Path) -> list[str]:
    if not has_vocabulary([path.name for path in folder.glob("*") if path.is_file()]):
        return [f"no tokenizer vocabulary: none of {', '.join(VOCABULARIES)}"]
    problems = []
    if not (folder / "tokenizer.json").is_file():
        problems += _word_list_problems(folder / "vocab.txt")
    for name in ("tokenizer.json", *_SETTINGS):
        if not (folder / name).is_file():
            continue
        try:
            read_object(folder / name)
            if name == "tokenizer.json":
                require_unknown(Tokenizer.from_file(str(folder / name)))
        except TornFile as error:
            problems.append(str(error))
        except Exception as error:  # the library raises no other
            problems.append(f"{name} can't be read by the library tokenizers: {short(str(error))}")
    return problems


def _word_list_problems(path: Path) -> list[str]:
    if not path.is_file():
        return []
    if (path.parent / "bpe.codes").is_file():  # its tokenizer adds the token
        return []
    known = {line.split()[0] for line in path.read_bytes().splitlines() if line.strip()}
    if known & {b"[UNK]", b"<unk>"} or b'"unk_token"' in _settings(path.parent):
        return []
    return [
        f"{path.name} has no [UNK], the token for unknown words. Copy the tokenizer again from the "
        "model's source"
    ]


def _settings(folder: Path) -> bytes:
    files = (folder / name for name in ("tokenizer_config.json", "special_tokens_map.json"))
    return b"".join(file.read_bytes() for file in files if file.is_file())


def require_unknown(tokenizer: Any) -> None:
    """Raises TornFile for a tokenizer that can't read a word that it does not know."""
    try:
        tokenizer.encode("\u0f00 \ue000")
    except Exception as error:  # the library raises no other
        raise TornFile(
            f"tokenizer.json can't read a word that it does not know: {short(str(error))}. Copy it "
            "again from the model's source"
        ) from None


def _infinity(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN is no number")
    return float(name)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, as transformers reads it. Raises TornFile."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_infinity)
    except UnicodeDecodeError:
        raise TornFile(
            f"{path.name} is not complete JSON: it is not UTF-8. Save it as UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:
        if content.startswith(b"\xef\xbb\xbf"):
            raise TornFile(
                f"{path.name} begins with a byte order mark (BOM), which transformers does not "
                "read. Save it as UTF-8 without one"
            ) from None
        why = short(str(error)) if content.strip() else "it is empty"
        raise TornFile(f"{path.name} is not complete JSON: {why}") from None
    if not isinstance(value, dict):
        raise TornFile(
            f"{path.name} holds no JSON object ({{...}}) but {short(content.decode(), 40)}"
        )
    return value


def unreadable(path: Path, error: OSError) -> TornFile:
    if isinstance(error, FileNotFoundError):
        return TornFile(f"{path.name} is missing")
    return TornFile(f"{path.name} can't be read: {error.strerror or error}")
