"""The files of a model folder: whether they can be read, its config.json and its tokenizer."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lp_sweep.storage.printable import short, shown
from lp_sweep.storage.sense import DEEPEST
from lp_sweep.trials.data.formats import LFS_POINTER
from lp_sweep.trials.model.modelfiles import DEPTH_FIELDS, type_problem

# a tokenizer's files with words; its other files only say how to treat them
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
# other files of a tokenizer
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
_READ = {".json", ".safetensors", ".txt", ".model", ".jinja"}  # the ends of names of files we read
# fields of a config that state a size
HIDDEN = ("hidden_size", "dim", "d_model", "emb_dim")
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
_HEAD = {"head_dim", "d_head", "attention_head_size"}  # the width of a head, of its own
INNER = ("intermediate_size", "hidden_dim", "d_inner")


class ModelFault(Exception):
    """Why a trial can't load a model: a file is missing, torn, or does not fit the others. The text
    is for messages."""


def problems_of(check: Callable[..., object], *arguments: Any) -> list[str]:
    try:
        check(*arguments)
    except ModelFault as fault:
        return [str(fault)]
    return []


def file_problems(folder: Path) -> list[str]:
    """The files of a folder that can't be read, or hold a pointer in place of their content."""
    paths = [path for pattern in ("*", "[0-9]_*/*") for path in sorted(folder.glob(pattern))]
    whys = {path: _why_unreadable(path) for path in paths if path.suffix in _READ}
    return [f"{path.relative_to(folder)} {why}" for path, why in whys.items() if why]


def _why_unreadable(path: Path) -> str | None:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            return "is a folder, and a file is expected"
        if not stat.S_ISREG(kind):
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
        elif (there := path.stat().st_size) != size:
            found[name] = f"{name} has {there} bytes and should have {size}"
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, as transformers reads it. Raises ModelFault."""
    try:
        content = path.read_bytes()
        value = json.loads(content.decode(), parse_constant=_infinity)
    except FileNotFoundError:
        raise ModelFault(f"{path.name} is missing") from None
    except OSError as error:
        raise ModelFault(f"{path.name} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        why = short(str(error)) if content.strip() else "it is empty"
        if isinstance(error, UnicodeDecodeError):
            why = "it is not UTF-8. Save it as UTF-8"
        elif content.startswith(b"\xef\xbb\xbf"):
            why = "it begins with a byte order mark (BOM). Save it as UTF-8 without one"
        raise ModelFault(f"{path.name} is not complete JSON: {why}") from None
    if not isinstance(value, dict):
        raise ModelFault(
            f"{path.name} holds no JSON object ({{...}}) but {short(content.decode(), 40)}"
        )
    return value


def read_config(path: Path) -> dict[str, Any]:
    """As `read_object`; {} for a file that can't be read."""
    with suppress(ModelFault):
        return read_object(path)
    return {}


def _infinity(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN is no number")
    return float(name)


# -- config.json


def config_depth(config: Mapping[str, Any] | None) -> int | None:
    """The number of layers in a config, if it can be one."""
    values = (config.get(name) for name in DEPTH_FIELDS) if config else ()
    return next((n for n in values if type(n) is int and 0 < n <= DEEPEST), None)


def config_problems(path: Path, depth: int) -> list[str]:
    return problems_of(_check_config, path, depth)


def _check_config(path: Path, depth: int) -> None:
    config = read_object(path)
    if (found := config_depth(config)) != depth:
        raise ModelFault(f"config.json states {found} layers, the plan expects {depth}")
    if problem := type_problem(config):
        raise ModelFault(problem)
    for name, value in config.items():
        of_share = name.endswith(("dropout", "dropout_prob"))
        if isinstance(value, bool) or (value is None and of_share):
            continue  # such as token_dropout
        is_number = isinstance(value, int | float)
        if of_share and not (is_number and 0 <= value < 1):
            raise ModelFault(
                f"config.json has {name} {shown(value)}. Give a number from 0 to below 1"
            )
        if name.endswith(("_eps", "_epsilon", "initializer_range")) and not is_number:
            raise ModelFault(f"config.json has {name} {shown(value)}. Give a number")
    _check_heads(config)


def _check_heads(config: Mapping[str, Any]) -> None:
    heads, hidden = (first_int(config, fields) for fields in (HEADS, HIDDEN))
    if heads is None or not hidden or _HEAD & {*config}:
        return
    if heads < 1 or hidden % heads:
        raise ModelFault(
            f"config.json has a width of {hidden} for {heads} attention heads. Each head has an "
            "equal share of the width: correct one of the two"
        )


def first_int(config: Mapping[str, Any], fields: Sequence[str]) -> int | None:
    """The whole number in the first of the fields that has one."""
    return next((config[name] for name in fields if type(config.get(name)) is int), None)


# -- the tokenizer


def has_vocabulary(names: Iterable[str]) -> bool:
    """Whether a tokenizer's vocabulary is among these files."""
    return any(Path(name).match(pattern) for name in names for pattern in VOCABULARIES)


def tokenizer_problems(folder: Path) -> list[str]:
    if not has_vocabulary(path.name for path in folder.glob("*") if path.is_file()):
        return [f"no tokenizer vocabulary: none of {', '.join(VOCABULARIES)}"]
    names = [name for name in _SETTINGS if (folder / name).is_file()]
    found = [problem for name in names for problem in problems_of(read_object, folder / name)]
    if (folder / "tokenizer.json").is_file():
        return problems_of(open_tokenizer, folder) + found
    return problems_of(_check_word_list, folder) + found


def open_tokenizer(folder: Path) -> Tokenizer:
    """The folder's tokenizer.json, without truncation or padding. Raises ModelFault, also for one
    that can't read a word that it does not know."""
    path = folder / "tokenizer.json"
    read_object(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other
        raise ModelFault(
            f"{path.name} can't be read by the library tokenizers: {short(str(error))}"
        ) from None
    try:
        tokenizer.encode("\u0f00 \ue000")
    except Exception as error:  # the library raises no other
        raise ModelFault(
            f"{path.name} can't read a word that it does not know: {short(str(error))}. Copy it "
            "again from the model's source"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _check_word_list(folder: Path) -> None:
    """Raises ModelFault for a vocab.txt without a token for unknown words. The tokenizer that also
    has `bpe.codes` adds one."""
    path = folder / "vocab.txt"
    if not path.is_file() or (folder / "bpe.codes").is_file():
        return
    words = {line.split()[0] for line in path.read_bytes().splitlines() if line.strip()}
    settings = [folder / "tokenizer_config.json", folder / "special_tokens_map.json"]
    if words.isdisjoint({b"[UNK]", b"<unk>"}) and not any(
        b'"unk_token"' in file.read_bytes() for file in settings if file.is_file()
    ):
        raise ModelFault(
            f"{path.name} has no [UNK], the token for unknown words. Copy the tokenizer again from "
            "the model's source"
        )
