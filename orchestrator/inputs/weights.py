"""Checks whether a trial can load a model folder: config, safetensors, tokenizer. Imports no torch.

A torn file of weights is found by its length. Other faults, such as a network that transformers
can't build, are found by the trial.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from lp_sweep.orchestrator.inputs.folder import (
    HIDDEN,
    INNER,
    ModelFault,
    config_problems,
    has_vocabulary,
    problems_of,
    read_object,
    size_problems,
    tokenizer_problems,
)
from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.model.modelfiles import INDEX, WEIGHTS, WORD_TABLE

_SAVE = "load the model once where you trust it and call save_pretrained(folder)."
# what a folder has in place of weights
_NO_WEIGHTS = {
    "model-*-of-*.safetensors": f"parts of the weights and no {INDEX}. Copy it from their source.",
    "adapter_model.safetensors": "an adapter. Merge it into its model (peft: merge_and_unload), "
    "call save_pretrained(folder), and name that folder.",
    "*.safetensors": f"weights of another name. Rename them to {WEIGHTS}.",
    "*.bin": f"pickled weights, and pickled weights are not read; {_SAVE}",
    "*.pt": f"pickled weights, and pickled weights are not read; {_SAVE}",
    "*.h5": "weights of TensorFlow. Save them for PyTorch with transformers 4 (from_tf=True).",
    "*.ckpt*": "weights of TensorFlow. Save them for PyTorch with transformers 4 (from_tf=True).",
    "*.msgpack": "weights of Flax. Save them for PyTorch with transformers 4 (from_flax=True).",
    "*.gguf": "quantized weights. Name the model that they were made from.",
    "*.onnx": "a graph, which can't be trained. Name the model that it was made from.",
    "*/*.onnx": "a graph, which can't be trained. Name the model that it was made from.",
}
_WRAPPED = {
    "_orig_mod.": "a compiled network: save its `_orig_mod`",
    "module.": "DataParallel or DDP: save its `module`",
    "base_model.model.": "an adapter around the network: save what peft's merge_and_unload gives",
}
# model type -> how the names of its tensors begin in a checkpoint of a head
_PREFIXES = {
    **{name: name for name in ("bert", "distilbert", "electra", "mpnet", "albert", "deberta")},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), "roberta"),
    "deberta-v2": "deberta",
}
_IN_OTHER_CODE = re.compile(r"(model|auto_model|\d+\.auto_model|encoder_model|bert_model)\.")
# heads that a sequence classifier does not load
_OTHER_HEADS = re.compile(
    r"^(cls|lm_head|lm_loss|head|decoder|classifier|predictions|pred_layer|qa_outputs"
    r"|\w+_predictions|generator_lm_head|vocab_\w+|mask_predictions)\."
)
_LAYER = re.compile(r"^(.*?(?:\b|_)(?:layers?|h|blocks?))\.(\d+)\.")

_POSITIONS = re.compile(r"\bposition_embeddings\.weight$")
_TYPES = re.compile(r"\btoken_type_embeddings\.weight$")
_NORM = re.compile(r"norm|\bln", re.IGNORECASE)

Shape = tuple[int, ...]
Tensors = Mapping[str, Shape]


class Tables(NamedTuple):
    """Rows of the tables of tokens and of token types in the weights; 0: no such table."""

    words: int
    types: int


def folder_problems(
    folder: Path, *, depth: int, sizes: Mapping[str, int] | None = None
) -> list[str]:
    """Every reason why a trial could not load the model.

    depth: layers that the plan expects. sizes: bytes of each file, if a manifest states them.
    """
    wrong = size_problems(folder, sizes or {})  # such a file is not checked further
    problems = [*wrong.values()]
    if "config.json" not in wrong:
        problems += config_problems(folder / "config.json", depth)
    if not any("safetensors" in name for name in wrong):
        problems += problems_of(_check_names, folder, depth)
    if not problems:
        problems += shape_problems(folder) or _number_problems(folder)
    if not has_vocabulary(wrong):
        problems += tokenizer_problems(folder)
    return problems


def absent_weights(folder: Path) -> str | None:
    """Why a folder has no weights that can be read, and what it has in their place."""
    if (folder / WEIGHTS).is_file() or (folder / INDEX).is_file():
        return None
    for pattern, what in _NO_WEIGHTS.items():
        if there := sorted(str(path.relative_to(folder)) for path in folder.glob(pattern)):
            return f"{WEIGHTS} is missing; {listed(there, most=3)}: {what}"
    return f"{WEIGHTS} is missing"


def read_header(path: Path) -> dict[str, Shape]:
    """The name and shape of each tensor of a safetensors file. Raises ModelFault."""
    try:
        with safe_open(path, "numpy") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except OSError as error:
        raise ModelFault(f"{path.name} can't be read: {error.strerror or error}") from None
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise ModelFault(
            f"{path.name} is not a whole safetensors file ({path.stat().st_size} bytes): "
            f"{short(reason)}"
        ) from None


def _files_of_weights(folder: Path) -> dict[str, list[str]]:
    """File -> its tensors, as the index lists them; not listed where one file has all. Raises
    ModelFault."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return {WEIGHTS: []}
    told = read_object(folder / INDEX)
    names = told.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelFault(f"{INDEX} names no files")
    if wrong := [name for name in names.values() if Path(str(name)).name != name]:
        raise ModelFault(f"{INDEX}: {shown(wrong[0])} is no name of a file in the folder")
    if not isinstance(told.get("metadata"), dict):
        raise ModelFault(f'{INDEX} has no "metadata", without which transformers reads no index')
    found = defaultdict(list)
    for tensor, name in names.items():
        found[name].append(tensor)
    return dict(sorted(found.items()))


def _tensors(folder: Path) -> dict[str, Shape]:
    """The tensors of all files of weights. Raises ModelFault."""
    tensors: dict[str, Shape] = {}
    for name, listed_there in _files_of_weights(folder).items():
        if listed_there and not (folder / name).is_file():
            such = f"{len(listed_there)} tensors of {INDEX}, such as {listed_there[0]}"
            raise ModelFault(f"{name} is missing, with {such}")
        there = read_header(folder / name)
        if absent := [tensor for tensor in listed_there if tensor not in there]:
            first = f"{absent[0]} in {name}"
            raise ModelFault(f"{INDEX} names {len(absent)} tensors that are absent: {first}")
        tensors |= there
    return tensors


def _encoder(folder: Path) -> dict[str, Shape]:
    """Without the heads. Raises ModelFault."""
    return {n: s for n, s in _tensors(folder).items() if not _OTHER_HEADS.match(n)}


def _check_names(folder: Path, depth: int) -> None:
    """Raises ModelFault for names of tensors that are not those of the config's network:
    transformers leaves such weights out and keeps random ones."""
    if problem := absent_weights(folder):
        raise ModelFault(problem)
    tensors = _tensors(folder)
    for start, what in _WRAPPED.items():
        if all(name.startswith(start) for name in tensors):
            raise ModelFault(
                f"the names of the weights begin with {start!r}: they are those of {what}"
            )
    _check_layers(tensors, depth)
    _check_prefix(folder, [name for name in tensors if not _OTHER_HEADS.match(name)])


def _check_layers(tensors: Tensors, depth: int) -> None:
    # path and part of a name -> number of the layer -> shape: `bert.encoder.layer` 3 `output.bias`
    parts: dict[tuple[str, str], dict[int, Shape]] = defaultdict(dict)
    layers: dict[str, set[int]] = defaultdict(set)
    for name, shape in tensors.items():
        if match := _LAYER.match(name):
            layers[match[1]].add(int(match[2]))
            parts[match[1], name[match.end() :]][int(match[2])] = shape
    counts = [len(numbers) for numbers in layers.values()]
    if counts and depth not in counts:
        raise ModelFault(f"the weights have {max(counts)} layers, the plan expects {depth}")
    for (path, part), shapes in parts.items():
        _check_alike(path, part, shapes, layers[path])


def _check_alike(path: str, part: str, shapes: Mapping[int, Shape], numbers: set[int]) -> None:
    """Raises ModelFault for a tensor that one layer lacks, or has in another shape, where all
    others agree. The first layer of some families lacks a norm."""
    if len(numbers) <= 2:
        return
    lacking = sorted(numbers - {0, *shapes})
    usual = max(shapes.values(), key=[*shapes.values()].count)
    odd = [number for number, shape in shapes.items() if shape != usual]
    if len(lacking) == 1:
        raise ModelFault(f"{path}.{lacking[0]}.{part} is missing, and other layers have it")
    if len(odd) == 1:
        has = f"{path}.{odd[0]}.{part} has the shape {list(shapes[odd[0]])}"
        raise ModelFault(f"{has}, in other layers {list(usual)}")


def _check_prefix(folder: Path, names: Sequence[str]) -> None:
    """For families whose prefix is known."""
    try:
        model_type = read_object(folder / "config.json").get("model_type")
    except ModelFault:  # another check says why
        return
    prefix = _PREFIXES.get(str(model_type))
    if prefix is None or not any(map(_LAYER.match, names)):
        return
    starts = {name.partition(".")[0] for name in names}
    if prefix not in starts and all(map(_IN_OTHER_CODE.match, names)):
        raise ModelFault(
            f"the names of the weights begin as in {names[0]}, where transformers has no such "
            "prefix: save the network inside (`save_pretrained`) in place of what is around it"
        )
    if prefix not in starts and (other := starts & {*_PREFIXES.values()}):
        raise ModelFault(
            f"config.json is one of {model_type}, and the names of the weights begin with "
            f"'{min(other)}.'. Copy the config.json that belongs to these weights"
        )
    positions = any(map(_POSITIONS.search, names))
    if positions and not any(map(WORD_TABLE.search, names)):
        raise ModelFault(
            "the weights have no table of word embeddings. Copy them again from their source"
        )


def shape_problems(folder: Path) -> list[str]:
    """Where config.json and the weights disagree. A network built from such a config could take any
    amount of memory, and would keep random weights. Raises ModelFault if one can't be read."""
    config, tensors = read_object(folder / "config.json"), _encoder(folder)
    words, positions, types = (_sizes(tensors, table) for table in (WORD_TABLE, _POSITIONS, _TYPES))
    stated = config.get("max_position_embeddings")
    if isinstance(stated, int) and stated + 2 in positions:  # some families add two for padding
        positions.add(stated)
    layers = {name: shape for name, shape in tensors.items() if _LAYER.match(name)}
    among = (layers or tensors).items()
    norms = {shape[0] for name, shape in among if len(shape) == 1 and _NORM.search(name)}
    inner = {size for shape in layers.values() for size in shape}
    if config.get("num_groups", 1) != 1:  # ConvBERT's matrices are split into groups
        inner = set()
    problems = list[str]()
    stated_sizes: tuple[tuple[Sequence[str], set[int]], ...] = (
        (("vocab_size", "n_words"), words),
        (("max_position_embeddings",), positions),
        (("type_vocab_size",), types),
        (HIDDEN, norms),
        (INNER, inner),
    )
    for fields, sizes in stated_sizes:
        field = next((name for name in fields if config.get(name) is not None), None)
        if field and sizes and config[field] not in sizes:
            there = listed(sorted(sizes), most=5)
            problems.append(
                f"config.json states {field} {shown(config[field])}, and the weights have {there}"
            )
    padding, rows = config.get("pad_token_id"), max(words, default=0)
    if rows and type(padding) is int and padding >= rows:
        problems.append(
            f"config.json states pad_token_id {padding}, and the embedding has {rows:,} rows. "
            "Write the number of the tokenizer's padding token"
        )
    return problems


def tables(folder: Path) -> Tables:
    """Raises ModelFault."""
    tensors = _encoder(folder)
    return Tables(*(max(_sizes(tensors, table), default=0) for table in (WORD_TABLE, _TYPES)))


def _sizes(tensors: Tensors, table: re.Pattern[str]) -> set[int]:
    """The numbers of rows of such a table."""
    return {shape[0] for name, shape in tensors.items() if table.search(name) and shape}


# type of a tensor -> the bits of a number's exponent: all ones in NaN and infinity
_EXPONENTS: Mapping[str, tuple[Any, int]] = {
    "F16": (np.uint16, 0x7C00),
    "BF16": (np.uint16, 0x7F80),
    "F32": (np.uint32, 0x7F80 << 16),
    "F64": (np.uint64, 0x7FF0 << 48),
}


def _number_problems(folder: Path) -> list[str]:
    """Weights that are no numbers to train from: NaN and infinite ones, integers."""
    files = _files_of_weights(folder)
    found = [problem for name in files for problem in _odd_numbers(folder / name)]
    more = f" ({len(found) - 1} more such tensors)" if len(found) > 1 else ""
    return [f"{found[0]}{more}"] if found else []


def _odd_numbers(path: Path) -> Iterator[str]:
    """`path` has a valid header. Reads bits, since numpy has no BF16."""
    whole = np.memmap(path, np.uint8, "r")
    start = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    for name, told in json.loads(whole[8:start].tobytes()).items():
        if not name.endswith(("weight", "bias", "gamma", "beta")) or _OTHER_HEADS.match(name):
            continue  # such as positions, which are integers
        if told["dtype"] not in _EXPONENTS:
            yield (
                f"{path.name}: {name} has numbers of type {told['dtype']}, as quantized weights "
                "have. Name the model that they were made from: a sweep trains floating-point "
                "weights"
            )
            continue
        kind, ones = _EXPONENTS[told["dtype"]]
        begin, end = told["data_offsets"]
        bits = np.frombuffer(whole[start + begin : start + end].tobytes(), kind)
        if odd := int(np.count_nonzero((bits & kind(ones)) == ones)):
            yield (
                f"{path.name}: {odd:,} of {bits.size:,} numbers in {name} are NaN or infinite, so "
                "every score would be. Copy the file again, or name an earlier checkpoint"
            )
