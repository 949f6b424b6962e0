"""Checks whether a trial can load a model folder: config, safetensors, tokenizer. Imports no torch.

Reads only the headers of weights: a torn file is found by its length. Other faults, such as a
network that transformers can't build, are found by the trial.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.model.modelfiles import DEPTH_FIELDS, INDEX, WEIGHTS, type_problem

# a tokenizer's files with words; its other files only say how to treat them
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
# heads that a sequence classifier does not load
_OTHER_HEADS = re.compile(
    r"^(cls|lm_head|lm_loss|head|decoder|classifier|predictions|pred_layer|qa_outputs"
    r"|\w+_predictions|generator_lm_head|vocab_\w+|mask_predictions)\."
)
_LAYER = re.compile(r"^(.*?(?:\b|_)(?:layers?|h|blocks?))\.(\d+)\.")

# a config's fields that state a tensor's shape: the fields, the tensor, which of its sizes
_POSITIONS = (("max_position_embeddings",), re.compile(r"\bposition_embeddings\.weight$"), 0)
_STATED = (
    (
        ("vocab_size", "n_words"),
        re.compile(r"\b(word_embeddings?|embed_tokens|tok_embeddings|embeddings)\.weight$"),
        0,
    ),
    _POSITIONS,
    (("type_vocab_size",), re.compile(r"\btoken_type_embeddings\.weight$"), 0),
)
HIDDEN = ("hidden_size", "dim", "d_model", "emb_dim")
INNER = ("intermediate_size", "hidden_dim", "d_inner")
_NORM = re.compile(r"norm|\bln", re.IGNORECASE)

Tensors = Mapping[str, tuple[int, ...]]


class Torn(Exception):
    """A file is not complete. The text is for messages."""


def folder_problems(
    folder: Path, *, depth: int, sizes: Mapping[str, int] | None = None
) -> list[str]:
    """Every reason why a trial could not load the model.

    depth: layers that the plan expects. sizes: bytes of each file, if a manifest states them.
    """
    wrong = {name: size for name, size in (sizes or {}).items() if _size(folder / name) != size}
    problems = [
        f"{name} has {_size(folder / name)} bytes and should have {size}"
        if (folder / name).is_file()
        else f"{name} is missing"
        for name, size in wrong.items()
    ]  # such a file is not checked further
    if "config.json" not in wrong:
        problems += _config_problems(folder / "config.json", depth)
    if not any("safetensors" in name for name in wrong):
        problems += _weight_problems(folder, depth)
    if not problems:
        problems += shape_problems(folder)
    if not has_vocabulary(wrong):
        problems += _tokenizer_problems(folder)
    return problems


def count_parameters(folder: Path) -> int | None:
    """Parameters of the encoder, its embeddings and its pooler; None if they can't be read."""
    try:
        tensors = _all_tensors(folder)
    except (Torn, OSError):
        return None
    own = [math.prod(shape) for name, shape in tensors.items() if not _OTHER_HEADS.match(name)]
    return sum(own) or None


def read_header(path: Path) -> Tensors:
    """The name and shape of each tensor of a safetensors file. Raises Torn or OSError."""
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb"), safe_open(path, "numpy") as file:  # errors of `open` name the file
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        size = path.stat().st_size
        raise Torn(
            f"{path.name} is not a whole safetensors file ({size} bytes): {short(reason)}"
        ) from None


def shard_names(index: Path) -> list[str]:
    """The files in an index of weights. Raises Torn or OSError."""
    names = _as_object(index.read_bytes(), index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise Torn(f"{index.name} names no files")
    return sorted({Path(str(name)).name for name in names.values()})


def has_vocabulary(names: Iterable[str]) -> bool:
    """Whether a tokenizer's vocabulary is among these files."""
    return any(Path(name).match(pattern) for name in names for pattern in _VOCABULARIES)


def _all_tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of all files of weights. Raises Torn or OSError."""
    single, index = folder / WEIGHTS, folder / INDEX
    names = [WEIGHTS] if single.is_file() or not index.is_file() else shard_names(index)
    tensors: dict[str, tuple[int, ...]] = {}
    for name in names:
        tensors |= read_header(folder / name)
    return tensors


def _config_problems(path: Path, depth: int) -> list[str]:
    try:
        config = _as_object(path.read_bytes(), path)
    except FileNotFoundError:
        return ["config.json is missing"]
    except (Torn, OSError) as error:
        return [_reason(error)]
    found = next((config[name] for name in DEPTH_FIELDS if isinstance(config.get(name), int)), None)
    if found != depth:
        return [f"config.json states {found} layers, the plan expects {depth}"]
    problem = type_problem(config)
    return [problem] if problem else []


def _weight_problems(folder: Path, depth: int) -> list[str]:
    if not (folder / WEIGHTS).is_file() and not (folder / INDEX).is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        held = f" ({', '.join(pickled)} is pickled, and pickled weights are not read)"
        return [f"{WEIGHTS} is missing{held if pickled else ''}"]
    try:
        tensors = _all_tensors(folder)
    except FileNotFoundError as error:
        return [f"{Path(str(error.filename)).name} is missing"]
    except (Torn, OSError) as error:
        return [_reason(error)]
    layers: dict[str, set[int]] = defaultdict(set)
    for name in tensors:
        if match := _LAYER.match(name):
            layers[match[1]].add(int(match[2]))
    counts = [len(numbers) for numbers in layers.values()]
    if counts and depth not in counts:
        return [f"the weights have {max(counts)} layers, the plan expects {depth}"]
    return []


def shape_problems(folder: Path) -> list[str]:
    """Where config.json and the weights disagree. A network built from such a config could take any
    amount of memory, and would keep random weights. Raises Torn or OSError if one can't be read."""
    config = _as_object((folder / "config.json").read_bytes(), folder / "config.json")
    tensors = {n: s for n, s in _all_tensors(folder).items() if not _OTHER_HEADS.match(n)}
    found: list[tuple[Sequence[str], set[int]]] = [
        (fields, {shape[axis] for name, shape in tensors.items() if tensor.search(name) and shape})
        for fields, tensor, axis in _STATED
    ]
    positions = found[_STATED.index(_POSITIONS)][1]
    stated = config.get("max_position_embeddings")
    if isinstance(stated, int) and stated + 2 in positions:  # some families add two for padding
        positions.add(stated)
    layers = {name: shape for name, shape in tensors.items() if _LAYER.match(name)}
    among = (layers or tensors).items()
    norms = {shape[0] for name, shape in among if len(shape) == 1 and _NORM.search(name)}
    found.append((HIDDEN, norms))
    if config.get("num_groups", 1) == 1:  # else ConvBERT, whose matrices are split into groups
        found.append((INNER, {size for shape in layers.values() for size in shape}))
    return [problem for fields, sizes in found if (problem := _unlike(config, fields, sizes))]


def _unlike(config: Mapping[str, Any], fields: Sequence[str], sizes: set[int]) -> str | None:
    field = next((name for name in fields if config.get(name) is not None), None)
    if field is None or not sizes or config[field] in sizes:
        return None
    there = listed(sorted(sizes), most=5)
    return f"config.json states {field} {shown(config[field])}, and the weights have {there}"


def _tokenizer_problems(folder: Path) -> list[str]:
    if not has_vocabulary([path.name for path in folder.glob("*") if path.is_file()]):
        return [f"no tokenizer vocabulary: none of {', '.join(_VOCABULARIES)}"]
    problems = []
    for path in (folder / "tokenizer.json", folder / "tokenizer_config.json"):
        try:
            _as_object(path.read_bytes(), path)
        except FileNotFoundError:
            continue
        except (Torn, OSError) as error:
            problems.append(_reason(error))
    return problems


def _as_object(content: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Torn(f"{path.name} is not complete JSON")
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        name = Path(str(error.filename)).name
        return f"{name} can't be read: {error.strerror}"
    return str(error)


def _size(path: Path) -> int:
    """-1 if there is no file."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
