"""Checks whether a trial can load a model folder: config, safetensors, tokenizer. Imports no torch.

A torn file of weights is found by its length. Other faults, such as a network that transformers
can't build, are found by the trial.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.storage.printable import listed, short, shown
from lp_sweep.trials.model.modelfiles import DEPTH_FIELDS, INDEX, WEIGHTS, type_problem

# a tokenizer's files with words; its other files only say how to treat them
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
# other files of a tokenizer
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json")
_READ = {".json", ".safetensors", ".txt", ".model", ".jinja"}  # the ends of names of files we read
_POINTER = b"version https://git-lfs.github.com"
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


class Torn(Exception):
    """A file is not complete. The text is for messages."""


class Tables(NamedTuple):
    """Rows of the tables of tokens and of token types in the weights; 0: no such table."""

    words: int
    types: int


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
            start = stream.read(len(_POINTER))
    except OSError as error:
        target = f", a link to {shown(str(path.readlink()))}" if path.is_symlink() else ""
        return f"can't be read{target}: {error.strerror}"
    if start == _POINTER:
        return "is a pointer of Git LFS, not the file itself. Run `git lfs pull` in its repository"
    return None


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
        problems += shape_problems(folder) or _number_problems(folder)
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
    return sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file. Raises Torn or OSError."""
    told = read_object(index)
    names = told.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise Torn(f"{index.name} names no files")
    if wrong := [name for name in names.values() if Path(str(name)).name != name]:
        raise Torn(f"{index.name}: {shown(wrong[0])} is no name of a file in the folder")
    if not isinstance(told.get("metadata"), dict):
        raise Torn(f'{index.name} has no "metadata", without which transformers reads no index')
    return names


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
    if names != [WEIGHTS]:
        _refuse_absent(folder / INDEX, tensors)
    return tensors


def _refuse_absent(index: Path, tensors: Tensors) -> None:
    absent = {name: file for name, file in _weight_map(index).items() if name not in tensors}
    if absent:
        name, file = next(iter(absent.items()))
        raise Torn(f"{index.name} names {len(absent)} tensors that are absent: {name} in {file}")


def _config_problems(path: Path, depth: int) -> list[str]:
    try:
        config = read_object(path)
    except FileNotFoundError:
        return ["config.json is missing"]
    except (Torn, OSError) as error:
        return [reason(error)]
    found = next((config[name] for name in DEPTH_FIELDS if isinstance(config.get(name), int)), None)
    if found != depth:
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
    heads = next((config[name] for name in HEADS if config.get(name) is not None), None)
    hidden = next((config[name] for name in HIDDEN if config.get(name) is not None), None)
    if type(heads) is not int or type(hidden) is not int or _HEAD & {*config}:
        return None
    if heads < 1 or hidden % heads:
        return (
            f"config.json has a width of {shown(hidden)} for {shown(heads)} attention heads. Each "
            "head has an equal share of the width: correct one of the two"
        )
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _weight_problems(folder: Path, depth: int) -> list[str]:
    if problem := absent_weights(folder):
        return [problem]
    try:
        tensors = _all_tensors(folder)
    except FileNotFoundError as error:
        return [f"{Path(str(error.filename)).name} is missing{_lost(folder, error.filename)}"]
    except (Torn, OSError) as error:
        return [reason(error)]
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
    except (Torn, OSError):  # another check says why
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


def _lost(folder: Path, file: str) -> str:
    """The tensors in a file that is missing."""
    names = [name for name, at in _weight_map(folder / INDEX).items() if at == Path(file).name]
    return f", with {len(names)} tensors of {INDEX}, such as {names[0]}"


def _number_problems(folder: Path) -> list[str]:
    """Weights that are no numbers to train from: NaN and infinite ones, integers."""
    single = folder / WEIGHTS
    names = [WEIGHTS] if single.is_file() else shard_names(folder / INDEX)
    found = [problem for name in names for problem in _odd_numbers(folder / name)]
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
    amount of memory, and would keep random weights. Raises Torn or OSError if one can't be read."""
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
    """Raises Torn or OSError."""
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
    field = next((name for name in fields if config.get(name) is not None), None)
    if field is None or not sizes or config[field] in sizes:
        return None
    there = listed(sorted(sizes), most=5)
    return f"config.json states {field} {shown(config[field])}, and the weights have {there}"


def _tokenizer_problems(folder: Path) -> list[str]:
    from tokenizers import Tokenizer

    if not has_vocabulary([path.name for path in folder.glob("*") if path.is_file()]):
        return [f"no tokenizer vocabulary: none of {', '.join(_VOCABULARIES)}"]
    problems = []
    if not (folder / "tokenizer.json").is_file():
        problems += _word_list_problems(folder / "vocab.txt")
    for name in ("tokenizer.json", *_SETTINGS):
        try:
            read_object(folder / name)
            if name == "tokenizer.json":
                require_unknown(Tokenizer.from_file(str(folder / name)))
        except FileNotFoundError:
            continue
        except (Torn, OSError) as error:
            problems.append(reason(error))
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
    """Raises Torn for a tokenizer that can't read a word that it does not know."""
    try:
        tokenizer.encode("\u0f00 \ue000")
    except Exception as error:  # the library raises no other
        raise Torn(
            f"tokenizer.json can't read a word that it does not know: {short(str(error))}. Copy it "
            "again from the model's source"
        ) from None


def _infinity(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN is no number")
    return float(name)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, as transformers reads it. Raises Torn or OSError."""
    content = path.read_bytes()
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_infinity)
    except UnicodeDecodeError:
        raise Torn(f"{path.name} is not complete JSON: it is not UTF-8. Save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        if content.startswith(b"\xef\xbb\xbf"):
            raise Torn(
                f"{path.name} begins with a byte order mark (BOM), which transformers does not "
                "read. Save it as UTF-8 without one"
            ) from None
        why = short(str(error)) if content.strip() else "it is empty"
        raise Torn(f"{path.name} is not complete JSON: {why}") from None
    if not isinstance(value, dict):
        raise Torn(f"{path.name} holds no JSON object ({{...}}) but {short(content.decode(), 40)}")
    return value


def reason(error: Exception) -> str:
    """The text of a Torn or OSError."""
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
