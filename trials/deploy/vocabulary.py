"""Removes from a tokenizer and its network the pieces that a task does not use: most weights of a
small network are rows of the word table, and a task reads less than half of them.

A text that the vocabulary was cut on keeps its pieces, under new numbers, so that a network with
the rows of these pieces gives the same logits. Removing the other pieces can't change it:

- BPE applies the merge of lowest rank, again and again. The merges that a piece was built by stay,
  with their results, and in their order: at each step the same merge is the first of those left.
- Unigram chooses the most probable path through a word, which stays while others go. An unknown
  character costs a constant less than the least probable piece, so that one stays also.
- WordPiece takes the longest piece that fits, which stays. A word that it can't cut up becomes
  unknown, by pieces that no output shows: such a word may need more of them.

Each text is therefore cut up both ways; where the pieces differ, all pieces within its words stay.
Single characters always stay: no other text gets an unknown piece that it had not before. Only
where each piece is a whole word (WordLevel), a word that was in none of the texts becomes unknown.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lp_sweep.storage.errors import ExportError, UnsupportedModelError
from lp_sweep.storage.printable import shown
from lp_sweep.trials.data.encode import load_tokenizer
from lp_sweep.trials.model.familytable import family_of
from lp_sweep.trials.model.modelfiles import INDEX, WORD_TABLE
from lp_sweep.trials.model.plainload import plain_config
from lp_sweep.trials.model.sentencefolder import copy_modules, copy_settings, read_sentence_folder

Text = str | Sequence[str]  # or the words of a text
_CHUNK = 10_000  # texts per call of the tokenizer
_TOKENIZER, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_HEADS = re.compile(r"\b(decoder|lm_head|predictions)\b")  # rows of words in a language model
_FULL = "Use its full vocabulary (vocabulary: full)."
_BESIDE = ("special_tokens_map.json", "chat_template*")  # these name pieces by their text


class PieceMap(NamedTuple):
    """The pieces that stay. old: their earlier ids, in the order of their new ones. full: the
    number of pieces before."""

    old: tuple[int, ...]
    full: int

    @property
    def new(self) -> dict[int, int]:
        return {old: new for new, old in enumerate(self.old)}


def cut(folder: Path, texts: Sequence[Text]) -> PieceMap:
    """The pieces that these texts need, and all single characters, bytes and special tokens.

    `texts`: all that the network was trained on, and others that it will read; never the dev set's,
    since its score would then be optimistic. Raises UnsupportedModelError for a tokenizer or a
    network whose pieces can't be renumbered.
    """
    backend, config = _backend(folder), _config(folder)
    vocabulary = _Vocabulary(backend)
    kept = vocabulary.always() | {*backend.encode("", "").ids}
    kept |= {*_named_ids(config).values()} & {*backend.get_vocab().values()}
    for chunk in _chunks(texts):
        kept.update(*_ids(backend, chunk))
    while True:
        kept |= vocabulary.built_by(kept)
        pieces = _in_order(kept, backend.get_vocab_size(), config)
        if not (differing := _differing(backend, _cut_backend(backend, pieces), pieces, texts)):
            return pieces
        words = {word for text in differing for word in _words(backend, text)}
        more = vocabulary.within(words) - kept
        if not more:
            raise ExportError(
                f"{folder}: {shown(differing[0])} is cut up otherwise with all pieces of its "
                f"words. {_FULL}"
            )
        kept |= more


def write_tokenizer(folder: Path, pieces: PieceMap, target: Path) -> None:
    """Writes the tokenizer of `folder` with these pieces alone, as tokenizer.json, to the folder
    `target`. Raises ExportError if transformers would read it as another one."""
    target.mkdir(parents=True, exist_ok=True)
    state = _cut_state(_state(_backend(folder)), pieces)
    text = json.dumps(state, ensure_ascii=False)
    (target / _TOKENIZER).write_text(text, encoding="utf-8")
    settings = _object(folder / _SETTINGS)
    if decoder := settings.get("added_tokens_decoder"):
        settings["added_tokens_decoder"] = {
            str(pieces.new[int(old)]): token for old, token in decoder.items()
        }
    if "unk_id" in settings:
        settings["unk_id"] = state["model"]["unk_id"]
    (target / _SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    for pattern in _BESIDE:
        for path in folder.glob(pattern):
            shutil.copyfile(path, target / path.name)
    if _state(_backend(target)) != state:
        raise ExportError(
            f"{folder}: transformers reads its tokenizer otherwise with fewer pieces. {_FULL}"
        )


def cut_network(folder: Path, pieces: PieceMap, target: Path) -> None:
    """Writes the network in `folder`, with its tokenizer and its modules, to the folder `target`,
    with these pieces alone. Raises UnsupportedModelError if it has no word table."""
    config = _config(folder)
    write_tokenizer(folder, pieces, target)
    _cut_weights(folder, pieces, config["vocab_size"], target)
    told = _object(folder / "config.json") | {"vocab_size": len(pieces.old)}
    told |= {key: pieces.new.get(old) for key, old in _named_ids(config).items()}
    (target / "config.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    copy_settings(folder, target)
    copy_modules(folder, target, read_sentence_folder(folder).modules[1:])


def _cut_weights(folder: Path, pieces: PieceMap, rows: int, target: Path) -> None:
    order, found, left_out = torch.tensor(pieces.old), False, 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names, metadata = file.keys(), file.metadata()
            tensors = {name: file.get_tensor(name) for name in names}
        for name, tensor in tensors.items():
            is_table = WORD_TABLE.search(name) is not None
            if tensor.shape[:1] == (rows,) and (is_table or _HEADS.search(name)):
                tensors[name] = tensor[order]
                left_out += tensor.nbytes - tensors[name].nbytes
                found |= is_table
        save_file(tensors, target / path.name, metadata)
    if not found:
        raise UnsupportedModelError(
            f"{folder}: its weights have no word table of {rows:,} rows (vocab_size). {_FULL}"
        )
    if (index := folder / INDEX).is_file():
        told = _object(index)
        if "total_size" in told.get("metadata", {}):
            told["metadata"]["total_size"] -= left_out
        (target / INDEX).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def words_cut(folder: Path, cut: Path, texts: Sequence[Text]) -> float:
    """The share of words that the tokenizers of both folders cut up in different ways."""
    full, other = _backend(folder), _backend(cut)
    words = differing = 0
    for chunk in _chunks(texts):
        for before, after in zip(_encoded(full, chunk), _encoded(other, chunk), strict=True):
            old, new = _by_word(before), _by_word(after)
            words += len(old)
            differing += sum(new.get(word) != pieces for word, pieces in old.items())
    return differing / max(words, 1)


def _by_word(encoding: Any) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for word, piece in zip(encoding.word_ids, encoding.tokens, strict=True):
        if word is not None:
            found.setdefault(word, []).append(piece)
    return found


class _Vocabulary:
    """The pieces of a tokenizer's model. prefix: what begins a piece within a word."""

    def __init__(self, backend: Any) -> None:
        """Raises UnsupportedModelError if it can't be cut."""
        state = _state(backend)
        model = state["model"]
        kind, given = model["type"], model["vocab"]
        self.prefix: str = model.get("continuing_subword_prefix") or ""
        mark = model.get("end_of_word_suffix") or (kind == "BPE" and self.prefix)
        if mark:
            raise UnsupportedModelError(
                f"its tokenizer is BPE that marks the border of a word with {shown(mark)}, and "
                f"such pieces can't be cut. {_FULL}"
            )
        self.whole = kind == "WordLevel"  # a piece is a whole word
        self.probabilities: dict[str, float] = dict(given) if kind == "Unigram" else {}
        self.ids: dict[str, int] = (
            {piece: id for id, (piece, _) in enumerate(given)} if kind == "Unigram" else given
        )
        self.ranks = {tuple(merge): rank for rank, merge in enumerate(model.get("merges", ()))}
        self.bytes = bool(model.get("byte_fallback"))
        unknown = model.get("unk_id", self.ids.get(model.get("unk_token")))
        self.special = {token["id"] for token in state["added_tokens"]} | {unknown} - {None}

    def always(self) -> set[int]:
        """Pieces that can't be spelled in smaller ones, and those with a meaning of their own."""
        if self.whole:
            return self.special
        kept = {id for piece, id in self.ids.items() if not self._is_spelled(piece)}
        if self.bytes:
            kept |= {id for piece, id in self.ids.items() if re.fullmatch("<0x[0-9A-F]{2}>", piece)}
        if self.probabilities:
            kept.add(self.ids[min(self.probabilities, key=self.probabilities.__getitem__)])
        return kept | self.special

    def _is_spelled(self, piece: str) -> bool:
        """Whether its characters, two or more, are all pieces themselves."""
        inside = bool(self.prefix) and piece.startswith(self.prefix) and piece != self.prefix
        body = piece.removeprefix(self.prefix) if inside else piece
        letters = [self.prefix + letter if i or inside else letter for i, letter in enumerate(body)]
        return len(letters) > 1 and all(letter in self.ids for letter in letters)

    def built_by(self, kept: Iterable[int]) -> set[int]:
        """The results of all merges that build these pieces from their characters."""
        if not self.ranks:
            return set()
        texts = {id: piece for piece, id in self.ids.items() if id not in self.special}
        chosen = (texts[id] for id in kept if id in texts)
        return {self.ids[result] for piece in chosen for result in self._merged(piece)}

    def _merged(self, piece: str) -> Iterator[str]:
        parts = [*piece]
        while len(parts) > 1:
            ranks = [self.ranks.get(pair, math.inf) for pair in pairwise(parts)]
            place = ranks.index(lowest := min(ranks))
            if lowest == math.inf:  # a word that is looked up whole
                return
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
            yield parts[place]

    def within(self, words: Iterable[str]) -> set[int]:
        """All pieces that occur in these words."""
        longest = max(map(len, self.ids))
        spans = {
            word[start:end]
            for word in words
            for start in range(len(word))
            for end in range(start + 1, min(len(word), start + longest) + 1)
        }
        both = spans | {self.prefix + span for span in spans}
        return {id for span in both if (id := self.ids.get(span)) is not None}


def _in_order(kept: set[int], full: int, config: Mapping[str, Any]) -> PieceMap:
    """In the order of their ids, but padding keeps its id: where a network counts positions from
    it, its position table begins there."""
    order, padding = sorted(kept), config.get("pad_token_id")
    if order[-1] >= (rows := config.get("vocab_size", math.inf)):
        raise UnsupportedModelError(
            f"its tokenizer has a piece of the id {order[-1]:,}, and its word table {rows:,} rows "
            f"(vocab_size). {_FULL}"
        )
    if padding in kept and padding < len(order):
        order.remove(padding)
        order.insert(padding, padding)
    elif family_of(kind := str(config.get("model_type"))).positions in ("after padding", "after 1"):
        raise UnsupportedModelError(
            f"{kind} counts positions from its padding token, whose id {padding} is none of the "
            f"{len(order):,} that are left. {_FULL}"
        )
    return PieceMap(tuple(order), full)


def _differing(full: Any, cut: Any, pieces: PieceMap, texts: Sequence[Text]) -> list[Text]:
    """The texts of other pieces."""
    return [
        text
        for chunk in _chunks(texts)
        for text, old, new in zip(chunk, _ids(full, chunk), _ids(cut, chunk), strict=True)
        if old != [pieces.old[id] for id in new]
    ]


def _cut_backend(backend: Any, pieces: PieceMap) -> Any:
    return type(backend).from_str(json.dumps(_cut_state(_state(backend), pieces)))


def _cut_state(state: Mapping[str, Any], pieces: PieceMap) -> dict[str, Any]:
    """The content of tokenizer.json, with these pieces alone."""
    new, model = pieces.new, dict(state["model"])
    given = model["vocab"]
    if model["type"] == "Unigram":
        model["vocab"] = [given[old] for old in pieces.old if old < len(given)]
        model["unk_id"] = new.get(model["unk_id"])
    else:
        texts = {id: piece for piece, id in given.items() if id in new}
        model["vocab"] = {texts[old]: new[old] for old in pieces.old if old in texts}
    if "merges" in model:
        left = model["vocab"]
        model["merges"] = [[a, b] for a, b in model["merges"] if {a, b, a + b} <= left.keys()]
    padding = state["padding"]
    return {
        **state,
        "model": model,
        "added_tokens": [token | {"id": new[token["id"]]} for token in state["added_tokens"]],
        "post_processor": _renumbered(state["post_processor"], new),
        "padding": padding and padding | {"pad_id": new[padding["pad_id"]]},
    }


def _renumbered(part: Any, new: Mapping[int, int]) -> Any:
    """A post-processor, or a part of it: ids are listed, or the second of a pair."""
    if isinstance(part, list):
        return [_renumbered(each, new) for each in part]
    if not isinstance(part, dict):
        return part
    found = {key: _renumbered(value, new) for key, value in part.items()}
    if isinstance(ids := part.get("ids"), list):
        found["ids"] = [new[id] for id in ids]
    for key in ("sep", "cls"):
        if isinstance(pair := part.get(key), list):
            found[key] = [pair[0], new[pair[1]]]
    return found


def _backend(folder: Path) -> Any:
    """The tokenizer as transformers runs it, for whole texts."""
    tokenizer = load_tokenizer(folder, local_files_only=True)
    if not tokenizer.is_fast:
        raise UnsupportedModelError(
            f"{folder}: its tokenizer can't be saved as tokenizer.json, and no other can be cut. "
            f"{_FULL}"
        )
    return tokenizer.backend_tokenizer


def _state(backend: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(backend.to_str())
    return state


def _encoded(backend: Any, texts: Sequence[Text], *, special: bool = False) -> list[Any]:
    backend.no_truncation()
    backend.no_padding()
    words = not isinstance(texts[0], str)
    found: list[Any] = backend.encode_batch(
        list(texts), is_pretokenized=words, add_special_tokens=special
    )
    return found


def _ids(backend: Any, texts: Sequence[Text]) -> list[list[int]]:
    return [encoding.ids for encoding in _encoded(backend, texts, special=True)]


def _words(backend: Any, text: Text) -> Iterator[str]:
    """A text's words, in the characters of pieces."""
    for part in [text] if isinstance(text, str) else text:
        normal = backend.normalizer.normalize_str(part) if backend.normalizer else part
        steps = backend.pre_tokenizer
        yield from (word for word, _ in steps.pre_tokenize_str(normal)) if steps else (normal,)


def _chunks(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    for start in range(0, len(texts), _CHUNK):
        yield texts[start : start + _CHUNK]


def _config(folder: Path) -> dict[str, Any]:
    """A network's configuration, with what its class defaults to: ids may not be in config.json."""
    found = plain_config(folder).to_dict() if (folder / "config.json").is_file() else {}
    return dict(found)


def _named_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """The ids of single pieces that it names."""
    found = ((key, value) for key, value in config.items() if key.endswith("_token_id"))
    return {key: value for key, value in found if isinstance(value, int)}


def _object(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found
