"""Checks whether a trial can load a model folder: config, safetensors, tokenizer. Imports no torch.

A torn file of weights is found by its length. Other faults, such as a network that transformers
can't build, are found by the trial.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from lp_sweep.orchestrator.inputs.folder import (
    TornFile,
    config_depth,
    has_vocabulary,
    read_object,
    size_problems,
    tokenizer_problems,
    unreadable,
)
from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.model.modelfiles import INDEX, WEIGHTS, type_problem

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
HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
_HEAD = {"head_dim", "d_head", "attention_head_size"}  # the width of a head, of its own
INNER = ("intermediate_size", "hidden_dim", "d_inner")
_NORM = re.compile(r"norm|\bln", re.IGNORECASE)

Tensors = Mapping[str, tuple[int, ...]]


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
        problems += _weight_problems(folder, depth)
    if not problems:
        problems += shape_problems(folder) or _number_problems(folder)
    if not has_vocabulary(wrong):
        problems += tokenizer_problems(folder)
    return problems


def read_header(path: Path) -> Tensors:
    """The name and shape of each tensor of a safetensors file. Raises TornFile."""
    try:
        with safe_open(path, "numpy") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except OSError as error:
        raise unreadable(path, error) from None
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        size = path.stat().st_size
        raise TornFile(
            f"{path.name} is not a whole safetensors file ({size} bytes): {short(reason)}"
        ) from None


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file. Raises TornFile."""
    told = read_object(index)
    names = told.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise TornFile(f"{index.name} names no files")
    if wrong := [name for name in names.values() if Path(str(name)).name != name]:
        raise TornFile(f"{index.name}: {shown(wrong[0])} is no name of a file in the folder")
    if not isinstance(told.get("metadata"), dict):
        raise TornFile(f'{index.name} has no "metadata", without which transformers reads no index')
    return names


def _weight_files(folder: Path) -> list[Path]:
    """Raises TornFile."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.is_file() or not index.is_file():
        return [single]
    return [folder / name for name in sorted({*_weight_map(index).values()})]


def _all_tensors(folder: Path) -> dict[str, tuple[int, ...]]:
    """The tensors of all files of weights. Raises TornFile."""
    tensors: dict[str, tuple[int, ...]] = {}
    files = _weight_files(folder)
    stated = _weight_map(folder / INDEX) if files != [folder / WEIGHTS] else {}
    for path in files:
        if stated and not path.is_file():
            lost = [name for name, file in stated.items() if file == path.name]
            of = f"{len(lost)} tensors of {INDEX}, such as {lost[0]}"
            raise TornFile(f"{path.name} is missing, with {of}")
        tensors |= read_header(path)
    if absent := [name for name in stated if name not in tensors]:
        first = f"{absent[0]} in {stated[absent[0]]}"
        raise TornFile(f"{INDEX} names {len(absent)} tensors that are absent: {first}")
    return tensors


def config_problems(path: Path, depth: int) -> list[str]:
    try:
        config = read_object(path)
    except TornFile as error:
        return [str(error)]
    if (found := config_depth(config)) != depth:
        return [f"config.json states {found} layers, the plan expects {depth}"]
    problem = type_problem(config) or _value_problem(config)
    return [problem] if problem else []


def _value_problem(config: Mapping[str, Any]) -> str | None:
    """A value of a config with which transformers builds no network, or none that can learn."""
    for name, value in config.items():
        if isinstance(value, bool):
            continue  # such as token_dropout
        if name.endswith(("dropout", "dropout_prob")) and value is not None:
            if not _is_number(value) or not 0 <= value < 1:
                return f"config.json has {name} {shown(value)}. Give a number from 0 to below 1"
        elif name.endswith(("_eps", "_epsilon", "initializer_range")) and not _is_number(value):
            return f"config.json has {name} {shown(value)}. Give a number"
    heads, hidden = _stated_as(config, HEADS), _stated_as(config, HIDDEN)
    if type(heads) is not int or type(hidden) is not int or _HEAD & {*config}:
        return None
    if heads < 1 or hidden % heads:
        return (
            f"config.json has a width of {shown(hidden)} for {shown(heads)} attention heads. Each "
            "head has an equal share of the width: correct one of the two"
        )
    return None


def _stated_as(config: Mapping[str, Any], fields: Sequence[str]) -> Any:
    """The value of the first of the fields that a config has."""
    return next((config[name] for name in fields if config.get(name) is not None), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _weight_problems(folder: Path, depth: int) -> list[str]:
    if problem := absent_weights(folder):
        return [problem]
    try:
        tensors = _all_tensors(folder)
    except TornFile as error:
        return [str(error)]
    wrapped = [
        f"the names of the weights begin with {start!r}: they are those of {what}"
        for start, what in _WRAPPED.items()
        if all(name.startswith(start) for name in tensors)
    ]
    return (wrapped or _layer_problems(tensors, depth) or _name_problems(tensors, folder))[:1]


def _name_problems(tensors: Tensors, folder: Path) -> list[str]:
    """Names that a family known by its prefix does not have, so transformers would leave the
    weights out and keep random ones."""
    try:
        model_type = read_object(folder / "config.json").get("model_type")
    except TornFile:  # another check says why
        return []
    prefix = _PREFIXES.get(str(model_type))
    own = [name for name in tensors if not _OTHER_HEADS.match(name)]
    if prefix is None or not any(map(_LAYER.match, own)):
        return []
    first = own[0]
    starts = {name.partition(".")[0] for name in own}
    if all(map(_IN_OTHER_CODE.match, own)) and prefix not in starts:
        return [
            f"the names of the weights begin as in {first}, where transformers has no such prefix: "
            "save the network inside (`save_pretrained`) in place of what is around it"
        ]
    if prefix not in starts and (other := starts & {*_PREFIXES.values()}):
        return [
            f"config.json is one of {model_type}, and the names of the weights begin with "
            f"'{min(other)}.'. Copy the config.json that belongs to these weights"
        ]
    positions = any(_POSITIONS[1].search(name) for name in own)
    if positions and not any(_STATED[0][1].search(name) for name in own):
        return ["the weights have no table of word embeddings. Copy them again from their source"]
    return []


def _layer_problems(tensors: Tensors, depth: int) -> list[str]:
    layers: dict[str, set[int]] = defaultdict(set)
    for name in tensors:
        if match := _LAYER.match(name):
            layers[match[1]].add(int(match[2]))
    counts = [len(numbers) for numbers in layers.values()]
    if counts and depth not in counts:
        return [f"the weights have {max(counts)} layers, the plan expects {depth}"]
    return _uneven(tensors)


def _uneven(tensors: Tensors) -> list[str]:
    """Tensors that one layer lacks, or has in another shape, where all others agree. The first
    layer of some families lacks a norm."""
    parts: dict[tuple[str, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
    for name, shape in tensors.items():
        if match := _LAYER.match(name):
            parts[match[1], name[match.end() :]][int(match[2])] = shape
    problems = []
    for (path, part), shapes in parts.items():
        layers = {layer for (other, _), held in parts.items() if other == path for layer in held}
        lacking = sorted(layers - set(shapes) - {0})
        usual = max(shapes.values(), key=[*shapes.values()].count)
        odd = [layer for layer, shape in shapes.items() if shape != usual]
        if len(layers) > 2 and len(lacking) == 1:
            problems.append(f"{path}.{lacking[0]}.{part} is missing, and other layers have it")
        elif len(layers) > 2 and len(odd) == 1:
            has = f"{path}.{odd[0]}.{part} has the shape {list(shapes[odd[0]])}"
            problems.append(f"{has}, in other layers {list(usual)}")
    return problems


def absent_weights(folder: Path) -> str | None:
    """Why a folder has no weights that can be read, and what it has in their place."""
    if (folder / WEIGHTS).is_file() or (folder / INDEX).is_file():
        return None
    for pattern, what in _NO_WEIGHTS.items():
        if there := sorted(str(path.relative_to(folder)) for path in folder.glob(pattern)):
            return f"{WEIGHTS} is missing; {listed(there, most=3)}: {what}"
    return f"{WEIGHTS} is missing"


def _number_problems(folder: Path) -> list[str]:
    """Weights that are no numbers to train from: NaN and infinite ones, integers."""
    found = [problem for path in _weight_files(folder) for problem in _odd_numbers(path)]
    more = f" ({len(found) - 1} more such tensors)" if len(found) > 1 else ""
    return [f"{found[0]}{more}"] if found else []


def _odd_numbers(path: Path) -> Iterable[str]:
    """`path` has a valid header. A number is NaN or infinite where its exponent is all ones."""
    exponents: dict[str, tuple[Any, int]] = {
        "F16": (np.uint16, 0x7C00),
        "BF16": (np.uint16, 0x7F80),
        "F32": (np.uint32, 0x7F80 << 16),
        "F64": (np.uint64, 0x7FF0 << 48),
    }
    whole = np.memmap(path, np.uint8, "r")
    start = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    for name, told in json.loads(whole[8:start].tobytes()).items():
        if not name.endswith(("weight", "bias", "gamma", "beta")) or _OTHER_HEADS.match(name):
            continue  # such as positions, which are integers
        if told["dtype"] not in exponents:
            yield (
                f"{path.name}: {name} has numbers of type {told['dtype']}, as quantized weights "
                f"have. Name the model that they were made from: a sweep trains floating-point "
                "weights"
            )
            continue
        kind, ones = exponents[told["dtype"]]
        begin, end = told["data_offsets"]
        bits = np.frombuffer(whole[start + begin : start + end].tobytes(), kind)
        if odd := int(np.count_nonzero((bits & kind(ones)) == ones)):
            yield (
                f"{path.name}: {odd:,} of {bits.size:,} numbers in {name} are NaN or infinite, so "
                "every score would be. Copy the file again, or name an earlier checkpoint"
            )


def shape_problems(folder: Path) -> list[str]:
    """Where config.json and the weights disagree. A network built from such a config could take any
    amount of memory, and would keep random weights. Raises TornFile if one can't be read."""
    config = read_object(folder / "config.json")
    tensors = {n: s for n, s in _all_tensors(folder).items() if not _OTHER_HEADS.match(n)}
    found = _stated(tensors)
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
    problems = [problem for fields, sizes in found if (problem := _unlike(config, fields, sizes))]
    padding, rows = config.get("pad_token_id"), max(found[0][1], default=None)
    if rows and type(padding) is int and padding >= rows:
        problems.append(
            f"config.json states pad_token_id {padding}, and the embedding has {rows:,} rows. "
            "Write the number of the tokenizer's padding token"
        )
    return problems


def tables(folder: Path) -> Tables:
    """Raises TornFile."""
    tensors = {n: s for n, s in _all_tensors(folder).items() if not _OTHER_HEADS.match(n)}
    words, _, types = (max(sizes, default=0) for _, sizes in _stated(tensors))
    return Tables(words, types)


def _stated(tensors: Tensors) -> list[tuple[Sequence[str], set[int]]]:
    """Fields of a config, and the sizes that the tensors have for it."""
    return [
        (fields, {shape[axis] for name, shape in tensors.items() if tensor.search(name) and shape})
        for fields, tensor, axis in _STATED
    ]


def _unlike(config: Mapping[str, Any], fields: Sequence[str], sizes: set[int]) -> str | None:
    stated = _stated_as(config, fields)
    if stated is None or not sizes or stated in sizes:
        return None
    field = next(name for name in fields if config.get(name) is not None)
    there = listed(sorted(sizes), most=5)
    return f"config.json states {field} {shown(stated)}, and the weights have {there}"
